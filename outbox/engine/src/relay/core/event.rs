//! Events that a core takes, and commands that it gives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{
    Bucket, BucketSet, Due, DueRequest, Epoch, FetchRequest, Fetched, KeyTransition, Leased, LowWater,
    Outcome, Position, RowId, Stored, StripeMark, Transitioned, Wakeup, Writers,
};
use outbox_contract::{Failure, Topic};

use super::lines::Line;
use super::reading::Cause;

/// An event. Whatever answers a command names it by its number.
#[derive(Debug)]
pub(crate) enum Event {
    /// A heartbeat was answered. `surplus` is to be given up; batches may be begun before `until`.
    Leased { leased: Leased, surplus: BucketSet, until: Duration },
    /// The store answered a question.
    Answered { number: u64, answer: Answer },
    /// A look below what is read is over.
    LookedBelow { number: u64, took: Duration, answer: Option<(Fetched, Vec<StripeMark>)> },
    /// The broker confirmed some messages of a batch that is still out: by place in the batch.
    Heard { batch: u64, delivered: Vec<bool> },
    /// A batch is back. `refused`: messages that the broker was not asked about. `broke`: the publisher died over it.
    Published { batch: u64, outcomes: Vec<Option<Outcome>>, refused: BTreeSet<usize>, broke: bool },
    /// The relay does not own these buckets under these epochs any more.
    Lapsed(BTreeMap<Bucket, Epoch>),
    /// The store took, or refused, a transition of a failing key.
    Transitioned { number: u64, answer: Transitioned },
    /// Delivered rows are removed.
    Removed { number: u64 },
    /// The settler still holds so much of an earlier incarnation.
    Owed { messages: usize, bytes: usize },
    /// Something was appended or committed.
    Woken(Wakeup),
    /// The transport answered a check.
    TransportIsBack,
    /// The time that [`Core::next_tick`](super::Core::next_tick) asked for has come.
    Tick,
    /// Begin nothing any more; say when nothing is unconfirmed.
    Drain,
}

/// Answer of the store to a [`Question`].
#[derive(Debug)]
pub(crate) enum Answer {
    Fetched(Fetched),
    Due(Due),
    Writers(Writers),
    Marks(Vec<StripeMark>),
}

/// A question to the store. One is under way at a time.
#[derive(Clone, Debug)]
pub(crate) enum Question {
    /// Rows of the hot table.
    Fetch(FetchRequest),
    /// Failing keys that are due.
    Due(DueRequest),
    /// Transactions that may still commit.
    Writers,
    /// Committed marks of the sequence shards of these buckets.
    Marks(BucketSet),
}

/// A command, to be carried out by an actor that knows nothing else.
#[derive(Debug)]
pub(crate) enum Command {
    /// To the poller.
    Ask { number: u64, question: Question },
    /// To the poller, beside all other work. `with_marks`: if anything is there, the store is asked then how far its shards are committed.
    LookBelow { number: u64, request: FetchRequest, with_marks: bool },
    /// To a publisher that has nothing to do.
    Publish(PublishCommand),
    /// To the settler: rows that were delivered.
    Remove { number: u64, rows: Vec<RowId>, messages: usize, bytes: usize },
    /// To the store: a transition of a failing key.
    Transition { number: u64, transition: KeyTransition },
    /// To the lease keeper: nothing of these buckets is unconfirmed or unsettled.
    GiveBack { buckets: BucketSet, low_water: LowWater },
    /// To the lease keeper, for the next heartbeat.
    Save(LowWater),
    /// To whoever asked to drain: nothing is unconfirmed.
    Drained(LowWater),
    /// To metrics.
    Count(Counts),
    /// To the log and the health check.
    Report(Report),
}

/// A batch to publish.
#[derive(Debug)]
pub(crate) struct PublishCommand {
    pub(crate) number: u64,
    /// The messages, in order.
    pub(crate) messages: Vec<Arc<Stored>>,
    /// Number of earlier attempts of the first.
    pub(crate) attempts: u32,
    /// Epochs under which the relay owns their buckets.
    pub(crate) epochs: BTreeMap<Bucket, Epoch>,
    /// The line that it was taken from.
    pub(crate) line: Line,
}

/// Something that an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    TookOver(usize),
    LostBuckets(usize),
    GivingUp(usize),
    TransportAway(Failure),
    TransportSilent,
    TransportBack,
    /// With whether a warning is due.
    TopicBroken(Topic, Failure, bool),
    TopicBack(Topic),
    /// Topics that are not published now.
    TopicsApart(Vec<String>),
    /// A row stands at `at`, below the mark up to which the relay had read. With whether a warning is due.
    BelowMark {
        at: Position,
        mark: Position,
        cause: Cause,
        warns: bool,
    },
}

/// Number of messages to which something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Fetches that were begun.
    pub(crate) fetches: u64,
    /// The broker confirmed them.
    pub(crate) delivered: u64,
    /// They failed for a reason of their own.
    pub(crate) failed: u64,
    /// Their outcome is unknown.
    pub(crate) unknown: u64,
    /// They became dead letters.
    pub(crate) buried: u64,
    /// They were set aside behind a failing key.
    pub(crate) parked: u64,
    /// The store refused a transition.
    pub(crate) refused: u64,
}
