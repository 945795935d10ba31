//! Start of a relay or an inbox: its error, its warning, and answers that it waits for.

use std::fmt;
use std::time::Duration;

use outbox_contract::{Route, StoreError, StoreErrorKind, TransportError, TransportErrorKind};

/// Waits for a store's answer before anything is started on it.
pub(crate) async fn answered_in_time<T>(
    limit: Duration,
    operation: &'static str,
    answer: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
        let cause = format!("timeout, no answer within {limit:?}; check the store, or raise store_timeout");
        Err(StoreError::new(StoreErrorKind::Unavailable, operation, cause))
    })
}

/// Waits for the check of a transport, at most for `limit`.
pub(crate) async fn reached_in_time(
    limit: Duration,
    answer: impl Future<Output = Result<(), TransportError>>,
) -> Result<(), TransportError> {
    tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
        let cause = format!("timeout, no answer within {limit:?}; check the broker");
        Err(TransportError::new(TransportErrorKind::Unavailable, "check", cause))
    })
}

/// Warns that a panic anywhere ends the whole process, if it was built so.
pub(crate) fn warn_of_abort() {
    if cfg!(panic = "abort") {
        tracing::warn!(
            "built with panic = \"abort\": a panic in a transport or a handler ends the process, and \
             the same message ends it again after a restart; build with panic = \"unwind\""
        );
    }
}

/// Error of a relay or an inbox that was not started. Nothing runs.
#[non_exhaustive]
pub enum StartError {
    /// The configuration is invalid. Holds every problem.
    Config(Vec<String>),
    /// The store is unreachable or not ready.
    Store(StoreError),
    /// The transport of a route reported an error that no retry can cure.
    Transport(Route, TransportError),
    /// An actor could not be started.
    Runtime(String),
}

impl StartError {
    /// Returns the stable code of this error, or of the error inside, as the book's page on errors
    /// lists it.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Config(_) => "OBX-START-CONFIG",
            Self::Store(error) => error.code(),
            Self::Transport(_, error) => error.code(),
            Self::Runtime(_) => "OBX-START-RUNTIME",
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(problems) => {
                write!(f, "not started, invalid configuration [{}]:", self.code())?;
                problems.iter().try_for_each(|problem| write!(f, "\n- {problem}"))
            }
            Self::Store(error) => write!(f, "not started: {error}"),
            Self::Transport(route, error) => write!(f, "not started: route {route}: {error}"),
            Self::Runtime(error) => write!(f, "not started: {error} [{}]", self.code()),
        }
    }
}

/// The text: a `main` that returns an error prints it so.
impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store(error) => Some(error),
            Self::Transport(_, error) => Some(error),
            Self::Config(_) | Self::Runtime(_) => None,
        }
    }
}
