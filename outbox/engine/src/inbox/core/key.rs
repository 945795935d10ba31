//! A key: its mailbox, what it does now, and how its first message fared.

use std::time::Duration;

use super::event::Item;
use crate::mailbox::Mailbox;

/// A key does one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Stands in the line of its first message's handler, at this place.
    InLine(u64),
    /// Some of its messages are in a job.
    Busy,
    /// Its first message failed a moment ago: it rests until then.
    Resting(Duration),
    /// Would stand in line, but its topic is paused.
    Waiting,
}

/// A key of which something is in memory.
#[derive(Debug)]
pub(super) struct KeyState {
    pub(super) mailbox: Mailbox<Item>,
    pub(super) doing: Doing,
    /// Failures of the first message.
    pub(super) failures: u32,
    /// Attempts at the first message that others were in the way of.
    pub(super) conflicts: u32,
    /// The first message was tried often enough.
    pub(super) to_store: bool,
}

impl Default for KeyState {
    fn default() -> Self {
        Self { mailbox: Mailbox::default(), doing: Doing::Busy, failures: 0, conflicts: 0, to_store: false }
    }
}

impl KeyState {
    pub(super) fn is_suspect(&self) -> bool {
        self.failures > 0 || self.conflicts > 0
    }

    /// The first message is another one now.
    pub(super) fn absolve(&mut self) {
        self.failures = 0;
        self.conflicts = 0;
        self.to_store = false;
    }
}
