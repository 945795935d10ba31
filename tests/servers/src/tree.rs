//! Location of the programs of servers, and how one is run: in the folder that
//! `tests/servers/prepare` creates, or in a container.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::Program;

/// Run by `sh`: /proc is mounted in a name space of this process and its children alone, so that
/// the mount ends with them. Every step is an `exec`: the started process becomes the program.
const ENTER: &str = r#"
root=$0 user=$1 folder=$2
shift 2
mount -t proc proc "$root/proc" && exec chroot --userspec="$user:$user" "$root" /bin/sh -c 'cd "$0" && exec "$@"' "$folder" "$@"
"#;

/// One Debian release of the prepared folder, with the packages of a part in it; or a container.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// In a container, paths are those of this machine: only the server's folder is used.
    root: PathBuf,
    #[cfg(feature = "containers")]
    room: Option<std::sync::Arc<crate::room::Room>>,
}

impl Tree {
    /// Returns the release that has a part of `tests/servers/prepare`.
    ///
    /// # Errors
    ///
    /// The missing part and the remedy.
    pub(crate) fn with(part: &str, release: &str) -> Result<Self, String> {
        let folder = folder();
        let root = folder.join(release);
        if !root.join("etc").join(format!("made-{part}")).exists() {
            return Err(format!(
                "part {part} is not in {}: run tests/servers/prepare {part}",
                folder.display()
            ));
        }
        if !rustix::process::geteuid().is_root() {
            return Err(format!("servers run from {} need root", folder.display()));
        }
        Ok(Self {
            root,
            #[cfg(feature = "containers")]
            room: None,
        })
    }

    /// A release without a check of its parts.
    #[cfg(test)]
    pub(crate) fn at(root: PathBuf) -> Self {
        Self {
            root,
            #[cfg(feature = "containers")]
            room: None,
        }
    }

    /// The content of a container.
    #[cfg(feature = "containers")]
    pub(crate) fn of(room: crate::room::Room) -> Self {
        Self { root: PathBuf::from("/"), room: Some(std::sync::Arc::new(room)) }
    }

    /// Returns true if it is a container, and so a foreign image.
    pub(crate) fn is_contained(&self) -> bool {
        #[cfg(feature = "containers")]
        return self.room.is_some();
        #[cfg(not(feature = "containers"))]
        return false;
    }

    /// Returns the place of cached folders: beside the releases, so that a folder of one is moved
    /// there in one step. A container keeps none.
    pub(crate) fn prepared(&self) -> Option<PathBuf> {
        let beside = self.root.parent().filter(|_| !self.is_contained())?;
        Some(beside.join("prepared"))
    }

    /// Returns the path on this machine of a path in the tree.
    pub(crate) fn outside(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns the path in the tree of a path on this machine.
    pub(crate) fn inside(&self, path: &Path) -> String {
        let inside = path.strip_prefix(&self.root).unwrap_or(path);
        format!("/{}", inside.display())
    }

    /// Rewrites a text so that paths of the tree are as a program in the tree sees them.
    pub(crate) fn inside_of(&self, text: &str) -> String {
        if self.is_contained() {
            return text.to_owned();
        }
        text.replace(&format!("{}/", self.root.display()), "/")
    }

    /// Returns a program in the tree, as one of the tree's users, in one of its folders, with
    /// nothing of this process's environment. In a container it is found by its name alone, and
    /// there is one user.
    pub(crate) fn command(&self, user: &str, folder: &str, program: &str) -> Program {
        #[cfg(feature = "containers")]
        if let Some(room) = &self.room {
            return Program::within(std::sync::Arc::clone(room), folder, program);
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", ENTER]);
        command.arg(&self.root).args([user, folder, program]);
        command.current_dir("/").env_clear();
        command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8").env("TZ", "UTC");
        Program::here(command)
    }

    /// Returns the numbers of a user and of its group in the tree.
    pub(crate) fn user(&self, name: &str) -> Result<(u32, u32), String> {
        let path = self.outside("/etc/passwd");
        let users = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let user = users.lines().find_map(|line| {
            let mut fields = line.strip_prefix(name)?.strip_prefix(':')?.split(':').skip(1);
            Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
        });
        user.ok_or_else(|| format!("{} has no user {name}", path.display()))
    }
}

/// Returns `OUTBOX_SERVERS_DIR`, or `target/servers` of the repository.
fn folder() -> PathBuf {
    let named = std::env::var_os("OUTBOX_SERVERS_DIR").filter(|folder| !folder.is_empty());
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let repository = here.ancestors().nth(2).unwrap_or(here);
    named.map_or_else(|| repository.join("target/servers"), PathBuf::from)
}
