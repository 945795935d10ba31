//! One key in memory: what waits of it, and what is being done with it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::divert::Step;
use outbox_contract::fetch::RowId;
use outbox_contract::{Bucket, Epoch, Failure, KeyId, MessageId, Stored};

use super::credit::Hold;

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
    /// A failure that is to be recorded when what was delivered before it has been removed.
    pub(crate) failed: Option<(RowId, Failure, Verdict)>,
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

/// What is being done with a key. One thing at a time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    /// Nothing.
    No,
    /// Some of its messages are in a chunk that is not confirmed.
    Chunk,
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
    /// Rows of the hot table are parked.
    Park(Vec<RowId>),
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
            in_line: false,
            in_steps: false,
            resting: false,
            unknown: 0,
            delivered_by_then: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.retry.is_none() && self.busy == Busy::No
    }

    /// Whether the store must do something before more of the key can be sent.
    pub(crate) fn needs_step(&self) -> bool {
        match self.queue.front() {
            Some(Work::Failing { .. }) => true,
            Some(Work::Message(_)) if self.retry.is_some() => true,
            _ => self.retry.as_ref().is_some_and(|retry| retry.parked.is_empty() || retry.failed.is_some()),
        }
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
        self.unknown > 0 || self.has_failed()
    }

    /// Whether a suspect is tried alone, and not with others.
    pub(crate) fn goes_alone(&self) -> bool {
        self.unknown > 1 || self.has_failed()
    }

    fn has_failed(&self) -> bool {
        self.retry.as_ref().is_some_and(|retry| retry.failing.is_some())
    }

    /// The first message went through, or is gone: what was held against it is over.
    pub(crate) fn absolve(&mut self) {
        self.unknown = 0;
    }
}

/// The most rows that one step moves.
pub(crate) const MOST_ROWS_PER_STEP: usize = 500;
