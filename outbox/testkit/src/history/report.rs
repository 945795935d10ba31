//! Result of a check, with examples, in readable form.

use std::fmt;

use outbox_contract::{Key, MessageId, Topic};

/// Comparison of deliveries with commits, over all consumers of the history together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Messages that were certainly committed.
    pub committed: u64,
    /// Messages whose transaction ended with an unknown result.
    pub unknown: u64,
    /// Messages that became dead letters: allowed to be missing.
    pub dead_lettered: u64,
    /// All deliveries, repeats included.
    pub deliveries: u64,
    /// First deliveries.
    pub delivered: u64,
    /// Messages committed and never delivered, or requeued and not delivered since (promises P1 and
    /// P2).
    pub lost: Found,
    /// Messages delivered, and never appended in this form, or rolled back, or not committed yet
    /// when they were delivered; and dead letters of such messages (promise P1).
    pub phantom: Found,
    /// Messages first delivered behind a message that must follow them, or overtaken by one and
    /// dead only later (promise P3).
    pub out_of_order: Found,
    /// Messages delivered again behind a newer message of their key. Allowed after a failure, for
    /// consumers without an inbox.
    pub stale_repeats: Found,
    /// Messages delivered again otherwise. Allowed, for consumers without an inbox.
    pub duplicated: Found,
}

/// Number of occurrences of a defect, with the first examples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Number of occurrences.
    pub count: u64,
    /// The first occurrences, at most [`MAX_EXAMPLES`](Self::MAX_EXAMPLES).
    pub examples: Vec<Example>,
}

impl Found {
    /// Maximum number of examples kept.
    pub const MAX_EXAMPLES: usize = 5;

    pub(super) fn add(&mut self, example: impl FnOnce() -> Example) {
        self.count += 1;
        if self.examples.len() < Self::MAX_EXAMPLES {
            self.examples.push(example());
        }
    }

    /// Returns true if the defect did not occur.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.count == 0
    }
}

/// One message with a defect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Example {
    /// The consumer that received it.
    pub consumer: String,
    /// The message.
    pub id: MessageId,
    /// Its topic.
    pub topic: Topic,
    /// Its key.
    pub key: Option<Key>,
    /// The newer message that was delivered before it.
    pub behind: Option<MessageId>,
}

impl Report {
    /// Returns true if nothing was lost or invented, and every first delivery was in order
    /// (promises P1, P2, P3). Repeats are allowed.
    #[must_use]
    pub const fn is_at_least_once_in_order(&self) -> bool {
        self.lost.is_none() && self.phantom.is_none() && self.out_of_order.is_none()
    }

    /// Returns true if, in addition, nothing was delivered twice (promise P4).
    #[must_use]
    pub const fn is_exactly_once(&self) -> bool {
        self.is_at_least_once_in_order() && self.stale_repeats.is_none() && self.duplicated.is_none()
    }

    /// Panics with the report unless every consumer received everything at least once and in order.
    ///
    /// # Panics
    ///
    /// If something was lost, invented or first delivered out of order.
    #[track_caller]
    pub fn assert_at_least_once_in_order(&self) {
        assert!(
            self.is_at_least_once_in_order(),
            "not everything was delivered at least once and in order\n{self}"
        );
    }

    /// Panics with the report unless every consumer received everything exactly once and in order.
    ///
    /// # Panics
    ///
    /// If something was lost, invented, repeated or out of order.
    #[track_caller]
    pub fn assert_exactly_once(&self) {
        assert!(self.is_exactly_once(), "not everything was delivered exactly once and in order\n{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>10} committed", self.committed)?;
        if self.unknown > 0 {
            writeln!(f, "{:>10} of a transaction whose fate is unknown", self.unknown)?;
        }
        if self.dead_lettered > 0 {
            writeln!(f, "{:>10} became dead letters", self.dead_lettered)?;
        }
        writeln!(
            f,
            "{:>10} deliveries, {} of them the first of their message",
            self.deliveries, self.delivered
        )?;
        for (found, words) in [
            (&self.lost, "lost: committed and never delivered"),
            (&self.phantom, "phantoms: delivered and never committed"),
            (&self.out_of_order, "out of order: first delivered behind a newer message"),
            (&self.stale_repeats, "stale repeats: delivered again behind a newer message"),
            (&self.duplicated, "duplicates: delivered again"),
        ] {
            writeln!(f, "{:>10} {words}", found.count)?;
            for example in &found.examples {
                writeln!(f, "{:>14}{example}", "")?;
            }
            let more = found.count.saturating_sub(Found::MAX_EXAMPLES as u64);
            if more > 0 {
                writeln!(f, "{:>14}and {more} more", "")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.id, self.topic)?;
        if let Some(key) = &self.key {
            write!(f, ", key {key}")?;
        }
        if let Some(behind) = self.behind {
            write!(f, ", behind {behind}")?;
        }
        write!(f, ", at {}", self.consumer)
    }
}
