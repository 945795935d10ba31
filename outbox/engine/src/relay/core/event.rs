//! Events that the core processes, and commands that it issues.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{
    Bucket, BucketSet, Due, DueRequest, Epoch, FetchRequest, Fetched, KeyTransition, Leased, LowWater,
    Outcome, Position, RowId, Stored, StripeMark, Transitioned, Wakeup, Writers,
};
use outbox_contract::{Failure, KeyId, MessageId, Topic};

use super::lines::Line;
use super::reading::Cause;

/// Event. The answer to a command carries the command's number.
#[derive(Debug)]
pub(crate) enum Event {
    /// Answer to a heartbeat that began at `asked`. The `surplus` buckets are to be given up;
    /// batches may start before `until`.
    Leased { leased: Leased, surplus: BucketSet, asked: Duration, until: Duration },
    /// Answer of the store to a question.
    Answered { number: u64, answer: Answer },
    /// Result of a check below the read position.
    LookedBelow { number: u64, took: Duration, answer: Option<(Fetched, Vec<StripeMark>)> },
    /// Early confirmations for messages of an unconfirmed batch, by slot.
    Heard { batch: u64, delivered: Vec<bool> },
    /// Result of a batch. `refused`: messages that were never sent. `broke`: the publisher died.
    Published { batch: u64, outcomes: Vec<Option<Outcome>>, refused: BTreeSet<usize>, broke: bool },
    /// Loss of these buckets under these epochs.
    Lapsed(BTreeMap<Bucket, Epoch>),
    /// Answer of the store to a transition of a failing key.
    Transitioned { number: u64, answer: Transitioned },
    /// Confirmation that the store has the pause of a topic.
    TopicPaused { number: u64 },
    /// Confirmation that delivered rows are removed.
    Removed { number: u64 },
    /// Messages of earlier incarnations that the settler has yet to remove.
    Owed { messages: usize, bytes: usize },
    /// Wake-up: something was appended or committed.
    Woken(Wakeup),
    /// Word of the transport during a batch that the broker takes nothing for now, and why.
    TransportStopped(Failure),
    /// Answer of the transport to a check.
    TransportIsBack,
    /// Timer: the time that [`Core::next_tick`](super::Core::next_tick) asked for has come.
    Tick,
    /// Request to start nothing new, and to tell when nothing is unconfirmed.
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

/// Question to the store. One is in flight at a time.
#[derive(Clone, Debug)]
pub(crate) enum Question {
    /// Fetch rows of the hot table.
    Fetch(FetchRequest),
    /// Fetch due failing keys.
    Due(DueRequest),
    /// List transactions that may still commit.
    Writers,
    /// Read the committed marks of the sequence shards of these buckets.
    Marks(BucketSet),
}

/// Command, carried out by an actor that decides nothing.
#[derive(Debug)]
pub(crate) enum Command {
    /// To the poller: ask the store.
    Ask { number: u64, question: Question },
    /// To the poller: check for rows below the read position, beside other queries. `with_marks`:
    /// if it finds any, read the committed marks afterwards.
    LookBelow { number: u64, request: FetchRequest, with_marks: bool },
    /// To an idle publisher: send this batch.
    Publish(PublishCommand),
    /// To the settler: remove delivered rows.
    Remove { number: u64, rows: Vec<RowId>, messages: usize, bytes: usize },
    /// To the store: make a transition of a failing key.
    Transition { number: u64, transition: KeyTransition },
    /// To the store: pause this topic, because of this failure.
    PauseTopic { number: u64, topic: Topic, failure: Failure },
    /// To the lease keeper: give buckets back; nothing of them is unconfirmed or unsettled.
    GiveBack { buckets: BucketSet, low_water: LowWater },
    /// To the lease keeper: save this mark with the next heartbeat.
    Save(LowWater),
    /// To the requester of a drain: nothing is unconfirmed.
    Drained(LowWater),
    /// To the metrics: add these counts.
    Count(Counts),
    /// To the log and the health check: report this.
    Report(Report),
}

/// Batch to publish.
#[derive(Debug)]
pub(crate) struct PublishCommand {
    pub(crate) number: u64,
    /// The messages, in order.
    pub(crate) messages: Vec<Arc<Stored>>,
    /// Number of earlier attempts of the first message.
    pub(crate) attempts: u32,
    /// Epochs under which the relay owns the buckets of the messages.
    pub(crate) epochs: BTreeMap<Bucket, Epoch>,
    /// Line that the keys were taken from.
    pub(crate) line: Line,
}

/// News for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    TookOver(usize),
    LostBuckets(usize),
    GivingUp(usize),
    /// Buckets whose newer epochs the broker knows and the store does not.
    TakingAnew(usize),
    /// The flag tells whether that is news.
    TransportAway(Failure, bool),
    TransportSilent,
    TransportBack,
    /// The flag tells whether to log a warning.
    TopicBroken(Topic, Failure, bool),
    TopicBack(Topic),
    /// The retry policy pauses the topic.
    TopicPaused(Topic, Failure),
    /// A message has become a dead letter.
    DeadLetter(Topic, MessageId, Failure),
    /// The retry policy has deleted a message.
    Discarded(Topic, MessageId, Failure),
    /// The retry policy holds a key.
    KeyHeld(KeyId, Failure),
    /// Topics that are not published now.
    TopicsApart(Vec<String>),
    /// A row at `at`, below the read position `mark`. `warns`: log a warning.
    BelowMark {
        at: Position,
        mark: Position,
        cause: Cause,
        warns: bool,
    },
}

/// Counts of one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Fetches that were started.
    pub(crate) fetches: u64,
    /// Messages that the broker confirmed.
    pub(crate) delivered: u64,
    /// Attempts that failed because of the message itself.
    pub(crate) failed: u64,
    /// Attempts with unknown outcome.
    pub(crate) unknown: u64,
    /// Messages that became dead letters.
    pub(crate) buried: u64,
    /// Messages that the retry policy deleted.
    pub(crate) discarded: u64,
    /// Messages that were parked behind a failing key.
    pub(crate) parked: u64,
    /// Transitions that the store refused.
    pub(crate) refused: u64,
}
