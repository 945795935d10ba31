//! Conversion of SQLite errors to errors that a caller can act on.
//!
//! Two views of the same code: in one of the store's own short transactions, a lock timeout is an
//! unavailable database; in the user's transaction it is a conflict that has ended it.

use outbox_contract::{StoreError, StoreErrorKind};

// Primary result codes of SQLite; an extended code has them in its lowest byte. They are part of
// its file format's stability promise.
pub(crate) const PERMISSION: i32 = 3;
const BUSY: i32 = 5;
const LOCKED: i32 = 6;
pub(crate) const NO_MEMORY: i32 = 7;
pub(crate) const READ_ONLY: i32 = 8;
pub(crate) const INPUT_OUTPUT: i32 = 10;
pub(crate) const CORRUPT: i32 = 11;
pub(crate) const FULL: i32 = 13;
pub(crate) const CANNOT_OPEN: i32 = 14;
/// Two connections that opened the log at once blocked each other repeatedly.
pub(crate) const PROTOCOL: i32 = 15;
/// The tables were altered under a prepared statement, repeatedly.
pub(crate) const SCHEMA: i32 = 17;
/// A check, a key or a trigger refuses a row.
pub(crate) const CONSTRAINT: i32 = 19;
/// The machine can't have files as large as this one.
pub(crate) const NO_LARGE_FILES: i32 = 22;
const AUTHORIZATION: i32 = 23;
pub(crate) const NOT_A_DATABASE: i32 = 26;

/// Returns SQLite's primary result code, if the error is one of SQLite's.
pub(crate) fn code(error: &sqlx::Error) -> Option<i32> {
    let extended: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(extended & 0xff)
}

/// Converts an error in one of the store's statements.
pub(crate) fn store_error(operation: &'static str, error: sqlx::Error) -> StoreError {
    let (kind, words) = meaning(&error);
    StoreError::new(kind, operation, words).with_source(error)
}

/// Returns the error of a transaction that could not begin: others have the connections, or the
/// right to write, and nothing has happened yet.
pub(crate) fn of_beginning(error: sqlx::Error) -> StoreError {
    let (kind, words) = meaning(&error);
    let kind = if is_conflict(&error) { StoreErrorKind::Busy } else { kind };
    StoreError::new(kind, "begin", words).with_source(error)
}

/// Returns true if the database is unavailable now; else the error is the statement's own.
pub(crate) fn is_unavailable(error: &sqlx::Error) -> bool {
    matches!(meaning(error).0, StoreErrorKind::Unavailable | StoreErrorKind::Busy)
}

/// Returns true if an error in a statement inside a transaction is a conflict with another one,
/// after which this one must start again.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    matches!(code(error), Some(BUSY | LOCKED))
}

/// Converts an error in a statement inside the user's transaction.
pub(crate) fn in_transaction(operation: &'static str, error: sqlx::Error) -> StoreError {
    if !is_conflict(&error) {
        return store_error(operation, error);
    }
    StoreError::new(
        StoreErrorKind::Conflict,
        operation,
        "another connection is writing, or has written since this transaction first read; roll back and start again, and begin with \
         BEGIN IMMEDIATE, which waits for its turn at the start",
    )
    .with_source(error)
}

/// Returns true if there was no transaction to end: SQLite itself has rolled it back, after a full
/// disk or another error of the machine's.
pub(crate) fn is_no_transaction(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.message().ends_with("no transaction is active"))
}

/// Returns true if a commit with this error certainly did not happen.
pub(crate) fn is_surely_not_committed(error: &sqlx::Error) -> bool {
    // Found before anything is written to the log. After an input or output error, the commit may
    // or may not be in it.
    matches!(code(error), Some(BUSY | LOCKED | READ_ONLY | CONSTRAINT | FULL)) || is_no_transaction(error)
}

fn meaning(error: &sqlx::Error) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind as Kind;
    match error {
        sqlx::Error::PoolTimedOut => {
            return (
                Kind::Busy,
                "timed out waiting for a connection of the pool; transactions may be held open elsewhere",
            );
        }
        sqlx::Error::InvalidSavePointStatement | sqlx::Error::BeginFailed => {
            return (
                Kind::Unavailable,
                "a connection of the pool is in a transaction that SQLite has ended; close such connections when they are released",
            );
        }
        sqlx::Error::PoolClosed => return (Kind::Unavailable, "the connection pool is closed"),
        sqlx::Error::WorkerCrashed | sqlx::Error::Io(_) => {
            return (Kind::Unavailable, "the connection to the database file was lost");
        }
        _ => {}
    }
    let Some(code) = code(error) else { return (Kind::Other, "unexpected") };
    match code {
        BUSY | LOCKED => (
            Kind::Unavailable,
            "database is locked: another connection has been writing for longer than the busy timeout; keep transactions short",
        ),
        READ_ONLY => (
            Kind::Unavailable,
            "the database is read-only; make the file and its directory writable for this user",
        ),
        FULL => (Kind::Unavailable, "the disk is full; make room"),
        NO_MEMORY => (Kind::Unavailable, "the process is out of memory"),
        PROTOCOL | SCHEMA => (Kind::Unavailable, "other connections blocked every attempt; it is retried"),
        NO_LARGE_FILES => (Kind::Unavailable, "this system does not support files as large as this one"),
        INPUT_OUTPUT => (Kind::Unavailable, "disk I/O error; check the disk and the log of the system"),
        CANNOT_OPEN => {
            (Kind::Unavailable, "the file can't be opened; check that its directory exists and is writable")
        }
        PERMISSION | AUTHORIZATION => (Kind::NotPermitted, "permission denied by the database"),
        CONSTRAINT => (Kind::Invalid, "a constraint refused the row"),
        CORRUPT => (Kind::Other, "the database file is damaged; restore it from a backup"),
        NOT_A_DATABASE => {
            (Kind::Other, "the file is not a SQLite database, or an encrypted one; check the path")
        }
        _ => schema_meaning(error),
    }
}

/// Errors that SQLite distinguishes by their text only: they occur when a statement meets tables
/// that it was not written for.
fn schema_meaning(error: &sqlx::Error) -> (StoreErrorKind, &'static str) {
    let text = error.as_database_error().map(|error| error.message().to_owned()).unwrap_or_default();
    if text.starts_with("no such table: ") && text.contains("outbox_") {
        (StoreErrorKind::NotMigrated, NOT_MIGRATED)
    } else if text.starts_with("no such column: ")
        || text.contains(" has no column named ")
        || text.starts_with("no such table: ")
    {
        (StoreErrorKind::SchemaAltered, ALTERED)
    } else {
        (StoreErrorKind::Other, "unexpected")
    }
}

/// The remedy for missing tables.
pub(crate) const NOT_MIGRATED: &str =
    "the tables of the outbox do not exist, or are older than this version; call `migrate` on the store";

/// The remedy for altered tables.
pub(crate) const ALTERED: &str =
    "the tables of the outbox differ from those of the migrations; undo the change, or restore them";
