//! One key in the table: where its messages are, and what is being done with them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Bucket, Epoch, Position, RowId, Stored};
use outbox_contract::{Failure, KeyId, MessageId};

use super::lines::Line;
use super::mailbox::Mailbox;

/// A message in memory, with its share of the credit.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) stored: Arc<Stored>,
    pub(super) bytes: usize,
}

impl From<Arc<Stored>> for Held {
    fn from(stored: Arc<Stored>) -> Self {
        Self { bytes: stored.message.bytes(), stored }
    }
}

/// A failing key that is due, with what is parked behind it.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) version: i64,
    pub(super) failing: Option<MessageId>,
    pub(super) attempts: u32,
    pub(super) first_failure: Option<Failure>,
    /// Messages that are still to be sent, the failing one first.
    pub(super) parked: Mailbox<Held>,
    /// Messages that were delivered and are to be removed.
    pub(super) delivered: Vec<RowId>,
    /// A failure that is to be recorded when what was delivered before it has been removed.
    pub(super) failed: Option<(RowId, Failure, Verdict)>,
}

/// The kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may succeed another time.
    Failed,
    /// It never will.
    Rejected,
    /// Nothing was heard of it while others went through. That counts as no attempt; it is set aside, and tried again after this time.
    Silent(Duration),
}

/// What is being done with a key. One thing at a time: so what follows a failure can't overtake it (promise P3).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Nothing,
    /// Some of its messages are in the unconfirmed batch of this number.
    Batch(u64),
    /// The transition of this number is on its way to the store.
    Transition(u64, Kind),
}

/// A transition, with the rows that leave the hot table when it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message in the hot table failed; it and those behind it are parked. With the wait until it is due, if it is.
    Fail { rows: Vec<RowId>, due_in: Option<Duration> },
    /// A message in the hot table becomes a dead letter.
    Bury(RowId),
    /// Rows of the hot table are parked.
    Park(Vec<RowId>),
    /// Delivered parked messages are removed.
    Resume,
    /// The first parked message failed again. With the wait until it is due, if it is.
    FailAgain { due_in: Option<Duration> },
    /// The first parked message becomes a dead letter.
    BuryParked,
}

impl Kind {
    /// Rows of the hot table that it is about.
    pub(super) fn rows(&self) -> &[RowId] {
        match self {
            Self::Fail { rows, .. } | Self::Park(rows) => rows,
            Self::Bury(row) => std::slice::from_ref(row),
            Self::Resume | Self::FailAgain { .. } | Self::BuryParked => &[],
        }
    }
}

/// A read window of one key. Within a key positions are in the order of commits, so a cursor says it all: nothing of the key can be committed at or
/// below it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyWindow {
    /// Everything of the key behind this position is to be read.
    pub(super) cursor: Position,
    /// Number of fetches that had begun when the cursor went back: their answers say nothing of what is to be read now.
    pub(super) as_of: u64,
}

/// State of one key, or of what stands of it in one bucket: a program may compute buckets in a way of its own.
#[derive(Debug)]
pub(super) struct KeyState {
    pub(super) name: KeyId,
    pub(super) bucket: Bucket,
    pub(super) epoch: Epoch,
    /// Names one stay of the key in the table. What comes back from an earlier one may settle, and nothing else.
    pub(super) stay: u64,
    /// Messages to be sent.
    pub(super) mailbox: Mailbox<Held>,
    /// Rows behind them that are to be parked, since the key is failing.
    pub(super) to_park: VecDeque<RowId>,
    pub(super) doing: Doing,
    pub(super) retry: Option<Box<Retry>>,
    /// To be read again from here on. While it is there, nothing of the key is taken from anywhere else.
    pub(super) window: Option<KeyWindow>,
    /// Number of its rows in the index of positions.
    pub(super) rows: usize,
    /// Whether any of them has left the store since the key came: it does not hang.
    pub(super) moves: bool,
    pub(super) line: Option<Line>,
    /// Whether it stands in a line of keys to be read.
    pub(super) in_line_to_be_read: bool,
    /// Whether it waits for a time, and may not stand in a line.
    pub(super) resting: bool,
    /// Whether its rows are flagged as failing.
    pub(super) is_failing: bool,
    /// Whether a retry went through, and more of what is parked is due. Nothing is parked behind it meanwhile: what is parked comes to an end then,
    /// however fast messages come.
    pub(super) recovering: bool,
    /// Whether its topic was closed while something of it was under way: it is forgotten when that is back.
    pub(super) forget: bool,
    /// Number of fetches that had begun when a transition was answered: they may not know of it.
    pub(super) as_of: u64,
    /// Attempts in a row whose outcome is unknown.
    pub(super) unknown: u32,
    /// Number of messages that the core had delivered when the last of them came back; before the first, when the suspect was taken.
    pub(super) delivered_by_then: u64,
}

/// Part of its messages that a key gets before any of it has left.
const FRESH: usize = 8;

/// Maximum number of rows that one transition moves. The model has few, and is to meet it.
pub(super) const MAX_ROWS_PER_TRANSITION: usize = if cfg!(test) { 3 } else { 500 };

impl KeyState {
    pub(super) fn new(name: KeyId, bucket: Bucket, epoch: Epoch, stay: u64) -> Self {
        Self {
            name,
            bucket,
            epoch,
            stay,
            mailbox: Mailbox::default(),
            to_park: VecDeque::new(),
            doing: Doing::Nothing,
            retry: None,
            window: None,
            rows: 0,
            moves: false,
            line: None,
            in_line_to_be_read: false,
            resting: false,
            is_failing: false,
            recovering: false,
            forget: false,
            as_of: 0,
            unknown: 0,
            delivered_by_then: 0,
        }
    }

    /// Whether nothing needs be known of it any more. `fetch`: the number of the one that is under way.
    pub(super) fn is_over(&self, fetch: Option<u64>) -> bool {
        self.rows == 0
            && self.mailbox.is_empty()
            && self.to_park.is_empty()
            && self.doing == Doing::Nothing
            && self.retry.is_none()
            && self.window.is_none()
            && !self.resting
            && !self.recovering
            && fetch.is_none_or(|fetch| self.as_of < fetch)
    }

    /// Whether the store must do something before more of the key can be sent.
    pub(super) fn needs_transition(&self) -> bool {
        match &self.retry {
            Some(retry) => retry.parked.is_empty() || retry.failed.is_some(),
            None => self.mailbox.is_empty() && !self.to_park.is_empty() && !self.recovering,
        }
    }

    /// The line that the key belongs to. `is_silent`: it was silent before, in this stay or another one.
    pub(super) fn next_line(&self, is_silent: bool) -> Option<Line> {
        if self.doing != Doing::Nothing || self.resting {
            return None;
        }
        if self.needs_transition() {
            return Some(Line::Transition);
        }
        if self.retry.is_none() && self.mailbox.is_empty() {
            return None;
        }
        Some(match () {
            () if self.unknown > 0 => Line::Silent,
            () if self.has_failed() && is_silent => Line::Silent,
            () if self.has_failed() => Line::Failed,
            () => Line::Ready,
        })
    }

    /// Maximum number of its messages in memory, of so many at the most. A key of which nothing has left yet may hang: it gets a small part, so that many
    /// such fit.
    pub(super) fn allowed(&self, max_per_key: usize) -> usize {
        if self.moves { max_per_key } else { (max_per_key / FRESH).max(1) }
    }

    /// Whether its window may be read, as far as the key is concerned.
    pub(super) fn may_be_read(&self, max_per_key: usize) -> bool {
        let has_room = self.rows == 0 || (self.moves && self.rows <= max_per_key / 2);
        let is_silent = self.unknown > 0 && (self.resting || self.rows > 0);
        self.window.is_some()
            && !matches!(self.doing, Doing::Transition(..))
            && self.retry.is_none()
            && !self.recovering
            && !is_silent
            && has_room
    }

    /// Whether its first message is suspected: it failed before, or it may have broken something. If it does so again, it must not hold
    /// up, or take down, what nothing is held against.
    pub(super) fn is_suspect(&self) -> bool {
        self.unknown > 0 || self.has_failed()
    }

    /// Whether a suspect is tried alone, and not with others.
    pub(super) fn goes_alone(&self) -> bool {
        self.unknown > 1 || self.has_failed()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.retry.as_ref().is_some_and(|retry| retry.failing.is_some())
    }

    /// The next message to send.
    pub(super) fn take(&mut self) -> Option<Held> {
        match &mut self.retry {
            Some(retry) => retry.parked.take(),
            None => self.mailbox.take(),
        }
    }

    /// Gives messages back that were taken and not delivered.
    pub(super) fn give_back(&mut self, messages: Vec<Held>) {
        match &mut self.retry {
            Some(retry) => retry.parked.give_back(messages),
            None => self.mailbox.give_back(messages),
        }
    }
}
