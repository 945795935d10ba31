//! Identity of the file that holds a database.
//!
//! Connections keep the file that they have opened. When another one replaces it, they keep writing
//! to the old one, which has no name any more, and their commits are lost with it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use outbox_contract::{StoreError, StoreErrorKind};

/// The path of a database file, and the file that was there at the first look.
pub(crate) struct Place {
    path: PathBuf,
    file: OnceLock<FileId>,
}

/// Identity of a file on one machine: device and number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId(u64, u64);

impl Place {
    /// Returns the place of a file, which may be created later. None for a name that is no path.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        if path.to_string_lossy().starts_with("file:") {
            return None;
        }
        let place = Self { path: std::path::absolute(path).ok()?, file: OnceLock::new() };
        place.look();
        Some(place)
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the opened file is still there. The path stays out of the error.
    pub(crate) fn check(&self, operation: &'static str) -> Result<(), StoreError> {
        if self.look() {
            return Ok(());
        }
        Err(StoreError::new(
            StoreErrorKind::Other,
            operation,
            "the database file was replaced or removed while it was open, and further writes are lost; stop every program that has it open, \
             put the file in place with no `-wal` and `-shm` of another one beside it, then start them again",
        ))
    }

    /// Returns true if the file is the one that was there the first time.
    fn look(&self) -> bool {
        match FileId::of(&self.path) {
            Ok(Some(now)) => *self.file.get_or_init(|| now) == now,
            // Files have no identity on this system.
            Ok(None) => true,
            Err(error) => error.kind() != std::io::ErrorKind::NotFound || self.file.get().is_none(),
        }
    }
}

impl FileId {
    #[cfg(unix)]
    fn of(path: &Path) -> std::io::Result<Option<Self>> {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::metadata(path)?;
        Ok(Some(Self(file.dev(), file.ino())))
    }

    #[cfg(not(unix))]
    fn of(_: &Path) -> std::io::Result<Option<Self>> {
        Ok(None)
    }
}
