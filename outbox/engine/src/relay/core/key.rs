//! State of one key: where its messages are, and the one operation that runs on it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Bucket, Epoch, Position, RowId, Stored, Then};
use outbox_contract::{Failure, KeyId, MessageId};

use super::lines::Line;
use super::table::Name;
use crate::mailbox::Mailbox;

/// Message in memory, with its share of the credit.
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

/// Due failing key, with its parked messages.
#[derive(Debug)]
pub(super) struct Retry {
    pub(super) version: i64,
    pub(super) failing: Option<MessageId>,
    pub(super) attempts: u32,
    pub(super) first_failure: Option<Failure>,
    /// Messages still to be sent, the failing one first.
    pub(super) parked: Mailbox<Held>,
    /// Delivered messages that are to be removed.
    pub(super) delivered: Vec<RowId>,
    /// Failure to record once the messages delivered before it have been removed.
    pub(super) failed: Option<(RowId, Failure, Verdict)>,
}

/// Kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// A retry may succeed.
    Failed,
    /// No retry can succeed.
    Rejected,
    /// No answer, while other messages were delivered. It counts as no attempt. The message is
    /// parked, and retried after this time.
    Silent(Duration),
    /// It can't be delivered now, or only by another program. It counts as no attempt. The message
    /// is parked, and retried after this time.
    Postponed(Duration),
}

/// Operation that runs on a key. There is one at a time, so messages behind a failure can't
/// overtake it (promise P3).
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Nothing,
    /// Messages of it are in the unconfirmed batch of this number.
    Batch(u64),
    /// The transition of this number is being written to the store.
    Transition(u64, Kind),
}

/// Kind of transition, with the rows that leave the hot table when it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message of the hot table failed; it and those behind it are parked.
    Fail { rows: Vec<RowId>, next: Next },
    /// A message of the hot table becomes a dead letter, or is deleted.
    Bury { row: RowId, buried: Buried },
    /// Rows of the hot table are parked.
    Park(Vec<RowId>),
    /// Delivered parked messages are removed.
    Resume,
    /// The first parked message failed again.
    FailAgain { next: Next },
    /// The first parked message becomes a dead letter, or is deleted.
    BuryParked { buried: Buried },
}

/// Consequences of a failure whose message stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Next {
    /// Next state of the key.
    pub(super) then: Then,
    /// Failure because of which the topic is paused, once the key's state is recorded.
    pub(super) pause: Option<Failure>,
    /// Failure because of which the key is held.
    pub(super) hold: Option<Failure>,
}

/// A message that becomes a dead letter, or that the retry policy deletes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Buried {
    pub(super) id: MessageId,
    pub(super) failure: Failure,
    pub(super) discard: bool,
}

impl Kind {
    /// Returns the rows of the hot table that it concerns.
    pub(super) fn rows(&self) -> &[RowId] {
        match self {
            Self::Fail { rows, .. } | Self::Park(rows) => rows,
            Self::Bury { row, .. } => std::slice::from_ref(row),
            Self::Resume | Self::FailAgain { .. } | Self::BuryParked { .. } => &[],
        }
    }
}

/// Read window of one key. Within a key, positions are in commit order. So a cursor suffices:
/// nothing of the key can be committed at or below it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyWindow {
    /// Everything of the key behind this position is to be read.
    pub(super) cursor: Position,
    /// Number of fetches started when the cursor went back. Their answers do not cover what is to
    /// be read now.
    pub(super) as_of: u64,
}

/// State of a key in one bucket. A program with its own hash function may put a key into several
/// buckets.
#[derive(Debug)]
pub(super) struct KeyState {
    pub(super) name: KeyId,
    /// Hash of its name and bucket.
    pub(super) hash: u64,
    pub(super) bucket: Bucket,
    pub(super) epoch: Epoch,
    /// Number of this stay of the key in the table. Outcomes of an earlier stay may settle
    /// messages, and do nothing else.
    pub(super) stay: u64,
    /// Messages to be sent.
    pub(super) mailbox: Mailbox<Held>,
    /// Rows behind them that are to be parked because the key is failing.
    pub(super) to_park: VecDeque<RowId>,
    pub(super) doing: Doing,
    pub(super) retry: Option<Box<Retry>>,
    /// Window from which the key is to be read again. While it exists, nothing of the key is taken
    /// from another window.
    pub(super) window: Option<KeyWindow>,
    /// Number of its rows in the index of positions.
    pub(super) rows: usize,
    /// True once a row left the store during this stay: the key does not hang.
    pub(super) moves: bool,
    pub(super) line: Option<Line>,
    /// True while it is in the queue of keys to be read.
    pub(super) in_line_to_be_read: bool,
    /// True while it waits for a timer, and may be in no line.
    pub(super) resting: bool,
    /// True if its rows are flagged as failing.
    pub(super) is_failing: bool,
    /// True after a successful retry while more parked messages are due. Nothing is parked behind
    /// them meanwhile, so that the parked messages come to an end however fast new ones arrive.
    pub(super) recovering: bool,
    /// True if its topic was closed while messages of it were in flight: it is forgotten when they
    /// come back.
    pub(super) forget: bool,
    /// Number of fetches started when a transition was answered: their answers may not reflect it.
    pub(super) as_of: u64,
    /// Consecutive attempts with unknown outcome.
    pub(super) unknown: u32,
    /// Number of messages that the core had delivered at the last of these attempts; before the
    /// first, when the suspect message was taken.
    pub(super) delivered_by_then: u64,
    /// True if its first message went to the transport, which did not attempt it.
    pub(super) blocked: bool,
}

/// Divisor of the limit of messages per key until one of its messages has left the store.
const FRESH: usize = 8;

impl KeyState {
    pub(super) fn new(name: Name, epoch: Epoch, stay: u64) -> Self {
        let Name { key: name, bucket, hash } = name;
        Self {
            name,
            hash,
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
            blocked: false,
        }
    }

    /// Returns true if the key can be removed from the table. `fetch`: number of the running fetch.
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

    /// Returns true if a transition must be made before more of the key can be sent.
    pub(super) fn needs_transition(&self) -> bool {
        match &self.retry {
            Some(retry) => retry.parked.is_empty() || retry.failed.is_some(),
            None => self.mailbox.is_empty() && !self.to_park.is_empty() && !self.recovering,
        }
    }

    /// Returns the line that the key belongs to. `is_silent`: an attempt got no answer, in this
    /// stay or an earlier one.
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

    /// Returns the maximum number of its messages in memory. Until one of them has left the store,
    /// the key may hang. Then it gets a small part of the limit, so that many such keys fit.
    pub(super) fn allowed(&self, max_per_key: usize) -> usize {
        if self.moves { max_per_key } else { (max_per_key / FRESH).max(1) }
    }

    /// Returns true if its window may be read.
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

    /// Returns true if its first message is suspect: it failed before, or an attempt got no answer.
    /// If that repeats, it must not delay or break the messages of other keys.
    pub(super) fn is_suspect(&self) -> bool {
        self.unknown > 0 || self.has_failed()
    }

    /// Returns true if its suspect message is sent alone.
    pub(super) fn goes_alone(&self) -> bool {
        self.unknown > 1 || self.has_failed()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.retry.as_ref().is_some_and(|retry| retry.failing.is_some())
    }

    /// Takes the next message to send.
    pub(super) fn take(&mut self) -> Option<Held> {
        match &mut self.retry {
            Some(retry) => retry.parked.take(),
            None => self.mailbox.take(),
        }
    }

    /// Returns messages that were taken and not delivered.
    pub(super) fn give_back(&mut self, messages: Vec<Held>) {
        match &mut self.retry {
            Some(retry) => retry.parked.give_back(messages),
            None => self.mailbox.give_back(messages),
        }
    }
}
