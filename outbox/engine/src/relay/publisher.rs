//! A publisher: sends one batch at a time.
//!
//! A route has as many as it may have batches unconfirmed. A publisher runs code that is not ours; if that panics, the route sees its publisher
//! fail, takes what was reported by then, and starts another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outbox_contract::backend::{Bucket, Epoch, Outcome, Outcomes, PublishBatch, Stored};
use ractor::{ActorProcessingErr, ActorRef};
use tracing::Instrument;

use super::context::Context;
use super::core::{Line, PublishCommand};
use super::publish_timeout::{LOOKS, Vigil};
use super::route::CoreMsg;
use crate::telemetry::publish_span;

pub(crate) struct Publisher {
    pub(crate) context: Arc<Context>,
    pub(crate) route: ActorRef<CoreMsg>,
    /// Whether somebody waits until nothing is in flight: then no batch is waited for beyond its time.
    pub(crate) hurry: Arc<AtomicBool>,
}

/// A batch to send.
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
        // The route is gone only when all of this is over; then nobody needs the outcome.
        let _ = self.route.cast(CoreMsg::Published { publisher: myself.get_id(), number, refused });
        Ok(())
    }
}

impl Publisher {
    /// Sends a batch. Returns what was refused without asking the broker.
    async fn publish(&self, batch: PublishCommand, outcomes: &Outcomes) -> BTreeSet<usize> {
        let context = &self.context;
        // This is what keeps a relay that slept past its lease from doing harm: it looks at the clock, not at what it was told.
        if !context.tenure.holds(context.now()) {
            outcomes.report_rest(&Outcome::Blocked);
            return BTreeSet::new();
        }
        let lost = self.lost(&batch.epochs);
        if !lost.is_empty() {
            // Before the outcomes: what is blocked is not tried again and again until the core has heard of it.
            let _ = self.route.cast(CoreMsg::Lapsed(lost.clone()));
        }
        let mut refused = BTreeSet::new();
        let (messages, slots) = self.validated(batch.messages, &lost, outcomes, &mut refused);
        if messages.is_empty() {
            return refused;
        }
        let whole = slots.is_none();
        let count = messages.len();
        let deadline = context.config.publish_timeout;
        let chunk = PublishBatch::new(
            context.route.clone(),
            context.relay,
            Arc::clone(&context.source),
            messages,
            deadline,
        )
        .with_tried(batch.attempts)
        .with_epochs(batch.epochs.clone());
        let inner = if whole { outcomes.clone() } else { Outcomes::new(count) };
        let pass_on = || {
            for (slot, delivered) in slots.iter().flatten().zip(inner.delivered()) {
                if delivered {
                    outcomes.report(*slot, Outcome::Delivered);
                }
            }
        };
        let flight = Flight { number: batch.number, epochs: batch.epochs, line: batch.line };
        self.wait_for(flight, chunk, &inner, pass_on).await;
        for (slot, outcome) in slots.unwrap_or_default().into_iter().zip(inner_outcomes(whole, &inner)) {
            if let Some(outcome) = outcome {
                outcomes.report(slot, outcome);
            }
        }
        refused
    }

    /// Waits for a batch, for as long as that makes sense. `pass_on` is called before the core is told that something of it was delivered.
    async fn wait_for(&self, flight: Flight, chunk: PublishBatch, outcomes: &Outcomes, pass_on: impl Fn()) {
        let context = &self.context;
        let limit = context.config.publish_timeout;
        let began = context.now();
        let place = Place::begin(context);
        let mut vigil = Vigil::new(chunk.messages.len());
        let publishing = context.transport.publish(chunk, outcomes);
        tokio::pin!(publishing);
        loop {
            tokio::select! {
                // First: a relay that slept looks at its leases before it goes on with anything.
                biased;
                () = tokio::time::sleep(limit / LOOKS) => {}
                () = &mut publishing => break,
            }
            let now = context.now();
            // A suspect may be what hangs: it has no turn to wait for.
            let others_go_on = flight.line == Line::Ready
                && context.out().is_heard_since(place.chunk, now.saturating_sub(limit));
            let may_wait = !self.hurry.load(Ordering::Acquire)
                && context.tenure.holds(now)
                && self.lost(&flight.epochs).is_empty();
            let overdue = now.saturating_sub(began) >= limit;
            let goes_on = vigil.look(outcomes.answered(), others_go_on, may_wait, overdue);
            if vigil.is_news() {
                place.heard(now);
                pass_on();
                let _ = self.route.cast(CoreMsg::Heard { number: flight.number });
            }
            if !goes_on {
                tracing::warn!(
                    ?limit,
                    "the transport did not confirm a chunk in time; what is unconfirmed is sent again"
                );
                return;
            }
        }
        if outcomes.answered() > 0 {
            place.heard(context.now());
        }
    }

    /// The buckets of a batch that this relay does not own any more, or not under these epochs.
    fn lost(&self, epochs: &BTreeMap<Bucket, Epoch>) -> BTreeMap<Bucket, Epoch> {
        let owned = |(bucket, epoch): (&Bucket, &Epoch)| self.context.tenure.owns(*bucket, *epoch);
        epochs.iter().filter(|lease| !owned(*lease)).map(|(bucket, epoch)| (*bucket, *epoch)).collect()
    }

    /// Leaves out what belongs to another relay, what the transport can never carry, and what stands behind it of the same key. None: all may go.
    fn validated(
        &self,
        messages: Vec<Arc<Stored>>,
        lost: &BTreeMap<Bucket, Epoch>,
        outcomes: &Outcomes,
        refused: &mut BTreeSet<usize>,
    ) -> (Vec<Arc<Stored>>, Option<Vec<usize>>) {
        let mut cut = BTreeSet::new();
        for (slot, stored) in messages.iter().enumerate() {
            if lost.contains_key(&stored.bucket) {
                outcomes.report(slot, Outcome::Blocked);
                cut.insert(stored.message.key_id());
            } else if let Err(rejection) = self.context.transport.validate(&stored.message) {
                let key = stored.message.key_id();
                let behind = cut.contains(&key);
                refused.insert(slot);
                outcomes.report(slot, if behind { Outcome::Blocked } else { Outcome::Rejected(rejection.0) });
                cut.insert(key);
            } else if !cut.is_empty() && cut.contains(&stored.message.key_id()) {
                outcomes.report(slot, Outcome::Blocked);
            }
        }
        if cut.is_empty() {
            return (messages, None);
        }
        let mut first_cut = BTreeSet::new();
        let mut kept = Vec::new();
        let mut slots = Vec::new();
        for (slot, stored) in messages.into_iter().enumerate() {
            let key = stored.message.key_id();
            if first_cut.contains(&key)
                || lost.contains_key(&stored.bucket)
                || self.context.transport.validate(&stored.message).is_err()
            {
                first_cut.insert(key);
            } else {
                slots.push(slot);
                kept.push(stored);
            }
        }
        (kept, Some(slots))
    }
}

/// A batch that is out.
struct Flight {
    number: u64,
    epochs: BTreeMap<Bucket, Epoch>,
    line: Line,
}

/// A batch's place among those that are out. Dropping it ends it: also when the publisher is killed, or the transport panics.
struct Place<'c> {
    context: &'c Context,
    chunk: u64,
}

impl<'c> Place<'c> {
    fn begin(context: &'c Context) -> Self {
        let chunk = context.out().begin();
        Self { context, chunk }
    }

    fn heard(&self, now: Duration) {
        self.context.out().heard(self.chunk, now);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.context.out().end(self.chunk);
    }
}

fn inner_outcomes(whole: bool, inner: &Outcomes) -> Vec<Option<Outcome>> {
    if whole { Vec::new() } else { inner.take() }
}
