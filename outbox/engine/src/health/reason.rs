//! Reasons of a health status: a kind for programs, and a text for people.

use std::fmt;

use super::Status;

macro_rules! kinds {
    ($($kind:ident = $code:literal, $meaning:literal;)*) => {
        /// Kind of a reason of a [`Health`](super::Health), of a relay or an inbox.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ReasonKind {
            $(#[doc = $meaning] $kind,)*
        }

        impl ReasonKind {
            /// All kinds.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// Returns the stable name of this kind, such as `held-keys`.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self {
                    $(Self::$kind => $code,)*
                }
            }

            /// Returns the meaning of this kind, in a sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$kind => $meaning,)*
                }
            }
        }
    };
}

kinds! {
    Ended = "ended", "A relay, its maintenance or an inbox has ended by a bug, or the service was shut down: restart the program.";
    Failing = "failing", "A relay or an inbox keeps failing and restarting.";
    Leases = "leases", "Leases could not be renewed.";
    Outage = "outage", "The broker is unavailable, or returns only errors.";
    BrokerSettings = "broker-settings", "The broker is set up so that a start would be refused.";
    Paused = "paused", "An operator paused the route or the inbox.";
    Topic = "topic", "A topic is not published: it is broken or paused.";
    Configuration = "configuration", "Relays of the route have different retry policies, sources or histories.";
    Unmeasured = "unmeasured", "The backlog could not be measured lately.";
    Maintenance = "maintenance", "Maintenance fails: scheduled messages and expired rows wait.";
    BelowCursor = "below-cursor", "Messages stood below the position up to which the relay had read.";
    OldestAge = "oldest-age", "The oldest message has been waiting for too long.";
    HeldKeys = "held-keys", "Keys wait for an operator.";
    DeadLetters = "dead-letters", "Dead letters wait for an operator.";
    UnownedBuckets = "unowned-buckets", "No relay owns some buckets with messages.";
    UnservedRoute = "unserved-route", "No running relay serves a route with messages.";
    UnservedUnknown = "unserved-unknown", "The check for unserved routes fails.";
    NotSubscribed = "not-subscribed", "The inbox is not subscribed to the broker now.";
    Unacknowledged = "unacknowledged", "The inbox could not acknowledge finished messages.";
    Interrupted = "interrupted", "The database interrupted handlers.";
    Postponed = "postponed", "Messages wait for a newer program.";
    NoTransaction = "no-transaction", "The inbox could not begin a transaction.";
    Dropped = "dropped", "Undecodable records were dropped, because there are too many dead letters.";
    Unreceivable = "unreceivable", "The inbox can't receive from a topic, or from a part of it.";
    Stuck = "stuck", "Messages wait at the broker, and nothing can be received.";
    Loss = "loss", "The broker has lost messages, or the position of the consumer.";
}

/// Reason of a health status. [`Display`](fmt::Display) is its text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reason {
    /// Kind, by which programs tell reasons apart.
    pub kind: ReasonKind,
    /// Status because of this reason alone.
    pub status: Status,
    /// Description with route or consumer, object and cause. For people: it may change.
    pub text: String,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_are_unique_and_in_one_style() {
        let codes: BTreeSet<&str> = ReasonKind::ALL.iter().map(|kind| kind.code()).collect();
        assert_eq!(codes.len(), ReasonKind::ALL.len());
        let is_plain = |code: &str| code.chars().all(|char| char.is_ascii_lowercase() || char == '-');
        assert!(codes.iter().all(|code| is_plain(code)), "{codes:?}");
    }
}
