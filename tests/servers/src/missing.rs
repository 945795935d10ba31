//! A server that can't be had, and tests that skip because of it.

use crate::notes;

/// Why a server can't be had.
#[derive(Clone, Debug)]
pub enum Missing {
    /// It is not on this machine: a test that needs it skips.
    Absent {
        /// Which server, such as `PostgreSQL 18`.
        server: String,
        /// What is missing, and what helps.
        reason: String,
    },
    /// It is on this machine and did not start: a test that needs it fails.
    Failed {
        /// Which server, such as `PostgreSQL 18`.
        server: String,
        /// What happened, with the end of its log.
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

/// What a test does with a server that can't be had.
pub trait OrSkip<T> {
    /// The server; `None` when the test must skip, which is said then (see [`skip`]).
    ///
    /// # Panics
    ///
    /// When the server is there and did not start, and as [`skip`] does.
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

/// Notes that the running test skips: on standard error, and as a line of the file that `OUTBOX_SKIPS` names, which `tests/run` prints at
/// its end. The test must return at once.
///
/// # Panics
///
/// When `OUTBOX_REQUIRE_SERVERS` is `1`: then a skip is a failure.
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
