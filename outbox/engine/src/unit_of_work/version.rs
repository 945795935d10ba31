//! Optimistic concurrency: a version check on write.

use std::fmt;

/// The row's version differs from the one that was read: another writer has changed or removed the
/// row.
///
/// Nothing was overwritten. Read the row and decide again: inside
/// [`Mediator::run`](crate::Mediator::run) this happens automatically. If the expected version came
/// from outside (a form, an `If-Match`), a retry changes nothing: report the mismatch to the
/// sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionMismatch {
    /// Name of the object, such as `contact 7`.
    pub what: String,
    /// Version that was read or sent.
    pub expected: i64,
    /// Number of rows with that version.
    pub rows: u64,
}

impl VersionMismatch {
    /// Checks that a statement for one row and its version (`… where id = ? and version = ?`) has
    /// changed exactly one row, by the number of affected rows.
    ///
    /// ```
    /// # mod outbox { pub use outbox_engine::*; }
    /// use outbox::VersionMismatch;
    ///
    /// let rows_affected = 0; // of `update contacts set …, version = version + 1 where id = 7 and version = 3`
    /// let error = VersionMismatch::check(rows_affected, "contact 7", 3).unwrap_err();
    /// assert_eq!(error.to_string(), "contact 7 is no longer at version 3, or was removed; read it again and retry");
    /// ```
    ///
    /// # Errors
    ///
    /// If the number is not one. Roll back: in a unit of work, return the error.
    pub fn check(rows_affected: u64, what: impl Into<String>, expected: i64) -> Result<(), Self> {
        if rows_affected == 1 {
            return Ok(());
        }
        Err(Self { what: what.into(), expected, rows: rows_affected })
    }

    /// Returns true if another writer caused the mismatch, so that a retry can help; otherwise the
    /// statement is wrong.
    #[must_use]
    pub const fn is_conflict(&self) -> bool {
        self.rows == 0
    }
}

impl fmt::Display for VersionMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, expected, rows } = self;
        if self.is_conflict() {
            return write!(
                f,
                "{what} is no longer at version {expected}, or was removed; read it again and retry"
            );
        }
        write!(
            f,
            "{rows} rows were changed for {what} at version {expected}; the statement must name a single one"
        )
    }
}

impl std::error::Error for VersionMismatch {}
