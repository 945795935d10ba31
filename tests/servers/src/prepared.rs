//! Cached folders that take long to create and no time to copy: created by the first server of a
//! kind, kept beside the trees for all later ones.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::home::Home;
use crate::processes::Processes;
use crate::tree::Tree;

/// The folder of a home in which the cached content is created.
pub(crate) const MADE: &str = "made";

/// A cached folder, and its inputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe<'r> {
    /// The part of `tests/servers/prepare`.
    pub(crate) part: &'static str,
    /// Owner of the result.
    pub(crate) user: &'static str,
    /// Files of the tree that another version of the programs would have changed.
    pub(crate) programs: &'r [&'r str],
    /// All other inputs that determine the result.
    pub(crate) settings: &'r str,
}

impl Recipe<'_> {
    /// Returns the folder that was created by this recipe; `None` where none can be kept: in a
    /// container, and where the servers' folder is not writable.
    ///
    /// `make` creates the content of [`MADE`] in a home of its own. The result is moved into place
    /// in one step, so that an incomplete one is never seen; concurrent callers wait for the first.
    /// A folder that was created from other programs is removed.
    ///
    /// # Errors
    ///
    /// The error of `make`.
    pub(crate) fn folder(
        self,
        tree: &Tree,
        make: impl FnOnce(&Home) -> Result<(), String>,
    ) -> Result<Option<PathBuf>, String> {
        let Some(all) = tree.prepared() else { return Ok(None) };
        let version = format!("{}-{:016x}", self.part, self.version(tree)?);
        let place = all.join(format!("{version}-{:016x}", hash(self.settings.bytes())));
        if place.exists() {
            return Ok(Some(place));
        }
        // It is held until this function ends, or the process does.
        let Ok(_lock) = lock(&all, self.part) else { return Ok(None) };
        if place.exists() {
            return Ok(Some(place));
        }
        self.remove_others(&all, &version);
        let home = Home::new(tree.clone(), self.user)?;
        let mut watched = Processes::new(home.path())?;
        let made = home.make_folder(MADE).and_then(|()| make(&home));
        watched.end_within(std::time::Duration::ZERO);
        made?;
        fs::rename(home.outside(MADE), &place).map_err(|error| format!("{}: {error}", place.display()))?;
        Ok(Some(place))
    }

    /// A number that changes with the programs.
    fn version(self, tree: &Tree) -> Result<u64, String> {
        let mut bytes = Vec::new();
        for program in self.programs {
            let path = tree.outside(program);
            let about =
                fs::symlink_metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            bytes.extend(program.bytes());
            bytes.extend([about.size().to_le_bytes(), about.mtime().to_le_bytes()].concat());
        }
        Ok(hash(bytes))
    }

    /// Removes folders that were created from other programs. They have no users: those programs no
    /// longer exist.
    fn remove_others(self, all: &Path, version: &str) {
        let of_part = format!("{}-", self.part);
        for entry in fs::read_dir(all).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&of_part) && !name.starts_with(version) {
                // A folder that can't be removed takes space, and does no other harm.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Waits until no other process creates a folder of a part.
fn lock(all: &Path, part: &str) -> std::io::Result<File> {
    fs::create_dir_all(all)?;
    let file = File::options().create(true).append(true).open(all.join(format!("{part}.lock")))?;
    file.lock()?;
    Ok(file)
}

/// FNV-1a: the same in every process, whatever it was compiled with.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes
        .into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
#[path = "prepared/tests.rs"]
mod tests;
