//! The acknowledger: tells the broker what is finished. Several deliveries at a time, since to most brokers many cost as much as one.
//!
//! What it could not tell it keeps, and tells again: as long as the subscription lasts the broker may send nothing in its place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outbox_contract::TransportError;
use outbox_contract::backend::{Tag, Unit};
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};

use super::context::Context;
use super::source::Source;
use super::steps::Step;

pub(crate) struct Acknowledger {
    pub(crate) context: Arc<Context>,
    pub(crate) source: Arc<Source>,
    /// How long the first of several waits for the others.
    pub(crate) delay: Duration,
}

pub(crate) enum AcknowledgerMsg {
    /// These are finished.
    Finished(Vec<Tag>),
    /// Tell the broker now.
    Tell,
    /// Tell the broker, and answer whether it was told everything.
    Flush(RpcReplyPort<bool>),
}

#[derive(Default)]
pub(crate) struct AcknowledgerState {
    finished: Vec<Tag>,
    is_planned: bool,
    /// How often in a row the broker could not be told.
    away: u32,
}

/// This part of the prefetch is told at once: the broker sends nothing in place of what it was not told of.
const MAX_OF_PREFETCH: usize = 4;

#[ractor::actor(message = AcknowledgerMsg, state = AcknowledgerState)]
impl Acknowledger {
    async fn pre_start(
        &self,
        _myself: ActorRef<AcknowledgerMsg>,
        (): (),
    ) -> Result<AcknowledgerState, ActorProcessingErr> {
        Ok(AcknowledgerState::default())
    }

    async fn handle(
        &self,
        myself: ActorRef<AcknowledgerMsg>,
        message: AcknowledgerMsg,
        state: &mut AcknowledgerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            AcknowledgerMsg::Finished(tags) => {
                state.finished.extend(tags);
                let is_much = state.finished.len() >= self.context.subscription.prefetch / MAX_OF_PREFETCH;
                if is_much && state.away == 0 {
                    self.tell(state).await?;
                }
            }
            AcknowledgerMsg::Tell => {
                state.is_planned = false;
                self.tell(state).await?;
            }
            AcknowledgerMsg::Flush(reply) => {
                self.tell(state).await?;
                // Whoever asked may have given up waiting.
                let _ = reply.send(state.finished.is_empty());
            }
        }
        self.plan(&myself, state)
    }
}

impl Acknowledger {
    /// Tells the broker again, or what comes together until then, if there is something to tell.
    fn plan(
        &self,
        myself: &ActorRef<AcknowledgerMsg>,
        state: &mut AcknowledgerState,
    ) -> Result<(), ActorProcessingErr> {
        if state.finished.is_empty() || std::mem::replace(&mut state.is_planned, true) {
            return Ok(());
        }
        let config = &self.context.config;
        let delay = match state.away.checked_sub(1) {
            Some(doublings) => {
                let pause = config.outage_first_delay.saturating_mul(1 << doublings.min(16));
                pause.min(config.outage_max_delay)
            }
            None => self.delay,
        };
        if delay.is_zero() {
            // Behind those that have come meanwhile.
            myself.cast(AcknowledgerMsg::Tell)?;
        } else {
            myself.send_after(delay, || AcknowledgerMsg::Tell);
        }
        Ok(())
    }

    /// Keeps what can be told later. When it never can, all of this life of the inbox is over, and what was not told comes again.
    async fn tell(&self, state: &mut AcknowledgerState) -> Result<(), TransportError> {
        if state.finished.is_empty() {
            return Ok(());
        }
        match self.source.acknowledge(&state.finished).await {
            Ok(()) => {
                state.finished.clear();
                state.away = 0;
                self.context.untold.store(false, Ordering::Release);
                self.context.steps.over(Step::Acknowledged);
                Ok(())
            }
            Err(error) if error.is_retryable() => {
                state.away = state.away.saturating_add(1);
                self.context.untold.store(true, Ordering::Release);
                forget_stale(&mut state.finished);
                let deliveries = state.finished.len();
                tracing::warn!(%error, deliveries, "finished deliveries could not be acknowledged; they are kept, and told again");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Drops what belongs to an earlier ownership of its unit: it means nothing any more, and must not pile up.
fn forget_stale(tags: &mut Vec<Tag>) {
    let mut latest: BTreeMap<Unit, u64> = BTreeMap::new();
    for tag in tags.iter() {
        let seen = latest.entry(tag.unit.clone()).or_default();
        *seen = tag.incarnation.max(*seen);
    }
    tags.retain(|tag| latest.get(&tag.unit) == Some(&tag.incarnation));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_latest_ownership_of_each_unit_is_told_again() {
        let tag = |unit, incarnation, number| {
            let unit = Unit { topic: "orders".parse().unwrap(), number: unit };
            Tag { unit, incarnation, number }
        };
        let mut tags = vec![tag(0, 1, 5), tag(1, 1, 1), tag(0, 2, 5), tag(0, 1, 6), tag(0, 2, 7)];
        forget_stale(&mut tags);
        assert_eq!(tags, [tag(1, 1, 1), tag(0, 2, 5), tag(0, 2, 7)]);
    }
}
