//! The folder of one server: its data, its configuration, its log.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::program::Program;
use crate::tree::Tree;

/// Source of programs that are in no container.
const PREPARED: &str = "tests/servers/prepare";

/// A new folder inside of a tree that belongs to the user the server runs as. It is deleted with
/// this value; when the test program is killed, by the server's watchdog.
///
/// Every process of the server has its working folder in here: this identifies them (see
/// `Processes`).
#[derive(Debug)]
pub(crate) struct Home {
    tree: Tree,
    user: &'static str,
    /// Owner of its files.
    owner: (u32, u32),
    from: String,
    folder: Folder,
}

/// Ownership of the folder.
#[derive(Debug)]
enum Folder {
    /// This home's own: it is deleted with it.
    Own(TempDir),
    /// Folder of a server that outlives this program.
    Lasting(PathBuf),
}

impl Home {
    pub(crate) fn new(tree: Tree, user: &'static str) -> Result<Self, String> {
        let owner = tree.user(user)?;
        let folder = folder(&tree.outside("/srv"), owner)?;
        Ok(Self { tree, user, owner, from: PREPARED.to_owned(), folder: Folder::Own(folder) })
    }

    /// The folder of a server that another program has started. It stays.
    pub(crate) fn at(tree: Tree, user: &'static str, path: &Path) -> Result<Self, String> {
        let owner = tree.user(user)?;
        Ok(Self { tree, user, owner, from: PREPARED.to_owned(), folder: Folder::Lasting(path.to_owned()) })
    }

    /// A folder that a container of its own sees too.
    #[cfg(feature = "containers")]
    pub(crate) fn contained(image: &str, user: &'static str) -> Result<Self, String> {
        let me = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        // Servers refuse to run as root, and without a name for their user.
        let owner = if me.0 == 0 { (CONTAINED, CONTAINED) } else { me };
        let folder = folder(&std::env::temp_dir(), owner)?;
        let users = format!(
            "root:x:0:0::/:/bin/sh\nserver:x:{}:{}::{}:/bin/sh\n",
            owner.0,
            owner.1,
            folder.path().display()
        );
        let path = folder.path().join("passwd");
        fs::write(&path, users).map_err(|error| format!("{}: {error}", path.display()))?;
        let tree = Tree::of(crate::room::Room::open(image, folder.path(), owner)?);
        Ok(Self { tree, user, owner, from: format!("container of {image}"), folder: Folder::Own(folder) })
    }

    /// Source of its programs.
    pub(crate) fn from(&self) -> &str {
        &self.from
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn user(&self) -> &'static str {
        self.user
    }

    /// Returns the folder on this machine.
    pub(crate) fn path(&self) -> &Path {
        match &self.folder {
            Folder::Own(folder) => folder.path(),
            Folder::Lasting(path) => path,
        }
    }

    /// Returns the whole log of its server, over all starts.
    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.outside("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns a path on this machine.
    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Returns the same path as the server sees it.
    pub(crate) fn inside(&self, name: &str) -> String {
        let path = if name.is_empty() { self.path().to_owned() } else { self.outside(name) };
        self.tree.inside(&path)
    }

    /// Copies a folder into this one, with the owners of its files.
    pub(crate) fn copy(&self, from: &Path, name: &str) -> Result<(), String> {
        let mut copy = Command::new("cp");
        copy.args(["--archive", "--reflink=auto", "--sparse=always"]);
        copy.arg(from).arg(self.outside(name));
        Program::here(copy).run().map(drop)
    }

    /// Links a read-only file into this folder, without a copy of its content.
    pub(crate) fn link(&self, from: &Path, name: &str) -> Result<(), String> {
        fs::hard_link(from, self.outside(name)).map_err(|error| format!("{}: {error}", from.display()))
    }

    /// Creates a folder of the server's user.
    pub(crate) fn make_folder(&self, name: &str) -> Result<(), String> {
        let path = self.outside(name);
        let made = fs::create_dir(&path).and_then(|()| give(&path, self.owner));
        made.map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Writes a file that only the server's user may read (PostgreSQL refuses a key that others can
    /// read).
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), String> {
        self.write_for(0o600, name, text)
    }

    /// Writes a program that the server runs.
    pub(crate) fn write_program(&self, name: &str, text: &str) -> Result<(), String> {
        self.write_for(0o700, name, text)
    }

    fn write_for(&self, mode: u32, name: &str, text: &str) -> Result<(), String> {
        let path = self.outside(name);
        let written = || -> io::Result<()> {
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            give(&path, self.owner)
        };
        written().map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// The user of a container that root starts.
#[cfg(feature = "containers")]
const CONTAINED: u32 = 54_321;

/// Creates a folder in another one.
fn folder(place: &Path, owner: (u32, u32)) -> Result<TempDir, String> {
    let made = || -> io::Result<TempDir> {
        let folder = tempfile::Builder::new().prefix("server-").tempdir_in(place)?;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        give(folder.path(), owner)?;
        Ok(folder)
    };
    made().map_err(|error| format!("a folder in {}: {error}", place.display()))
}

/// Gives a file to a user. A user other than root has no other users' files.
fn give(path: &Path, (uid, gid): (u32, u32)) -> io::Result<()> {
    if rustix::process::geteuid().is_root() { chown(path, Some(uid), Some(gid)) } else { Ok(()) }
}
