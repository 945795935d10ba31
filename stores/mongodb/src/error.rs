//! From what MongoDB and its driver say to what a caller can act on.
//!
//! MongoDB ends a transaction at the first error in it. An error that says that another transaction
//! was in the way is known by its code as well as by the driver's label: not every server that
//! speaks the protocol sends the label.

use mongodb::error::{
    Error, ErrorKind, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT, WriteFailure,
};
use outbox_contract::{StoreError, StoreErrorKind};

// Codes of the server, from its list of error codes, which it keeps stable.
const UNAUTHORIZED: i32 = 13;
const AUTHENTICATION_FAILED: i32 = 18;
const ILLEGAL_OPERATION: i32 = 20;
const LOCK_TIMEOUT: i32 = 24;
const NAMESPACE_NOT_FOUND: i32 = 26;
/// A namespace that is there already.
pub(crate) const NAMESPACE_EXISTS: i32 = 48;
const MAX_TIME_EXPIRED: i32 = 50;
const COMMAND_NOT_FOUND: i32 = 59;
const WRITE_CONCERN_TIMEOUT: i32 = 64;
/// An index of the same name that was made otherwise.
pub(crate) const INDEX_OPTIONS_CONFLICT: i32 = 85;
/// An index of the same name over other fields.
pub(crate) const INDEX_KEY_CONFLICT: i32 = 86;
const UNSATISFIABLE_WRITE_CONCERN: i32 = 100;
const WRITE_CONFLICT: i32 = 112;
const COMMAND_NOT_SUPPORTED: i32 = 115;
const DOCUMENT_INVALID: i32 = 121;
const TRANSACTION_TOO_OLD: i32 = 225;
const SNAPSHOT_UNAVAILABLE: i32 = 246;
const NO_SUCH_TRANSACTION: i32 = 251;
/// A transaction that was open for too long, and was ended for it.
const TRANSACTION_TOO_LONG: i32 = 290;
const DOCUMENT_TOO_LARGE: i32 = 10_334;
const DUPLICATE_KEY: i32 = 11_000;
const OUT_OF_DISK: i32 = 14_031;
/// Error of a server without an operation log for a change stream.
const NO_CHANGE_STREAM: i32 = 40_573;
/// No primary, one that steps down, a secondary, a server that stops or recovers.
const NOT_PRIMARY: [i32; 9] = [91, 189, 10_058, 10_107, 11_600, 11_602, 13_435, 13_436, 133];

/// Errors of a server that is cut off from others, was told by an operator to stop, or is out of
/// time, memory, locks or connections.
const CUT_OFF_OR_EXHAUSTED: [i32; 16] =
    [6, 7, 89, 134, 146, 202, 208, 216, 237, 262, 292, 317, 384, 462, 9_001, 11_601];

/// Failure of a step: the driver's error, or one that already has the remedy.
#[derive(Debug)]
pub(crate) enum Failed {
    Driver(Error),
    Store(StoreError),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Driver(error)
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Failed {
    /// Returns true if another transaction was in the way: the whole can be started again.
    pub(crate) fn is_conflict(&self) -> bool {
        match self {
            Self::Driver(error) => is_conflict(error),
            Self::Store(error) => error.kind() == StoreErrorKind::Conflict,
        }
    }

    /// In a step of our own.
    pub(crate) fn in_step(self, operation: &'static str) -> StoreError {
        match self {
            Self::Driver(error) => store_error(operation, error),
            Self::Store(error) => error,
        }
    }
}

/// The server's code, where the error is one of the server's.
pub(crate) fn code(error: &Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Command(error) => Some(error.code),
        ErrorKind::Write(WriteFailure::WriteError(error)) => Some(error.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(error)) => Some(error.code),
        ErrorKind::InsertMany(error) => {
            let write = error.write_errors.iter().flatten().next().map(|error| error.code);
            write.or(error.write_concern_error.as_ref().map(|error| error.code))
        }
        _ => None,
    }
}

pub(crate) fn is_network(error: &Error) -> bool {
    matches!(
        &*error.kind,
        ErrorKind::Io(_)
            | ErrorKind::ConnectionPoolCleared { .. }
            | ErrorKind::ServerSelection { .. }
            | ErrorKind::DnsResolve { .. }
            | ErrorKind::Shutdown
    )
}

/// Returns true if one of several writes was refused because another transaction was in the way.
pub(crate) const fn is_conflict_code(code: i32) -> bool {
    matches!(code, WRITE_CONFLICT | DUPLICATE_KEY | LOCK_TIMEOUT)
}

/// Returns true if a conflict with another transaction has ended this one.
pub(crate) fn is_conflict(error: &Error) -> bool {
    let by_code = matches!(
        code(error),
        Some(
            WRITE_CONFLICT
                | NO_SUCH_TRANSACTION
                | TRANSACTION_TOO_LONG
                | TRANSACTION_TOO_OLD
                | SNAPSHOT_UNAVAILABLE
                | LOCK_TIMEOUT
        )
    );
    // The driver puts the label on broken connections too: then the server is unreachable, and
    // there is no conflict.
    by_code || (error.contains_label(TRANSIENT_TRANSACTION_ERROR) && !is_network(error) && !is_away(error))
}

/// A primary that is not one, in the words of the server.
fn is_away(error: &Error) -> bool {
    code(error).is_some_and(|code| NOT_PRIMARY.contains(&code))
}

/// Returns true for the code of a server that is unavailable, or out of something that it needs.
pub(crate) fn is_away_or_exhausted(code: i32) -> bool {
    NOT_PRIMARY.contains(&code)
        || CUT_OFF_OR_EXHAUSTED.contains(&code)
        || matches!(
            code,
            MAX_TIME_EXPIRED | WRITE_CONCERN_TIMEOUT | UNSATISFIABLE_WRITE_CONCERN | OUT_OF_DISK
        )
}

/// Returns true if the server refuses a document: it is too large, or somebody's validator of the
/// collection says no.
pub(crate) fn is_refusal(error: &StoreError) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<Error>());
    cause.is_some_and(|cause| matches!(code(cause), Some(DOCUMENT_INVALID | DOCUMENT_TOO_LARGE)))
}

/// Returns true if a key was there already.
pub(crate) fn is_duplicate(error: &Error) -> bool {
    code(error) == Some(DUPLICATE_KEY)
}

/// Returns true if a commit may have happened though it failed.
pub(crate) fn is_unknown_commit(error: &Error) -> bool {
    if error.contains_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) {
        return true;
    }
    if is_forgotten(error) && !error.contains_label(TRANSIENT_TRANSACTION_ERROR) {
        return true;
    }
    !is_conflict(error) && !matches!(&*error.kind, ErrorKind::Transaction { .. })
}

/// Returns true if a server does not know a transaction any more. It may have forgotten one that
/// was committed, and then it leaves the label out that says that all of it can be done again.
fn is_forgotten(error: &Error) -> bool {
    matches!(code(error), Some(NO_SUCH_TRANSACTION | TRANSACTION_TOO_LONG))
}

/// Converts an error of a commit that may have happened.
pub(crate) fn unknown_commit(error: Error) -> StoreError {
    if !is_conflict(&error) {
        return store_error("commit", error);
    }
    // Whoever started again from the beginning could do all of it twice.
    let words = "the server no longer knows the transaction, and the result of the commit is unknown; read what it would have written before you repeat it";
    StoreError::new(StoreErrorKind::Unavailable, "commit", words).with_source(error)
}

/// Returns true if this server has no change streams at all, or none for this user.
pub(crate) fn has_no_change_streams(error: &Error) -> bool {
    matches!(
        code(error),
        Some(COMMAND_NOT_SUPPORTED | NO_CHANGE_STREAM | COMMAND_NOT_FOUND | UNAUTHORIZED | ILLEGAL_OPERATION)
    )
}

/// Returns the meaning of an error.
pub(crate) fn store_error(operation: &'static str, error: Error) -> StoreError {
    let (kind, words) = meaning(&error);
    StoreError::new(kind, operation, words).with_source(error)
}

/// The kind of an error, and what to do, in words that show nothing of what was given. One table,
/// however long: an error is looked up in one place.
pub(crate) fn meaning(error: &Error) -> (StoreErrorKind, &'static str) {
    use StoreErrorKind as Kind;
    if is_conflict(error) {
        return (
            Kind::Conflict,
            "write conflict with another transaction, or an earlier error has ended this one; abort it and start again from its beginning",
        );
    }
    match &*error.kind {
        ErrorKind::ServerSelection { .. } => {
            return (
                Kind::Unavailable,
                "no primary can be reached; check the addresses, the name of the replica set, and whether the servers require TLS",
            );
        }
        ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } => {
            return (Kind::Unavailable, "the connection to the server was lost");
        }
        ErrorKind::DnsResolve { .. } => {
            return (
                Kind::Unavailable,
                "the host name of the server can't be resolved; check the address and DNS",
            );
        }
        ErrorKind::Shutdown => return (Kind::Unavailable, "the client was shut down; create another one"),
        ErrorKind::Authentication { .. } => return (Kind::NotPermitted, NOT_LET_IN),
        ErrorKind::InvalidTlsConfig { .. } => {
            return (
                Kind::NotPermitted,
                "the TLS settings are invalid; check tlsCAFile and tlsCertificateKeyFile",
            );
        }
        ErrorKind::InvalidArgument { message, .. } if message.contains("same client") => {
            return (
                Kind::Invalid,
                "the session belongs to another client than the store; start it on the client that the store was created with",
            );
        }
        ErrorKind::InvalidArgument { .. } => {
            return (
                Kind::Invalid,
                "the driver rejected an argument; check the address and the options of the client",
            );
        }
        ErrorKind::SessionsNotSupported | ErrorKind::IncompatibleServer { .. } => {
            return (Kind::Unsupported, NO_TRANSACTIONS);
        }
        ErrorKind::Transaction { .. } => {
            return (
                Kind::NotInTransaction,
                "the session has no open transaction; call start_transaction on it first",
            );
        }
        _ => {}
    }
    let Some(code) = code(error) else { return (Kind::Other, "unexpected") };
    match code {
        UNAUTHORIZED => (
            Kind::NotPermitted,
            "the user lacks a right; grant readWrite on the database of the outbox, and dbAdmin to whoever migrates",
        ),
        AUTHENTICATION_FAILED => (Kind::NotPermitted, NOT_LET_IN),
        ILLEGAL_OPERATION => (Kind::Unsupported, NO_TRANSACTIONS),
        NAMESPACE_NOT_FOUND => (Kind::NotMigrated, NOT_MIGRATED),
        MAX_TIME_EXPIRED => (
            Kind::Unavailable,
            "the server exceeded the time limit of the operation; find out what it waits for, or raise the limit",
        ),
        WRITE_CONCERN_TIMEOUT | UNSATISFIABLE_WRITE_CONCERN => (
            Kind::Unavailable,
            "a majority of the replica set did not confirm the write, and its result is unknown; check the members of the set",
        ),
        INDEX_OPTIONS_CONFLICT | INDEX_KEY_CONFLICT => (Kind::SchemaAltered, ALTERED),
        DOCUMENT_INVALID => (
            Kind::SchemaAltered,
            "document failed validation: a validator of the collection rejects documents of the outbox; remove it: collMod with validator: {}",
        ),
        DOCUMENT_TOO_LARGE => (
            Kind::Invalid,
            "the document is over the server's limit of 16 MiB; store the data elsewhere and send a reference",
        ),
        OUT_OF_DISK => (Kind::Unavailable, "the server's disk is full; make room"),
        code if NOT_PRIMARY.contains(&code) => (
            Kind::Unavailable,
            "this server is not the primary, or is shutting down; connect with all addresses and the name of the replica set",
        ),
        code if is_away_or_exhausted(code) => (
            Kind::Unavailable,
            "the server canceled the operation, is cut off from other members, or is out of memory, locks or connections; check its log",
        ),
        _ => (Kind::Other, "unexpected"),
    }
}

const NOT_LET_IN: &str = "authentication failed; check the user, the password, and authSource in the address";

/// The remedy for a server that can't do transactions.
pub(crate) const NO_TRANSACTIONS: &str = "this server has no transactions: it is not a member of a replica set; start it as a replica set \
     (of one member, if need be), and name the set in the address";

/// The remedy for collections that are not there.
pub(crate) const NOT_MIGRATED: &str =
    "the collections of the outbox do not exist, or are older than this version; call `migrate` on the store";

/// The remedy for collections that are not as they were made.
pub(crate) const ALTERED: &str = "the collections of the outbox differ from those that `migrate` creates; undo the change, or restore them";
