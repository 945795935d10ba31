//! Operations, as forms name them.

use outbox::admin::{KeyOperation, View};

/// An operation of the dashboard: each is one of the store's admin operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Requeue,
    Purge,
    Replay,
    Cancel,
    Hold,
    Release,
    Skip,
    Discard,
    Pause,
    Resume,
}

/// All of them, for tests and forms.
pub(crate) const ALL: [Operation; 10] = [
    Operation::Requeue,
    Operation::Purge,
    Operation::Replay,
    Operation::Cancel,
    Operation::Hold,
    Operation::Release,
    Operation::Skip,
    Operation::Discard,
    Operation::Pause,
    Operation::Resume,
];

impl Operation {
    /// Returns the operation of this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        ALL.into_iter().find(|operation| operation.name() == name)
    }

    /// Returns its name in forms.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Purge => "purge",
            Self::Replay => "replay",
            Self::Cancel => "cancel",
            Self::Hold => "hold",
            Self::Release => "release",
            Self::Skip => "skip",
            Self::Discard => "discard",
            Self::Pause => "pause",
            Self::Resume => "resume",
        }
    }

    /// Returns its name on buttons.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Requeue => "Requeue",
            Self::Purge => "Purge",
            Self::Replay => "Replay",
            Self::Cancel => "Cancel",
            Self::Hold => "Hold",
            Self::Release => "Release",
            Self::Skip => "Skip first",
            Self::Discard => "Discard",
            Self::Pause => "Pause",
            Self::Resume => "Resume",
        }
    }

    /// Returns the participle for results.
    pub(crate) const fn done(self) -> &'static str {
        match self {
            Self::Requeue => "Requeued",
            Self::Purge => "Purged",
            Self::Replay => "Replayed",
            Self::Cancel => "Canceled",
            Self::Hold => "Held",
            Self::Release => "Released",
            Self::Skip => "Skipped the first message of",
            Self::Discard => "Discarded the messages of",
            Self::Pause => "Paused",
            Self::Resume => "Resumed",
        }
    }

    /// Returns its effect, for the page that asks whether to do it.
    pub(crate) const fn effect(self) -> &'static str {
        match self {
            Self::Requeue => {
                "Each is appended again at the end of its key, in the old order, with its old id. \
                 Consumers that have handled it already drop it."
            }
            Self::Purge => "They are deleted with their payloads. They can't be restored.",
            Self::Replay => {
                "Each is appended again at the end of its key, with its old id, and stays in the history. \
                 Consumers that have handled it already drop it."
            }
            Self::Cancel => "They are removed and never sent. They can't be restored.",
            Self::Hold => {
                "Its messages wait until the key is released. Those that a relay has in flight may still be \
                 delivered."
            }
            Self::Release => "The relay tries the first message again now, with its attempts counted from 0.",
            Self::Skip => {
                "The first parked message of each key becomes a dead letter. The key then tries the next one \
                 at once."
            }
            Self::Discard => "All parked messages of each key become dead letters. The key then flows again.",
            Self::Pause => {
                "Every relay stops publishing from its next heartbeat on. Messages wait; nothing is lost or \
                 counted."
            }
            Self::Resume => "Every relay publishes again from its next heartbeat on.",
        }
    }

    /// Returns true if it asks before it acts.
    pub(crate) const fn asks(self) -> bool {
        !matches!(self, Self::Hold | Self::Release | Self::Resume)
    }

    /// Returns true if it removes something, or gives it up.
    pub(crate) const fn removes(self) -> bool {
        matches!(self, Self::Purge | Self::Cancel | Self::Skip | Self::Discard)
    }

    /// Returns the messages that it is for.
    pub(crate) const fn view(self) -> Option<View> {
        match self {
            Self::Requeue | Self::Purge => Some(View::DeadLetters),
            Self::Replay => Some(View::History),
            Self::Cancel => Some(View::Scheduled),
            _ => None,
        }
    }

    /// Returns the operation on keys that it is.
    pub(crate) const fn on_keys(self) -> Option<KeyOperation> {
        match self {
            Self::Hold => Some(KeyOperation::Hold),
            Self::Release => Some(KeyOperation::Release),
            Self::Skip => Some(KeyOperation::Skip),
            Self::Discard => Some(KeyOperation::Discard),
            _ => None,
        }
    }

    /// Returns the noun of what it is for.
    pub(crate) const fn noun(self) -> &'static str {
        match self {
            Self::Requeue | Self::Purge => "dead letter",
            Self::Replay => "delivered message",
            Self::Cancel => "scheduled message",
            Self::Hold | Self::Release | Self::Skip | Self::Discard => "key",
            Self::Pause | Self::Resume => "route",
        }
    }
}
