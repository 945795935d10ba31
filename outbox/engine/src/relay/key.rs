//! One key in memory: what waits of it, and what is being done with it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::divert::Step;
use outbox_contract::fetch::RowId;
use outbox_contract::{Bucket, Epoch, Failure, KeyId, MessageId, Stored};

use super::credit::Hold;
use super::keys::Turn;

/// A message in memory, with its share of the credit.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) stored: Arc<Stored>,
    pub(crate) hold: Hold,
}

/// A row of the hot table that was delivered and is to be deleted. It keeps its share of the credit until then, so that what could be
/// repeated after a crash stays bounded too.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) row: RowId,
    pub(crate) _hold: Hold,
}

impl From<Held> for Delivered {
    fn from(held: Held) -> Self {
        Self { row: held.stored.row(), _hold: held.hold }
    }
}

/// A row of the hot table that waits in a lane.
#[derive(Debug)]
pub(crate) enum Work {
    /// To be published.
    Message(Held),
    /// To be parked: its key is failing. What was read as a message keeps its place in the credit until then; the reader bounds the others.
    Failing { row: RowId, _hold: Option<Hold> },
}

impl Work {
    pub(crate) fn row(&self) -> RowId {
        match self {
            Self::Message(held) => held.stored.row(),
            Self::Failing { row, .. } => *row,
        }
    }

    /// Drops the content of a message, now that its key turned out to be failing.
    pub(crate) fn set_aside(&mut self) {
        if let Self::Message(held) = self {
            *self = Self::Failing { row: held.stored.row(), _hold: Some(held.hold.of_row()) };
        }
    }
}

/// A failing key that is due, with what is parked behind it.
#[derive(Debug)]
pub(crate) struct Retry {
    pub(crate) version: i64,
    pub(crate) failing: Option<MessageId>,
    pub(crate) attempts: u32,
    pub(crate) first_failure: Option<Failure>,
    /// What is still to be sent, the failing message first.
    pub(crate) parked: VecDeque<Held>,
    /// What was delivered and is to be removed.
    pub(crate) delivered: Vec<RowId>,
    /// A failure that is to be recorded when what was delivered before it has been removed, and what is being parked behind it is.
    pub(crate) failed: Option<(RowId, Failure, Verdict)>,
    /// Of the message that failed nothing was heard the last time.
    pub(crate) silent: bool,
    /// The store would park nothing more behind it: its state is another one by now.
    pub(crate) refused: bool,
}

/// Whether a failure is of the kind that can pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may succeed another time.
    Failed,
    /// It never will.
    Rejected,
    /// Nothing was heard of it while others went through. That counts as no attempt; it is set aside, and tried again after this time.
    Silent(Duration),
}

/// What is being done with a key. One thing at a time; only what comes behind a failing message is parked besides.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    /// Nothing.
    No,
    /// Some of its messages of the hot table are in a chunk that is not confirmed.
    Chunk,
    /// Some of its parked messages are.
    Retry,
    /// A step of its state machine is on its way to the store.
    Step(StepKind),
}

/// Which step, and which rows leave the hot table when it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StepKind {
    /// A message in the hot table failed; it and all behind it are parked. With the wait until it is due, if it is.
    Fail { rows: Vec<RowId>, due_in: Option<Duration> },
    /// A message in the hot table becomes a dead letter.
    Bury(RowId),
    /// Delivered parked messages are removed.
    Resume,
    /// The first parked message failed again. With the wait until it is due, if it is.
    FailAgain { due_in: Option<Duration> },
    /// The first parked message becomes a dead letter.
    BuryParked,
}

/// A step for the store, with what the lane needs to take the answer.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(crate) key: KeyId,
    pub(crate) generation: u64,
    pub(crate) bucket: Bucket,
    pub(crate) epoch: Epoch,
    pub(crate) version: Option<i64>,
    pub(crate) step: Step,
}

/// The state of one key.
#[derive(Debug)]
pub(crate) struct KeyState {
    /// One stay of the key in memory. What comes back from an earlier one may settle, and nothing else.
    pub(crate) generation: u64,
    pub(crate) bucket: Bucket,
    pub(crate) epoch: Epoch,
    pub(crate) queue: VecDeque<Work>,
    pub(crate) retry: Option<Retry>,
    pub(crate) busy: Busy,
    /// The first rows of the queue, while they are being parked. That waits for nothing but other steps of the key, and parked messages are sent
    /// meanwhile: else what keeps coming would keep a failing key from ever being tried again.
    pub(crate) parking: Option<Vec<RowId>>,
    /// Until when the rest of what is parked is awaited: of a key that catches up nothing more is parked, or it would never be done.
    pub(crate) catching_up: Option<Duration>,
    /// Whether the key stands in a line for a publisher.
    pub(crate) in_line: bool,
    /// Whether it stands in the line of those that need a step, perhaps besides.
    pub(crate) in_steps: bool,
    /// Whether it rests after an unknown outcome, and may not stand in line.
    pub(crate) resting: bool,
    /// Attempts in a row whose outcome is unknown.
    pub(crate) unknown: u32,
    /// How much the lane had delivered when the last of them came back; before the first, when the suspect was taken.
    pub(crate) delivered_by_then: u64,
}

impl KeyState {
    pub(crate) fn new(generation: u64, bucket: Bucket, epoch: Epoch) -> Self {
        Self {
            generation,
            bucket,
            epoch,
            queue: VecDeque::new(),
            retry: None,
            busy: Busy::No,
            parking: None,
            catching_up: None,
            in_line: false,
            in_steps: false,
            resting: false,
            unknown: 0,
            delivered_by_then: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let idle = self.busy == Busy::No && self.parking.is_none() && self.catching_up.is_none();
        self.queue.is_empty() && self.retry.is_none() && idle
    }

    /// Whether it can go from memory: nothing of it is there, and it stands nowhere.
    pub(crate) fn is_over(&self) -> bool {
        self.is_empty() && !self.in_line && !self.resting
    }

    /// Whether the store must do something for the key.
    pub(crate) fn needs_step(&self) -> bool {
        self.needs_parking() || self.needs_word()
    }

    /// Whether the first rows of the queue are to be parked.
    pub(crate) fn needs_parking(&self) -> bool {
        if self.parking.is_some() {
            return false;
        }
        let (has_room, is_long) =
            (matches!(self.busy, Busy::No | Busy::Retry), self.queue.len() >= MOST_ROWS_PER_STEP);
        match (self.queue.front(), &self.retry) {
            (None, _) => false,
            // A key that catches up is done when what is parked is sent. What has come meanwhile is read again then, with its content.
            (Some(_), Some(retry)) => has_room && !retry.refused && (retry.failing.is_some() || is_long),
            (Some(Work::Failing { .. }), None) => {
                self.busy == Busy::No && (self.catching_up.is_none() || is_long)
            }
            (Some(Work::Message(_)), None) => false,
        }
    }

    /// Whether the store is to be told what became of parked messages.
    pub(crate) fn needs_word(&self) -> bool {
        let retry = self.retry.as_ref().filter(|_| self.busy == Busy::No && self.parking.is_none());
        retry.is_some_and(|retry| retry.parked.is_empty() || retry.failed.is_some())
    }

    /// In which line for a publisher it belongs, if it has something to send.
    pub(crate) fn turn(&self) -> Option<Turn> {
        if self.busy != Busy::No || self.resting {
            return None;
        }
        match &self.retry {
            Some(retry) if retry.parked.is_empty() || retry.failed.is_some() => return None,
            Some(_) => {}
            None if self.parking.is_some() => return None,
            None if !matches!(self.queue.front(), Some(Work::Message(_))) => return None,
            None => {}
        }
        Some(match self.failing() {
            _ if self.unknown > 0 => Turn::Silent,
            Some(retry) if retry.silent => Turn::Silent,
            Some(_) => Turn::Failed,
            None => Turn::Ready,
        })
    }

    /// The first rows of the queue, as many as one step parks.
    pub(crate) fn first_run(&self) -> Vec<RowId> {
        self.queue.iter().map(Work::row).take(MOST_ROWS_PER_STEP).collect()
    }

    /// Rows at the head of the line that can be parked together.
    pub(crate) fn failing_run(&self) -> Vec<RowId> {
        self.queue
            .iter()
            .map_while(|work| if let Work::Failing { row, .. } = work { Some(*row) } else { None })
            .take(MOST_ROWS_PER_STEP)
            .collect()
    }

    /// Whether its first message is suspected: it failed before, or it may have broken something. If it does so again, it must not hold
    /// up, or take down, what nothing is held against.
    pub(crate) fn is_suspect(&self) -> bool {
        self.unknown > 0 || self.failing().is_some()
    }

    /// The retry of a first message that failed before.
    fn failing(&self) -> Option<&Retry> {
        self.retry.as_ref().filter(|retry| retry.failing.is_some())
    }

    /// Whether nothing was heard of it twice or more in this stay.
    pub(crate) fn is_silent_again(&self) -> bool {
        self.unknown > 1
    }

    /// The first message went through, or is gone: what was held against it is over.
    pub(crate) fn absolve(&mut self) {
        self.unknown = 0;
    }
}

/// The most rows that one step moves.
pub(crate) const MOST_ROWS_PER_STEP: usize = 500;
