//! Optimistic concurrency: a version that must still be the one that was read.

use std::fmt;

/// Something has another version than the one that was read: somebody has changed it in between, or it is gone.
///
/// Nothing was written over. Read it again and decide again: inside of [`Mediator::run`](crate::Mediator::run) that happens by itself. Where the
/// expected version came from outside (a form, an `If-Match`), trying again changes nothing: tell whoever sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionMismatch {
    /// What it is about, such as `contact 7`.
    pub what: String,
    /// The version that was read, or that was sent.
    pub expected: i64,
    /// How many rows had it.
    pub rows: u64,
}

impl VersionMismatch {
    /// Checks that a statement that names one row and its version (`… where id = ? and version = ?`) has changed exactly one, by the number of
    /// rows that it says it changed.
    ///
    /// ```
    /// use outbox_engine::VersionMismatch;
    ///
    /// let rows_affected = 0; // of `update contacts set …, version = version + 1 where id = 7 and version = 3`
    /// let error = VersionMismatch::check(rows_affected, "contact 7", 3).unwrap_err();
    /// assert_eq!(error.to_string(), "contact 7 is not at version 3 any more, or is gone; read it again and decide again");
    /// ```
    ///
    /// # Errors
    ///
    /// That it has not. Roll back: in a unit of work, return it.
    pub fn check(rows_affected: u64, what: impl Into<String>, expected: i64) -> Result<(), Self> {
        if rows_affected == 1 {
            return Ok(());
        }
        Err(Self { what: what.into(), expected, rows: rows_affected })
    }

    /// Whether somebody else was in the way, so that doing it again can help; else the statement is wrong.
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
                "{what} is not at version {expected} any more, or is gone; read it again and decide again"
            );
        }
        write!(
            f,
            "{rows} rows were changed for {what} at version {expected}; the statement must name a single one"
        )
    }
}

impl std::error::Error for VersionMismatch {}
