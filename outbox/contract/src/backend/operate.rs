//! Operations of operators, as a store carries them out: what [`Admin`](crate::Admin) asks a store.

use std::sync::Arc;

use crate::admin::{DeadLetter, Past};
use crate::backend::Stored;
use crate::clock::Timestamp;
use crate::failure::Failure;
use crate::id::MessageId;
use crate::name::Route;

/// Messages that [`browse`](crate::Admin::browse) lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum View {
    /// Messages to publish, neither parked nor scheduled, in the order of their positions.
    Waiting,
    /// Messages parked behind failing keys, key by key, in the order of their delivery.
    Parked,
    /// Dead letters, the oldest first.
    DeadLetters,
    /// Delivered messages, the oldest first. Empty if the store keeps no history.
    History,
    /// Scheduled messages, the next due first: those that are not due yet, and those that are due
    /// until [`maintain`](crate::Store::maintain) has moved them.
    Scheduled,
}

impl View {
    /// Returns its name as the operation in errors, such as `dead_letters`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Parked => "parked",
            Self::DeadLetters => "dead_letters",
            Self::History => "history",
            Self::Scheduled => "scheduled",
        }
    }
}

/// A message of a [`View`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// The route.
    pub route: Route,
    /// The message, with its present or former position; a scheduled one has none yet, and
    /// [`Position::START`](crate::backend::Position::START) in its place.
    pub stored: Arc<Stored>,
    /// Time at which it was appended, parked, died or was settled; of a scheduled one, the time at
    /// which it is due. The instants of a [`Filter`](crate::admin::Filter) are compared with it.
    pub at: Timestamp,
    /// End of a dead letter; `None` in the other views.
    pub death: Option<Death>,
}

impl Listed {
    /// Creates an entry of a view other than the dead letters.
    #[must_use]
    pub const fn new(route: Route, stored: Arc<Stored>, at: Timestamp) -> Self {
        Self { route, stored, at, death: None }
    }

    /// Adds the end of a dead letter.
    #[must_use]
    pub fn with_death(mut self, death: Death) -> Self {
        self.death = Some(death);
        self
    }
}

/// Reason of a dead letter, and the record of its attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Death {
    /// The reason: `exhausted`, `rejected`, `malformed`, `skipped`, `discarded`.
    pub reason: String,
    /// Number of attempts.
    pub attempts: u32,
    /// First failure.
    pub first_failure: Option<Failure>,
    /// Last failure.
    pub last_failure: Option<Failure>,
}

impl Death {
    /// Creates the end of a dead letter.
    #[must_use]
    pub const fn new(
        reason: String,
        attempts: u32,
        first_failure: Option<Failure>,
        last_failure: Option<Failure>,
    ) -> Self {
        Self { reason, attempts, first_failure, last_failure }
    }
}

impl From<Listed> for DeadLetter {
    fn from(listed: Listed) -> Self {
        let death = listed.death.unwrap_or_default();
        let mut letter = Self::new(listed.route, listed.stored, death.reason, listed.at);
        letter.attempts = death.attempts;
        letter.first_failure = death.first_failure;
        letter.last_failure = death.last_failure;
        letter
    }
}

impl From<Listed> for Past {
    fn from(listed: Listed) -> Self {
        Self::new(listed.route, listed.stored, listed.at)
    }
}

/// Operation on a key, for [`steer`](crate::Admin::steer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyOperation {
    /// Holds the key: see [`AdminExt::hold`](crate::AdminExt::hold).
    Hold,
    /// Lets the key retry now: see [`AdminExt::release`](crate::AdminExt::release).
    Release,
    /// Buries the first parked message: see [`AdminExt::skip`](crate::AdminExt::skip).
    Skip,
    /// Buries every parked message: see [`AdminExt::discard`](crate::AdminExt::discard).
    Discard,
}

impl KeyOperation {
    /// Returns its name as the operation in errors, such as `hold`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Release => "release",
            Self::Skip => "skip",
            Self::Discard => "discard",
        }
    }
}

/// Parked messages that an operation on a key made dead letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Steered {
    /// Their number.
    pub buried: u64,
    /// Id of the message that [`KeyOperation::Skip`] buried, if any; a store need not name the
    /// first of those that it discards.
    pub skipped: Option<MessageId>,
}

impl Steered {
    /// The answer to a hold or a release.
    pub const NOTHING: Self = Self { buried: 0, skipped: None };

    /// Creates the answer to a skip.
    #[must_use]
    pub const fn skipped(id: Option<MessageId>) -> Self {
        Self { buried: id.is_some() as u64, skipped: id }
    }

    /// Creates the answer to a discard.
    #[must_use]
    pub const fn discarded(buried: u64) -> Self {
        Self { buried, skipped: None }
    }
}

/// Messages that have left their keys, and that [`append_again`](crate::Admin::append_again)
/// appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Archive {
    /// Dead letters, which leave the archive: see [`AdminExt::requeue`](crate::AdminExt::requeue).
    DeadLetters,
    /// Delivered messages, which stay in the history: see [`AdminExt::replay`](crate::AdminExt::replay).
    History,
}

impl Archive {
    /// Returns the operation in errors: `requeue` or `replay`.
    #[must_use]
    pub const fn operation(self) -> &'static str {
        match self {
            Self::DeadLetters => "requeue",
            Self::History => "replay",
        }
    }
}
