//! A batch in flight: its enqueued, acknowledged and reported messages.
//!
//! Promises: one outcome per message; a message is reported delivered only after the earlier ones
//! of its key were, and never after one of them failed.

use std::sync::Arc;

use outbox_contract::backend::flow::{KeyChain, Reports};
use outbox_contract::backend::{Outcome, Outcomes, PublishBatch, Stored};
use tokio::sync::Notify;

/// Identifies a publication during its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PublicationId(pub(crate) u64);

#[derive(Debug)]
pub(crate) struct Publication {
    messages: Vec<Arc<Stored>>,
    source: Arc<str>,
    outcomes: Outcomes,
    chain: KeyChain,
    /// Number of consumers that have yet to acknowledge each message.
    unacknowledged: Vec<usize>,
    /// No message before this index waits.
    next: usize,
    /// True if it waits for room in a buffer. Set when it is blocked, cleared when it tries again.
    pub(crate) waits_for_room: bool,
    /// Wakes the future that publishes.
    pub(crate) wake: Arc<Notify>,
}

impl Publication {
    pub(crate) fn new(batch: PublishBatch, outcomes: Outcomes) -> Self {
        Self {
            chain: KeyChain::new(&batch.messages),
            unacknowledged: vec![0; batch.messages.len()],
            messages: batch.messages,
            source: batch.source,
            outcomes,
            next: 0,
            waits_for_room: false,
            wake: Arc::new(Notify::new()),
        }
    }

    pub(crate) const fn is_complete(&self) -> bool {
        self.chain.is_complete()
    }

    pub(crate) fn source(&self) -> &Arc<str> {
        &self.source
    }

    /// Returns the first message to enqueue at or after this index of the batch, and its index.
    pub(crate) fn next(&mut self, from: usize) -> Option<(usize, Arc<Stored>)> {
        let waits = |index: &usize| self.chain.is_waiting(*index);
        self.next = (self.next..self.messages.len()).find(waits)?;
        let index = (from.max(self.next)..self.messages.len()).find(waits)?;
        Some((index, Arc::clone(self.messages.get(index)?)))
    }

    /// Records that the message is in the buffers, and that this many consumers must acknowledge
    /// it.
    pub(crate) fn enqueued(&mut self, index: usize, consumers: usize) {
        self.chain.start(index);
        self.unacknowledged[index] = consumers;
        self.confirm_if_acknowledged(index);
    }

    /// Records that one consumer has acknowledged the message.
    pub(crate) fn acknowledged(&mut self, index: usize) {
        self.unacknowledged[index] = self.unacknowledged[index].saturating_sub(1);
        self.confirm_if_acknowledged(index);
    }

    fn confirm_if_acknowledged(&mut self, index: usize) {
        if self.unacknowledged[index] == 0 {
            let mut reports = Reports::new();
            self.chain.confirm(index, &mut reports);
            self.report(reports);
        }
    }

    /// Records that the message is not delivered; later ones of its key are not tried.
    pub(crate) fn failed(&mut self, index: usize, outcome: Outcome) {
        let mut reports = Reports::new();
        self.chain.fail(index, outcome, &mut reports);
        self.report(reports);
    }

    /// Ends the publication: buffered messages get the first outcome (unknown), the rest the second
    /// (not delivered).
    pub(crate) fn give_up(&mut self, enqueued: &Outcome, waiting: &Outcome) {
        let mut reports = Reports::new();
        self.chain.give_up(enqueued, waiting, &mut reports);
        self.report(reports);
    }

    fn report(&self, reports: Reports) {
        for (index, outcome) in reports {
            self.outcomes.report(index, outcome);
        }
        if self.is_complete() {
            self.wake.notify_one();
        }
    }
}
