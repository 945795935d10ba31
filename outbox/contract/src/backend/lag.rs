//! Position of a consumer at its broker: what waits, what was lost, and where to go on.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Unit;

/// Position from which a consumer reads a unit whose position the broker has lost: Kafka's
/// `auto.offset.reset`, for a consumer that is not new.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OffsetReset {
    /// None: nothing is read of the unit until an operator decides. The health check says so, and
    /// what to do.
    #[default]
    None,
    /// The first message that the broker still has.
    Earliest,
    /// The end: only what is published from now on.
    Latest,
    /// The time at which the consumer last handled messages of the topic, to the hour.
    LastHandled,
}

impl OffsetReset {
    /// Returns its name in configuration files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Earliest => "earliest",
            Self::Latest => "latest",
            Self::LastHandled => "last_handled",
        }
    }
}

impl fmt::Display for OffsetReset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Backlog of a consumer at the broker, in one unit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lag {
    /// The unit.
    pub unit: Unit,
    /// Number of messages that were published and that the consumer has not acknowledged. On Kafka
    /// the distance of offsets, which markers of transactions and compaction make larger.
    pub messages: u64,
    /// Age of the oldest of them, by the broker's clock or the time of its record. `None`: nothing
    /// waits, or the broker does not tell.
    pub age: Option<Duration>,
    /// Sure sign that nothing can be received of the unit: its cause, with the remedy.
    pub stuck: Option<String>,
}

impl Lag {
    /// Creates the lag of a unit.
    #[must_use]
    pub const fn new(unit: Unit, messages: u64) -> Self {
        Self { unit, messages, age: None, stuck: None }
    }

    /// Sets the age of the oldest message.
    #[must_use]
    pub const fn with_age(mut self, age: Option<Duration>) -> Self {
        self.age = age;
        self
    }

    /// Sets the cause for which nothing can be received.
    #[must_use]
    pub fn with_stuck(mut self, stuck: Option<String>) -> Self {
        self.stuck = stuck;
        self
    }
}

/// Something that the broker no longer has: messages, or a consumer's position.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loss {
    /// The unit. `None`: it concerns the broker as a whole.
    pub unit: Option<Unit>,
    /// Its cause.
    pub cause: LossCause,
    /// Number of messages that are gone. `None`: unknown, or none.
    pub messages: Option<u64>,
    /// Description, with the remedy if there is one.
    pub words: String,
}

impl Loss {
    /// Creates a loss of a unit.
    #[must_use]
    pub fn new(unit: Unit, cause: LossCause, words: impl Into<String>) -> Self {
        Self { unit: Some(unit), cause, messages: None, words: words.into() }
    }

    /// Creates a loss that concerns the broker as a whole.
    #[must_use]
    pub fn of_broker(cause: LossCause, words: impl Into<String>) -> Self {
        Self { unit: None, cause, messages: None, words: words.into() }
    }

    /// Sets the number of messages that are gone.
    #[must_use]
    pub const fn with_messages(mut self, messages: u64) -> Self {
        self.messages = Some(messages);
        self
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.unit {
            Some(unit) => write!(f, "{unit}: {}", self.words),
            None => f.write_str(&self.words),
        }
    }
}

/// Cause of a [`Loss`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum LossCause {
    /// The consumer's position is gone: offsets that expired or were deleted, a group that is not
    /// there any more. Reading began elsewhere.
    Position,
    /// Messages were removed before the consumer had them: retention, `MAXLEN`, a deletion.
    Trimmed,
    /// The log was cut off, or its topic was deleted and made anew: positions mean other messages
    /// now.
    Truncated,
    /// The queue was not there any more, and was made again.
    Queue,
    /// The broker evicts keys, as it has too little memory.
    Evicted,
}

impl LossCause {
    /// Returns its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Position => "position",
            Self::Trimmed => "trimmed",
            Self::Truncated => "truncated",
            Self::Queue => "queue",
            Self::Evicted => "evicted",
        }
    }
}
