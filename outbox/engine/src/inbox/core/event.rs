//! Events that a core takes, and commands that it gives.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::Paused;
use outbox_contract::backend::{Tag, Unit};
use outbox_contract::{KeyId, Message, RetryPolicy};

use crate::inbox::credit::Hold;
use crate::inbox::verdict::Verdict;

/// An event. Whatever answers a command names it by its number.
#[derive(Debug)]
pub(crate) enum Event {
    /// The broker delivered these, in order within each key.
    Delivered(Vec<Item>),
    /// These units belong to this member no more.
    Revoked(Vec<Unit>),
    /// A job is back, with a verdict on each of its messages.
    Finished { number: u64, verdicts: Vec<Verdict> },
    /// The worker died over a job: nothing is known of it.
    Broke { number: u64 },
    /// The broker was told what is finished, or could not be told now.
    Acknowledged { number: u64, told: bool },
    /// The consumer, or topics of it, are paused from now on, and nothing else.
    Paused(Paused),
    /// The time that [`Core::next_tick`](super::Core::next_tick) asked for has come.
    Tick,
    /// Begin nothing any more; say when nothing is being handled and the broker was told.
    Drain,
}

/// A command, to be carried out by an actor that knows nothing else.
#[derive(Debug)]
pub(crate) enum Command {
    /// To a worker that has nothing to do.
    Begin(Job),
    /// To the worker of this job: not to begin it, if that has not happened yet.
    Recall(u64),
    /// To the acknowledger. One is under way at a time.
    Acknowledge { number: u64, tags: Arc<Vec<Tag>> },
    /// To whoever asked to drain. `is_clean`: the broker was told everything.
    Drained { is_clean: bool },
}

/// A delivery in memory, with its share of the credit.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) tag: Tag,
    pub(crate) message: Arc<Message>,
    pub(crate) key: KeyId,
    /// Handler in whose bound it counts.
    pub(crate) handler: Option<usize>,
    pub(crate) _hold: Hold,
}

/// Messages for a worker.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) number: u64,
    pub(crate) task: Task,
    /// Those of one key stand together, in order.
    pub(crate) messages: Vec<Arc<Message>>,
    /// Attempt of the first message, from 1. One that was tried before goes alone.
    pub(crate) attempt: u32,
    /// True if its one message was tried before, to be handled.
    pub(crate) is_suspect: bool,
}

/// A task with the messages of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Handle,
    /// To be written to the store: the first message of its one key fails, or all messages are
    /// stored first.
    Store,
}

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Number of jobs that may be out.
    pub(crate) workers: usize,
    /// True if all that comes in is written to the store, in its order, and handled from there.
    pub(crate) stores_all: bool,
    /// Maximum messages of a job.
    pub(crate) batch: usize,
    /// Attempts at a message before it is stored, unless the policy has fewer for its failure.
    pub(crate) tries: u32,
    pub(crate) retry: RetryPolicy,
    pub(crate) first_delay: Duration,
    pub(crate) max_delay: Duration,
    /// Number of jobs of suspects that may be out: their handlers may take all of their time, and
    /// the others go on meanwhile.
    pub(crate) suspects: usize,
    /// Number of jobs that may run each handler at once.
    pub(crate) by_handler: Vec<usize>,
    /// So many finished deliveries are told at once: the broker sends nothing in place of what it
    /// was not told of.
    pub(crate) told_at_once: usize,
    /// The first and the longest wait for a broker that could not be told.
    pub(crate) outage_delays: (Duration, Duration),
}
