//! Folders that take long to make and none to copy: made by the first server of a kind, kept beside the trees for all later ones.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::home::Home;
use crate::processes::Processes;
use crate::tree::Tree;

/// The folder of a home in which everything is made that is kept.
pub(crate) const MADE: &str = "made";

/// What is made, and of what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recipe<'r> {
    /// The part of `tests/servers/prepare`.
    pub(crate) part: &'static str,
    /// Who owns what is made.
    pub(crate) user: &'static str,
    /// Files of the tree that another version of the programs would have changed.
    pub(crate) programs: &'r [&'r str],
    /// All else that decides what comes out.
    pub(crate) settings: &'r str,
}

impl Recipe<'_> {
    /// The folder that was made by this recipe; `None` where none can be kept, which is in a container, and where the folder of the servers can't be
    /// written to.
    ///
    /// `make` makes the content of [`MADE`] in a home of its own. It takes its place in one step, so that a half-made one is never seen; several that
    /// want the same wait for the first. A folder that was made of other programs is removed.
    ///
    /// # Errors
    ///
    /// What `make` said.
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

    /// Removes what was made of other programs. Nobody is copying it: those programs are there no more.
    fn remove_others(self, all: &Path, version: &str) {
        let of_part = format!("{}-", self.part);
        for entry in fs::read_dir(all).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&of_part) && !name.starts_with(version) {
                // What can't be removed takes room, and does no other harm.
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

/// Waits until no other process makes something of a part.
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
