//! Errors of a unit of work.

use std::error::Error;
use std::fmt;

use outbox_contract::backend::Blame;
use outbox_contract::{AppendError, MessageError, StoreError, StoreErrorKind};

use super::version::VersionMismatch;
use crate::error_text::{causes, with_causes};
use crate::mediator::{HandlerError, Overrun};

/// Reason why a unit of work did not commit. The database contains nothing of it, except perhaps
/// after [`Unknown`](Self::Unknown).
#[non_exhaustive]
pub enum WorkError {
    /// Conflict with another transaction: a deadlock, a serialization failure, a
    /// [`VersionMismatch`]. Restart the whole work, reading included;
    /// [`Mediator::run`](crate::Mediator::run) does.
    Conflict(Box<WorkError>),
    /// The connection was lost during the commit: **it may be committed or not**. Read the database
    /// before you repeat the work.
    Unknown(StoreError),
    /// A handler failed.
    Handler {
        /// Wire type of the event.
        event: &'static str,
        /// Rust name of the handler.
        handler: &'static str,
        /// The handler's error.
        source: HandlerError,
    },
    /// The closure of [`Mediator::run`](crate::Mediator::run) failed.
    Failed(HandlerError),
    /// Handlers publish events because of one another, beyond the maximum chain length.
    TooDeep {
        /// The event types in order, down to the one that exceeded the limit.
        chain: Vec<&'static str>,
    },
    /// The unit of work has more events than the limit.
    TooMany {
        /// The limit.
        most: usize,
    },
    /// An event is not a valid message, or was not appended.
    Append(AppendError),
    /// The store failed.
    Store(StoreError),
}

impl WorkError {
    /// Converts the error of a closure. An error of this type stays unchanged.
    pub(crate) fn of_closure(error: HandlerError) -> Self {
        error.downcast::<Self>().map_or_else(Self::Failed, |ours| *ours)
    }

    /// Returns the stable code of this error, or of the error inside, as the book's page on errors
    /// lists it.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Conflict(_) => "OBX-WORK-CONFLICT",
            Self::Unknown(_) => "OBX-WORK-UNKNOWN",
            Self::Handler { .. } => "OBX-WORK-HANDLER",
            Self::Failed(_) => "OBX-WORK-FAILED",
            Self::TooDeep { .. } => "OBX-WORK-TOO-DEEP",
            Self::TooMany { .. } => "OBX-WORK-TOO-MANY",
            Self::Append(error) => error.code(),
            Self::Store(error) => error.code(),
        }
    }

    /// Returns true if the same unit of work, retried from its beginning, can succeed without
    /// intervention. False if the result is unknown: then it may be committed already.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Conflict(_) => true,
            Self::Append(error) => error.is_retryable(),
            Self::Store(error) => error.is_retryable(),
            Self::Unknown(_)
            | Self::Handler { .. }
            | Self::Failed(_)
            | Self::TooDeep { .. }
            | Self::TooMany { .. } => false,
        }
    }

    /// Returns the first error of this type among this one and its causes: for a caller's own error
    /// type, or a [`VersionMismatch`].
    #[must_use]
    pub fn find<T: Error + 'static>(&self) -> Option<&T> {
        causes(self).find_map(|error| error.downcast_ref())
    }
}

/// Returns the cause of a store's error. Tables and rights that are missing are missing for every
/// message: none of them is at fault.
pub(crate) const fn blame_of_store(kind: StoreErrorKind) -> Blame {
    match kind {
        StoreErrorKind::Conflict => Blame::Conflict,
        StoreErrorKind::Unavailable
        | StoreErrorKind::Busy
        | StoreErrorKind::NotMigrated
        | StoreErrorKind::SchemaTooNew
        | StoreErrorKind::SchemaAltered
        | StoreErrorKind::NotPermitted
        | StoreErrorKind::Unsupported => Blame::Environment,
        _ => Blame::Handler,
    }
}

/// Returns the cause of an error: a conflict takes precedence, if the error or one of its causes is
/// one. `by_driver` knows the errors of the store's driver.
pub(crate) fn blame(
    error: &(dyn Error + 'static),
    by_driver: impl Fn(&(dyn Error + 'static)) -> Blame,
) -> Blame {
    let said = causes(error).map(|error| {
        let store = error.downcast_ref::<StoreError>().map(|error| blame_of_store(error.kind()));
        let version = error
            .downcast_ref::<VersionMismatch>()
            .map(|version| if version.is_conflict() { Blame::Conflict } else { Blame::Handler });
        store.or(version).unwrap_or_else(|| by_driver(error))
    });
    said.fold(Blame::Handler, |before, next| match (before, next) {
        (Blame::Conflict, _) | (_, Blame::Conflict) => Blame::Conflict,
        (Blame::Environment, _) | (_, Blame::Environment) => Blame::Environment,
        (Blame::Handler, Blame::Handler) => Blame::Handler,
    })
}

impl fmt::Display for WorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict(error) => {
                write!(f, "rolled back, conflict with another transaction; retry from the beginning: {error}")
            }
            Self::Unknown(error) => write!(
                f,
                "the result of the commit is unknown; read the database before you repeat the work: {error}"
            ),
            Self::Handler { event, handler, source } => {
                let error = with_causes(&**source);
                write!(f, "rolled back, the handler {handler} of {event} failed: {error}")
            }
            Self::Failed(error) => write!(f, "rolled back: {}", with_causes(&**error)),
            Self::TooDeep { chain } => write!(
                f,
                "rolled back, the chain of events that handlers publish is too long: {}; break the cycle, or raise max_depth",
                chain.join(" -> ")
            ),
            Self::TooMany { most } => write!(
                f,
                "rolled back, more than {most} events in one unit of work; divide it, or raise max_events"
            ),
            Self::Append(error) => write!(f, "rolled back: {error}"),
            Self::Store(error) => write!(f, "not committed: {error}"),
        }
    }
}

/// The text: a `main` that returns an error prints it so.
impl fmt::Debug for WorkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for WorkError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Conflict(error) => Some(error),
            Self::Unknown(error) | Self::Store(error) => Some(error),
            Self::Handler { source, .. } | Self::Failed(source) => Some(&**source),
            Self::Append(error) => Some(error),
            Self::TooDeep { .. } | Self::TooMany { .. } => None,
        }
    }
}

impl From<Overrun> for WorkError {
    fn from(overrun: Overrun) -> Self {
        match overrun {
            Overrun::Deep(chain) => Self::TooDeep { chain },
            Overrun::Many(most) => Self::TooMany { most },
        }
    }
}

impl From<AppendError> for WorkError {
    fn from(error: AppendError) -> Self {
        Self::Append(error)
    }
}

impl From<MessageError> for WorkError {
    fn from(error: MessageError) -> Self {
        Self::Append(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_lacks_is_no_fault_of_a_message() {
        let caused = |kind| {
            let error = WorkError::Store(StoreError::new(kind, "append", "words"));
            blame(&error, |_| Blame::Handler)
        };
        assert_eq!(caused(StoreErrorKind::Conflict), Blame::Conflict);
        for kind in [StoreErrorKind::NotPermitted, StoreErrorKind::SchemaAltered, StoreErrorKind::NotMigrated]
        {
            assert_eq!(caused(kind), Blame::Environment, "{kind:?}");
        }
        for kind in [StoreErrorKind::Invalid, StoreErrorKind::NotInTransaction, StoreErrorKind::Other] {
            assert_eq!(caused(kind), Blame::Handler, "{kind:?}");
        }
    }
}
