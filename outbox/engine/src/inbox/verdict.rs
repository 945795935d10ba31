//! Verdicts on messages, and the meaning of errors for them.

use std::fmt;

use outbox_contract::backend::Blame;
use outbox_contract::{Failure, StoreError, StoreErrorKind};

use crate::mediator::HandlerError;
use crate::unit_of_work::{VersionMismatch, blame_of_store};

/// Verdict on one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is finished: acknowledge it.
    Done(Done),
    /// Its handler failed. Counts as an attempt.
    Failed(Failure),
    /// It can never be handled.
    Rejected(Failure),
    /// This program is too old for it. It waits for a newer one, with its key, and nothing is
    /// counted.
    TooNew(Failure),
    /// Others were in the way (a conflict), for as long as it was tried: nothing is counted.
    Again(Failure),
    /// The same, by its handler's own word: it has found another version than it expected, each
    /// time.
    Outdated(Failure),
    /// The database, or the way to it, failed under its handler: nothing is counted, unless this
    /// message alone meets it each time.
    Environment(Failure),
    /// It was not tried: an earlier message of its key was not finished, its handler had too much
    /// to do, or there was no time left.
    NotTried,
}

/// Ending of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// Handled, in a transaction that is committed.
    Handled,
    /// It had been handled before.
    Duplicate,
    /// No handler wants it.
    Ignored,
    /// Others have finished it: it does not wait any more where it was read.
    Gone,
    /// It waits in the store.
    Stored,
}

/// Why a transaction came to nothing.
#[derive(Debug)]
pub(crate) enum TransactionError {
    /// The handler of one message failed or rejected it.
    Handler(Verdict),
    /// Another transaction was in the way, or it turned out not to be committed: start again from
    /// the beginning.
    Again(Failure),
    /// The handler found another version than it expected: start again from the beginning.
    Outdated(Failure),
    /// The session, the server or the way to it failed, behind a transaction that had begun well:
    /// try the message again after a pause.
    Environment(Failure),
    /// Handlers took so long that what is behind this many messages would not be handled in time.
    Slow(usize),
    /// No transaction was available: nothing was tried.
    NoTurn,
    /// The store is unavailable, or the result of the commit is unknown: memory can't be relied on.
    Store(StoreFailure),
}

/// Why an inbox, or a part of it, must drop what it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreFailure {
    /// The store is unavailable; nothing was committed.
    Unavailable(String),
    /// A commit may have happened or not.
    Unknown(String),
}

impl fmt::Display for StoreFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(error) => write!(f, "the store is unavailable: {error}"),
            Self::Unknown(error) => write!(f, "the result of a commit is unknown: {error}"),
        }
    }
}

impl TransactionError {
    /// Translates an error of the store, in a transaction that is not committed.
    pub(crate) fn of(error: &StoreError) -> Self {
        if error.kind() == StoreErrorKind::Conflict {
            Self::conflict(error)
        } else {
            Self::Store(StoreFailure::Unavailable(error.to_string()))
        }
    }

    /// Translates an error of the store behind a handler, at the append and the commit. If it is
    /// neither a conflict nor the environment, it is what the handler wrote: a constraint that is
    /// checked at the commit, a failed query whose error the handler kept to itself. That is its
    /// message's failure. A session that is gone by now is not a store that is gone: a handler that
    /// is too slow for the server's limits finds the same. Neither must stop all others; a store
    /// that is away shows at the next transaction.
    pub(crate) fn of_work(what: &'static str, error: &StoreError) -> Self {
        match blame_of_store(error.kind()) {
            Blame::Conflict => Self::conflict(error),
            Blame::Environment => Self::environment(error),
            Blame::Handler => Self::Handler(Verdict::Failed(Failure::new(what, error.to_string()))),
        }
    }

    pub(crate) const fn unavailable(words: String) -> Self {
        Self::Store(StoreFailure::Unavailable(words))
    }

    /// Translates a conflict that a handler has returned.
    pub(crate) fn of_handler(error: HandlerError) -> Self {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&*error);
        while let Some(error) = cause {
            if error.is::<VersionMismatch>() {
                return Self::Outdated(Failure::new("conflict", error.to_string()));
            }
            cause = error.source();
        }
        Self::conflict(error)
    }

    pub(crate) fn environment(error: impl fmt::Display) -> Self {
        Self::Environment(Failure::new("environment", error.to_string()))
    }

    pub(crate) fn conflict(error: impl fmt::Display) -> Self {
        Self::Again(Failure::new("conflict", error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_conflict_is_started_again() {
        let error = |kind| StoreError::new(kind, "deduplicate", "tested");
        assert!(matches!(TransactionError::of(&error(StoreErrorKind::Conflict)), TransactionError::Again(_)));
        for kind in [StoreErrorKind::Unavailable, StoreErrorKind::NotPermitted, StoreErrorKind::Other] {
            assert!(
                matches!(
                    TransactionError::of(&error(kind)),
                    TransactionError::Store(StoreFailure::Unavailable(_))
                ),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn what_a_handler_has_spoilt_is_its_own_failure() {
        let meaning = |kind| TransactionError::of_work("commit", &StoreError::new(kind, "commit", "tested"));
        assert!(matches!(meaning(StoreErrorKind::Other), TransactionError::Handler(Verdict::Failed(_))));
        assert!(matches!(meaning(StoreErrorKind::Unavailable), TransactionError::Environment(_)));
        assert!(matches!(meaning(StoreErrorKind::Conflict), TransactionError::Again(_)));
    }
}
