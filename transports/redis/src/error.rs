//! Errors of Redis, and their meaning: for one message, for a topic, for everything.

use std::time::Duration;

use outbox_contract::backend::{Outcome, Unavailable};
use outbox_contract::{Failure, TransportError, TransportErrorKind};
use redis::{ErrorKind, RedisError};

/// Reach of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// All of the server. What was asked did not happen.
    Route,
    /// One topic. What was asked did not happen.
    Topic,
    /// The result is unknown: the connection broke, or no answer came in time.
    Unknown,
    /// This transport was closed.
    Closed,
}

/// Something that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Error {
    pub(crate) reach: Reach,
    pub(crate) kind: TransportErrorKind,
    pub(crate) class: &'static str,
    pub(crate) words: String,
}

/// Beginning of what is said of an open connection.
const LOST: &str = "the connection to redis was lost: ";
/// Stands for the first word of an answer that has none.
const MAX_CLIENTS: &str = "max number of clients";
const MOVED: &str = "this cluster node does not serve the slot; build the transport with cluster(), which follows slots by itself";

const MOVING: &str = "the slot is being migrated; publishing continues afterwards; check CLUSTER NODES for a migration that is stuck";

/// The first word of an answer, what it is called in policies and metrics, how far it reaches, and
/// what helps.
const REFUSALS: &[(&str, &str, Reach, TransportErrorKind, &str)] = {
    use Reach::{Route, Topic};
    use TransportErrorKind::{Invalid, NotPermitted, Unavailable, Unsupported};
    &[
        (
            "READONLY",
            "read-only",
            Route,
            Unavailable,
            "this server is a replica; point the URL at the primary",
        ),
        (
            "OOM",
            "out-of-memory",
            Route,
            Unavailable,
            "out of memory; raise maxmemory, or find the consumer that lags",
        ),
        (
            "LOADING",
            "loading",
            Route,
            Unavailable,
            "the server is loading its data from disk; publishing continues afterwards",
        ),
        (
            "MISCONF",
            "persistence-failing",
            Route,
            Unavailable,
            "the server can't persist to disk; check its disk and log",
        ),
        (
            "MASTERDOWN",
            "primary-down",
            Route,
            Unavailable,
            "this replica has lost its primary; check replication, or point the URL at the primary",
        ),
        (
            "NOREPLICAS",
            "not-enough-replicas",
            Route,
            Unavailable,
            "too few replicas are connected; check them, or lower min-replicas-to-write",
        ),
        ("BUSY", "busy", Route, Unavailable, "a script runs for too long; SCRIPT KILL ends it"),
        (
            "UNKILLABLE",
            "busy",
            Route,
            Unavailable,
            "a script runs for too long and has written, so it can't be killed; wait, or SHUTDOWN NOSAVE",
        ),
        (
            "CLUSTERDOWN",
            "cluster-down",
            Route,
            Unavailable,
            "some hash slots have no node; check CLUSTER INFO",
        ),
        ("TRYAGAIN", "cluster-moving", Topic, Unavailable, MOVING),
        (
            "NOGROUP",
            "group-missing",
            Topic,
            Unavailable,
            "the stream or its consumer group was deleted; the consumer creates it again",
        ),
        (
            "NOAUTH",
            "not-authorized",
            Route,
            NotPermitted,
            "the server requires a password; put it into the URL",
        ),
        ("WRONGPASS", "not-authorized", Route, NotPermitted, "user or password is wrong; correct the URL"),
        (
            "NOPERM",
            "not-authorized",
            Topic,
            NotPermitted,
            "permission denied; grant this user the command and the keys (ACL LOG names them)",
        ),
        (
            "NOSCRIPT",
            "no-script",
            Route,
            Unavailable,
            "the server was restarted, or its scripts were flushed; retrying",
        ),
        (
            "WRONGTYPE",
            "wrong-type",
            Topic,
            Invalid,
            "another type of value is stored under this key; choose another prefix",
        ),
        (
            MAX_CLIENTS,
            "connection-limit",
            Route,
            Unavailable,
            "raise maxclients, or find the clients that leave connections open (CLIENT LIST)",
        ),
        ("MOVED", "cluster", Route, Unavailable, MOVED),
        ("ASK", "cluster-moving", Topic, Unavailable, MOVING),
        ("CROSSSLOT", "cluster", Route, Unsupported, MOVED),
    ]
};

impl Error {
    /// Classifies a refusal of the server, by its first word. What has no row here is taken for the
    /// topic's: nothing is counted against a message for an unknown answer.
    pub(crate) fn refused(said: &str) -> Self {
        // A transaction that is dropped at its end names the cause behind these words.
        let cause = said.split_once("discarded because of: ").map_or(said, |(_, cause)| cause);
        let code = cause.split_whitespace().next().unwrap_or_default();
        // An ACL refusal within a script lacks the usual first word of the error.
        let code = if said.contains("ACL failure in script") { "NOPERM" } else { code };
        let code = if said.contains("max number of clients") { MAX_CLIENTS } else { code };
        let row = REFUSALS.iter().find(|row| row.0 == code);
        let (_, class, reach, kind, remedy) = row.copied().unwrap_or((
            "",
            "server-error",
            Reach::Topic,
            TransportErrorKind::Other,
            "check the server's log",
        ));
        Self { reach, kind, class, words: format!("redis refused: {}: {remedy}", said.trim()) }
    }

    /// Its result is unknown.
    pub(crate) fn unknown(class: &'static str, words: impl Into<String>) -> Self {
        Self { reach: Reach::Unknown, kind: TransportErrorKind::Unavailable, class, words: words.into() }
    }

    /// No answer came in time.
    pub(crate) fn silent(within: Duration) -> Self {
        Self::unknown("timeout", format!("redis did not answer within {within:?}"))
    }

    pub(crate) fn route(class: &'static str, words: impl Into<String>) -> Self {
        Self { reach: Reach::Route, kind: TransportErrorKind::Unavailable, class, words: words.into() }
    }

    pub(crate) fn topic(class: &'static str, kind: TransportErrorKind, words: impl Into<String>) -> Self {
        Self { reach: Reach::Topic, kind, class, words: words.into() }
    }

    pub(crate) fn closed() -> Self {
        Self {
            reach: Reach::Closed,
            kind: TransportErrorKind::Closed,
            class: "closed",
            words: "the transport is closed; build another one".to_owned(),
        }
    }

    /// A server of this version can't be used.
    pub(crate) fn too_old(version: &str) -> Self {
        Self {
            reach: Reach::Route,
            kind: TransportErrorKind::Unsupported,
            class: "too-old",
            words: format!("this server is {version}; use Redis 7.0, Valkey 7.2, or newer"),
        }
    }

    /// An answer that is not what the protocol says.
    pub(crate) fn unexpected(what: &str) -> Self {
        Self::unknown("unexpected-answer", format!("unexpected answer from redis to {what}"))
    }

    /// The same, met while nothing of what counts had been sent.
    pub(crate) fn before_anything(self) -> Self {
        match self.reach {
            Reach::Unknown => Self { reach: Reach::Route, ..self },
            Reach::Topic | Reach::Route | Reach::Closed => self,
        }
    }

    /// The same, met before there was a connection.
    pub(crate) fn while_connecting(self) -> Self {
        match self.reach {
            Reach::Unknown => {
                let cause = self.words.strip_prefix(LOST).unwrap_or(&self.words);
                let words = format!("can't connect to redis: {cause}; check the address, and that it runs");
                Self { reach: Reach::Route, class: "unreachable", words, ..self }
            }
            Reach::Topic => Self { reach: Reach::Route, ..self },
            Reach::Route | Reach::Closed => self,
        }
    }

    /// Creates the error of an attempt to connect. A server that takes no more connections says so
    /// and closes them, and the client may only see that it was closed.
    pub(crate) fn connecting(error: RedisError) -> Self {
        let is_closed = error.is_connection_dropped() && !error.is_connection_refusal();
        let failed = Self::from(error).while_connecting();
        if !is_closed {
            return failed;
        }
        let words = failed.words
            + "; a server that closes new connections may have reached maxclients (INFO clients), or require TLS (rediss://)";
        Self { words, ..failed }
    }

    pub(crate) fn outcome(&self) -> Outcome {
        let failure = Failure::new(self.class, self.words.clone());
        match self.reach {
            Reach::Route | Reach::Closed => Outcome::Unavailable(Unavailable::Route, failure),
            Reach::Topic => Outcome::Unavailable(Unavailable::Topic, failure),
            Reach::Unknown => Outcome::Unknown(failure),
        }
    }

    pub(crate) fn transport_error(&self, operation: &'static str) -> TransportError {
        TransportError::new(self.kind, operation, self.words.clone())
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension => {
                let detail = error.detail().unwrap_or_default();
                Self::refused(&format!("{} {detail}", error.code().unwrap_or("ERR")))
            }
            ErrorKind::AuthenticationFailed => {
                Self::refused(&format!("WRONGPASS {}", error.detail().unwrap_or("authentication failed")))
            }
            ErrorKind::InvalidClientConfig => Self {
                reach: Reach::Route,
                kind: TransportErrorKind::Invalid,
                class: "configuration",
                words: error.to_string(),
            },
            _ => Self::unknown("connection-lost", format!("{LOST}{error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_server_can_not_do_now_is_never_a_failure_of_the_message() {
        for (code, class, ..) in REFUSALS {
            let error = Error::refused(&format!("{code} some words"));
            assert!(matches!(error.outcome(), Outcome::Unavailable(..)), "{code}");
            assert_eq!(error.class, *class);
        }
        assert_eq!(Error::refused("ERR ACL failure in script: no permissions").class, "not-authorized");
        let dropped = "EXECABORT Transaction discarded because of: READONLY You can't write here";
        assert_eq!(Error::refused(dropped).class, "read-only");
        let Outcome::Unavailable(reach, failure) = Error::refused("ERR what is this").outcome() else {
            panic!("an unknown answer counts against no message");
        };
        assert_eq!((reach, failure.class.as_ref()), (Unavailable::Topic, "server-error"));
    }

    #[test]
    fn a_broken_connection_is_unknown_and_one_that_was_never_made_is_not() {
        let broken =
            Error::from(RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)));
        assert!(matches!(broken.outcome(), Outcome::Unknown(_)));
        let Outcome::Unavailable(Unavailable::Route, failure) = broken.while_connecting().outcome() else {
            panic!("nothing was sent");
        };
        assert_eq!(
            failure.message,
            "can't connect to redis: connection refused; check the address, and that it runs"
        );
    }
}
