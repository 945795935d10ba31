//! The folder of one server: its data, its configuration, its log.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::part::run;
use crate::tree::Tree;

/// A new folder inside of a tree that belongs to the user the server runs as. It is deleted with this value; when the test program is
/// killed, by the server's watchdog.
///
/// Every process of the server has its working folder in here: by that they are known (see `Processes`).
#[derive(Debug)]
pub(crate) struct Home {
    tree: Tree,
    user: &'static str,
    folder: TempDir,
}

impl Home {
    pub(crate) fn new(tree: Tree, user: &'static str) -> Result<Self, String> {
        let (uid, gid) = tree.user(user)?;
        let place = tree.outside("/srv");
        let made = || -> io::Result<TempDir> {
            let folder = tempfile::Builder::new().prefix("server-").tempdir_in(&place)?;
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
            chown(folder.path(), Some(uid), Some(gid))?;
            Ok(folder)
        };
        let folder = made().map_err(|error| format!("a folder in {}: {error}", place.display()))?;
        Ok(Self { tree, user, folder })
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(crate) fn user(&self) -> &'static str {
        self.user
    }

    /// The folder on this machine.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A path on this machine.
    pub(crate) fn outside(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The same path as the server sees it.
    pub(crate) fn inside(&self, name: &str) -> String {
        let path = if name.is_empty() { self.path().to_owned() } else { self.outside(name) };
        self.tree.inside(&path)
    }

    /// Copies a folder of the tree into this one, with the owners that its files have.
    pub(crate) fn copy(&self, from: &str, name: &str) -> Result<(), String> {
        let mut copy = Command::new("cp");
        copy.args(["--archive", "--reflink=auto", "--sparse=always"]);
        copy.arg(self.tree.outside(from)).arg(self.outside(name));
        run(copy).map(drop)
    }

    /// Writes a file that only the server's user may read (PostgreSQL refuses a key that others can read).
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.outside(name);
        let written = || -> io::Result<()> {
            let (uid, gid) = self.tree.user(self.user).map_err(io::Error::other)?;
            fs::write(&path, text)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            chown(&path, Some(uid), Some(gid))
        };
        written().map_err(|error| format!("{}: {error}", path.display()))
    }
}
