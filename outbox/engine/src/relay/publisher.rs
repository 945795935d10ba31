//! Publisher: sends one batch at a time.
//!
//! A route has as many publishers as it may have unconfirmed batches. A publisher runs the code of
//! the transport. If that panics, the route sees its publisher fail, takes the outcomes reported so
//! far, and starts another publisher.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_contract::backend::{Bucket, Epoch, Outcome, Outcomes, PublishBatch, Stored};
use ractor::{ActorProcessingErr, ActorRef};
use tracing::Instrument;

use super::context::Context;
use super::core::{Event, Line, PublishCommand};
use super::publish_timeout::{Around, BatchProgress, LOOKS};
use super::route::CoreMsg;
use crate::telemetry::publish_span;

pub(crate) struct Publisher {
    pub(crate) context: Arc<Context>,
    pub(crate) route: ActorRef<CoreMsg>,
    /// True while the route waits until nothing is in flight: then no batch gets more than its
    /// timeout.
    pub(crate) strict_timeout: Arc<AtomicBool>,
}

/// Batch to send.
pub(crate) struct Publish {
    pub(crate) batch: PublishCommand,
    pub(crate) outcomes: Outcomes,
}

#[ractor::actor(message = Publish, state = ())]
impl Publisher {
    async fn pre_start(&self, _myself: ActorRef<Publish>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Publish>,
        publish: Publish,
        _state: &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let Publish { batch, outcomes } = publish;
        let number = batch.number;
        let span = publish_span(&self.context.route, &batch.messages);
        let refused = self.publish(batch, &outcomes).instrument(span).await;
        // The route is gone only when all its actors stop; then nothing needs the outcome.
        let _ = self.route.cast(CoreMsg::Published { publisher: myself.get_id(), number, refused });
        Ok(())
    }
}

impl Publisher {
    /// Sends a batch. Returns the slots of messages that were refused without asking the broker.
    async fn publish(&self, batch: PublishCommand, outcomes: &Outcomes) -> BTreeSet<usize> {
        let context = &self.context;
        // This check makes a relay harmless that slept past its lease: it compares with the clock,
        // and needs no message from another actor.
        if !context.tenure.holds(context.now()) {
            outcomes.report_rest(&Outcome::Blocked);
            return BTreeSet::new();
        }
        let lost = self.lost(&batch.epochs);
        if !lost.is_empty() {
            // Sent before the outcomes, so that the core does not retry blocked messages in a loop
            // until it knows of the loss.
            let _ = self.route.cast(CoreMsg::Lapsed(lost.clone()));
        }
        let mut refused = BTreeSet::new();
        let (messages, slots) = self.validated(batch.messages, &lost, outcomes, &mut refused);
        if messages.is_empty() {
            return refused;
        }
        let inner = if slots.is_some() { Outcomes::new(messages.len()) } else { outcomes.clone() };
        let deadline = context.config.publish_timeout;
        let flight = Flight { number: batch.number, epochs: batch.epochs.clone(), line: batch.line };
        let batch = PublishBatch::new(
            context.route.clone(),
            context.relay,
            Arc::clone(&context.source),
            messages,
            deadline,
        )
        .with_now(context.store_now())
        .with_tried(batch.attempts)
        .with_epochs(batch.epochs);
        let pass_on = || {
            for (slot, delivered) in slots.iter().flatten().zip(inner.delivered()) {
                if delivered {
                    outcomes.report(*slot, Outcome::Delivered);
                }
            }
        };
        self.wait_for(flight, batch, &inner, pass_on).await;
        if let Some(slots) = slots {
            for (slot, outcome) in slots.into_iter().zip(inner.take()) {
                if let Some(outcome) = outcome {
                    outcomes.report(slot, outcome);
                }
            }
        }
        refused
    }

    /// Waits for a batch. Calls `pass_on` before it notifies the core of new deliveries.
    async fn wait_for(&self, flight: Flight, batch: PublishBatch, outcomes: &Outcomes, pass_on: impl Fn()) {
        let context = &self.context;
        let limit = context.config.publish_timeout;
        let began = context.now();
        let entry = UnconfirmedEntry::begin(context);
        let mut progress = BatchProgress::new(batch.messages.len());
        let mut told = None;
        let publishing = context.transport.publish(batch, outcomes);
        tokio::pin!(publishing);
        loop {
            tokio::select! {
                // The timer comes first: a relay that slept checks its leases before it does
                // anything else.
                biased;
                () = tokio::time::sleep(limit / LOOKS) => {}
                () = &mut publishing => break,
            }
            let now = context.now();
            // A suspect batch may be the one that hangs: it waits behind no other.
            let others_go_on = flight.line == Line::Ready
                && context.out().is_heard_since(entry.batch, now.saturating_sub(limit));
            let may_wait = !self.strict_timeout.load(Ordering::Acquire)
                && context.tenure.holds(now)
                && self.lost(&flight.epochs).is_empty();
            let stopped = outcomes.stop_reason();
            let around = Around {
                others_go_on,
                is_stopped: stopped.is_some(),
                may_wait,
                is_overdue: now.saturating_sub(began) >= limit,
            };
            if let Some(reason) = &stopped
                && told.is_none()
            {
                let _ = self.route.cast(CoreMsg::Event(Event::TransportStopped(reason.clone())));
            }
            told = stopped;
            let keep_waiting = progress.look(outcomes.answered(), around);
            if progress.is_news() {
                entry.heard(now);
                pass_on();
                let _ = self.route.cast(CoreMsg::Heard { number: flight.number });
            }
            if !keep_waiting {
                tracing::warn!(
                    route = %context.route,
                    ?limit,
                    "publish timeout: the transport did not confirm the batch in time; unconfirmed \
                     messages are sent again; if the broker is slow, raise publish_timeout"
                );
                return;
            }
        }
        if outcomes.answered() > 0 {
            entry.heard(context.now());
        }
    }

    /// Returns the buckets of a batch that this relay no longer owns under these epochs.
    fn lost(&self, epochs: &BTreeMap<Bucket, Epoch>) -> BTreeMap<Bucket, Epoch> {
        let owned = |(bucket, epoch): (&Bucket, &Epoch)| self.context.tenure.owns(*bucket, *epoch);
        epochs.iter().filter(|lease| !owned(*lease)).map(|(bucket, epoch)| (*bucket, *epoch)).collect()
    }

    /// Splits off messages of lost buckets, messages that the transport can never carry, and those
    /// behind them of the same key. Returns the rest with their slots, or no slots if all messages
    /// remain.
    fn validated(
        &self,
        messages: Vec<Arc<Stored>>,
        lost: &BTreeMap<Bucket, Epoch>,
        outcomes: &Outcomes,
        refused: &mut BTreeSet<usize>,
    ) -> (Vec<Arc<Stored>>, Option<Vec<usize>>) {
        let mut cut = BTreeSet::new();
        let remains = |(slot, stored): &(usize, Arc<Stored>)| {
            let is_cut = lost.contains_key(&stored.bucket)
                || (!cut.is_empty() && cut.contains(&stored.message.key_id()));
            // Asked once: a transport may learn of another limit at any time.
            let outcome = if is_cut {
                Outcome::Blocked
            } else if let Err(rejection) = self.context.transport.validate(&stored.message) {
                refused.insert(*slot);
                Outcome::Rejected(rejection.0)
            } else {
                return true;
            };
            outcomes.report(*slot, outcome);
            cut.insert(stored.message.key_id());
            false
        };
        let (slots, rest): (Vec<usize>, _) = messages.into_iter().enumerate().filter(remains).unzip();
        (rest, (!cut.is_empty()).then_some(slots))
    }
}

/// Facts about a batch in flight that decide how long it is waited for.
struct Flight {
    number: u64,
    epochs: BTreeMap<Bucket, Epoch>,
    line: Line,
}

/// Entry of a batch among the unconfirmed ones. Dropping it removes the batch, also when the
/// publisher is killed or the transport panics.
struct UnconfirmedEntry<'c> {
    context: &'c Context,
    batch: u64,
}

impl<'c> UnconfirmedEntry<'c> {
    fn begin(context: &'c Context) -> Self {
        let batch = context.out().begin();
        Self { context, batch }
    }

    fn heard(&self, now: Duration) {
        self.context.out().heard(self.batch, now);
    }
}

impl Drop for UnconfirmedEntry<'_> {
    fn drop(&mut self) {
        self.context.out().end(self.batch);
    }
}
