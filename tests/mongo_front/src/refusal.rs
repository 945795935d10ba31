//! Refusals of commands: MongoDB's codes and labels, and DocumentDB's errors that they translate.

use bson::{Document, doc};

/// The label of an error after which a client may retry its whole transaction.
pub(crate) const TRANSIENT: &str = "TransientTransactionError";

/// MongoDB's number and name of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code {
    pub(crate) number: i32,
    pub(crate) name: &'static str,
}

const fn code(number: i32, name: &'static str) -> Code {
    Code { number, name }
}

pub(crate) const BAD_VALUE: Code = code(2, "BadValue");
pub(crate) const UNKNOWN: Code = code(8, "UnknownError");
pub(crate) const UNAUTHORIZED: Code = code(13, "Unauthorized");
pub(crate) const AUTHENTICATION_FAILED: Code = code(18, "AuthenticationFailed");
pub(crate) const ILLEGAL_OPERATION: Code = code(20, "IllegalOperation");
pub(crate) const NAMESPACE_NOT_FOUND: Code = code(26, "NamespaceNotFound");
pub(crate) const CURSOR_NOT_FOUND: Code = code(43, "CursorNotFound");
pub(crate) const MAX_TIME: Code = code(50, "MaxTimeMSExpired");
pub(crate) const COMMAND_NOT_FOUND: Code = code(59, "CommandNotFound");
pub(crate) const WRITE_CONFLICT: Code = code(112, "WriteConflict");
pub(crate) const TRANSACTION_TOO_OLD: Code = code(225, "TransactionTooOld");
pub(crate) const NO_SUCH_TRANSACTION: Code = code(251, "NoSuchTransaction");
pub(crate) const TRANSACTION_COMMITTED: Code = code(256, "TransactionCommitted");
pub(crate) const DUPLICATE_KEY: Code = code(11_000, "DuplicateKey");

/// PostgreSQL's and DocumentDB's states, and MongoDB's codes for them.
const STATES: &[(&str, Code)] = &[
    ("23505", DUPLICATE_KEY),
    ("23P01", DUPLICATE_KEY),
    ("40001", WRITE_CONFLICT),
    ("40P01", WRITE_CONFLICT),
    ("55P03", WRITE_CONFLICT),
    ("57014", MAX_TIME),
    ("M0001", BAD_VALUE),
    ("M0003", code(9, "FailedToParse")),
    ("M000M", code(66, "ImmutableField")),
    ("M000U", code(115, "CommandNotSupported")),
    ("M001C", DUPLICATE_KEY),
];

impl Code {
    /// Returns MongoDB's code for an SQLSTATE. Rare ones share one code here.
    pub(crate) fn of_state(state: &str) -> Self {
        STATES.iter().find(|(known, _)| *known == state).map_or(UNKNOWN, |(_, code)| *code)
    }

    /// Like [`of_state`](Self::of_state), for a state as the extension puts it into write errors:
    /// PostgreSQL packs its five characters into 6 bits each.
    pub(crate) fn of_packed_state(packed: i32) -> Self {
        let character = |place: i32| {
            let bits = u8::try_from((packed >> (6 * place)) & 0x3f).unwrap_or_default();
            char::from(bits + b'0')
        };
        Self::of_state(&(0..5).map(character).collect::<String>())
    }
}

/// Reason why a command was not run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Refusal {
    /// The client receives the reason.
    Error {
        /// The kind of the error.
        code: Code,
        /// The error as text.
        message: String,
        /// Labels that tell a client what it may do.
        labels: Vec<String>,
    },
    /// The connection ends without an answer: the outcome is not known here either, or must not be
    /// known there.
    Hangup,
}

impl Refusal {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self::Error { code, message: message.into(), labels: Vec::new() }
    }

    /// An error after which the client may retry its whole transaction.
    pub(crate) fn transient(code: Code, message: impl Into<String>) -> Self {
        Self::Error { code, message: message.into(), labels: vec![TRANSIENT.to_owned()] }
    }

    /// Returns the same error in a transaction: a conflict there can be retried from the
    /// transaction's start.
    pub(crate) fn in_transaction(self) -> Self {
        match self {
            Self::Error { code: WRITE_CONFLICT, message, .. } => Self::transient(WRITE_CONFLICT, message),
            other => other,
        }
    }

    /// Returns the answer for it; `None` if there is none.
    pub(crate) fn answer(&self) -> Option<Document> {
        let Self::Error { code, message, labels } = self else { return None };
        let mut answer = doc! { "ok": 0.0, "errmsg": message, "code": code.number, "codeName": code.name };
        if !labels.is_empty() {
            answer.insert("errorLabels", labels.clone());
        }
        Some(answer)
    }
}

impl From<tokio_postgres::Error> for Refusal {
    fn from(error: tokio_postgres::Error) -> Self {
        use std::error::Error as _;
        match error.as_db_error() {
            // If an administrator ends the engine's connection (class 57P), the client's ends too,
            // as if MongoDB had gone away itself.
            Some(database) if database.code().code().starts_with("57P") => Self::Hangup,
            Some(database) => {
                let state = database.code().code();
                Self::new(Code::of_state(state), format!("{} (state {state})", database.message()))
            }
            None if error.is_closed() || error.source().is_some_and(|cause| cause.is::<std::io::Error>()) => {
                Self::Hangup
            }
            None => Self::new(UNKNOWN, format!("what came from the engine: {error}")),
        }
    }
}
