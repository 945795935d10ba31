//! Unavailable servers, and tests that skip because of them.

use crate::notes;

/// Reason why a server is unavailable.
#[derive(Clone, Debug)]
pub enum Missing {
    /// The server is not on this machine: a test that needs it skips.
    Absent {
        /// Name of the server, such as `PostgreSQL 18`.
        server: String,
        /// The missing part, and the remedy.
        reason: String,
    },
    /// The server is on this machine and did not start: a test that needs it fails.
    Failed {
        /// Name of the server, such as `PostgreSQL 18`.
        server: String,
        /// The error, with the end of its log.
        reason: String,
    },
}

impl Missing {
    pub(crate) fn absent(server: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Absent { server: server.into(), reason: reason.into() }
    }

    pub(crate) fn failed(server: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Failed { server: server.into(), reason: reason.into() }
    }
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent { server, reason } => write!(f, "no {server}: {reason}"),
            Self::Failed { server, reason } => write!(f, "{server} failed: {reason}"),
        }
    }
}

impl std::error::Error for Missing {}

/// Handling of an unavailable server by a test.
pub trait OrSkip<T> {
    /// Returns the server; `None` if the test must skip, which is reported then (see [`skip`]).
    ///
    /// # Panics
    ///
    /// If the server is installed and did not start, and as [`skip`] does.
    fn or_skip(self) -> Option<T>;
}

impl<T> OrSkip<T> for Result<T, Missing> {
    #[track_caller]
    fn or_skip(self) -> Option<T> {
        match self {
            Ok(server) => Some(server),
            Err(missing @ Missing::Absent { .. }) => {
                skip(&missing.to_string());
                None
            }
            Err(failed @ Missing::Failed { .. }) => panic!("{failed}"),
        }
    }
}

/// Records that the running test skips: on standard error, and as a line of the file that
/// `OUTBOX_SKIPS` names, which `tests/run` prints at its end. The test must return at once.
///
/// # Panics
///
/// If `OUTBOX_REQUIRE_SERVERS` is `1`: then a skip is a failure.
#[track_caller]
pub fn skip(reason: &str) {
    let thread = std::thread::current();
    let line = format!("{}: {reason}", thread.name().unwrap_or("a test"));
    assert!(
        std::env::var_os("OUTBOX_REQUIRE_SERVERS").is_none_or(|required| required != "1"),
        "OUTBOX_REQUIRE_SERVERS is 1, so nothing may be skipped: {line}"
    );
    eprintln!("skipped: {line}");
    notes::note(notes::SKIPS, &line);
}
