//! The diverter: takes the steps of failing keys to the store.
//!
//! A lane does not wait for its steps: other keys go on meanwhile. A step whose result is unknown makes this actor fail, and with it everything
//! that is known of the route: the store is read again.

use std::collections::VecDeque;
use std::sync::Arc;

use outbox_contract::Diversion;
use outbox_contract::divert::Step;
use ractor::{ActorProcessingErr, ActorRef};

use super::context::{Context, in_time};
use super::key::Ask;
use super::lane::LaneMsg;

pub(crate) struct Diverter {
    pub(crate) context: Arc<Context>,
}

/// Steps of one lane.
pub(crate) struct DiverterMsg {
    pub(crate) lane: ActorRef<LaneMsg>,
    pub(crate) asks: Vec<Ask>,
}

/// The most steps of one call.
const MOST_STEPS: usize = 200;
/// The most rows of one call, so that it is over well before it counts as failed. A step alone has fewer.
const MOST_ROWS: usize = 2_000;

#[ractor::actor(message = DiverterMsg, state = ())]
impl Diverter {
    async fn pre_start(&self, _myself: ActorRef<DiverterMsg>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _myself: ActorRef<DiverterMsg>,
        message: DiverterMsg,
        _state: &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let DiverterMsg { lane, asks } = message;
        let context = &self.context;
        let mut asks = VecDeque::from(asks);
        while !asks.is_empty() {
            let steps = steps_of_a_call(&asks);
            let (names, diversions): (Vec<_>, Vec<_>) =
                asks.drain(..steps).map(|ask| self.diversion(ask)).unzip();
            let span = tracing::debug_span!("divert", route = %context.route, steps = diversions.len());
            let call = context.store.divert(&diversions);
            let answers =
                in_time(context.config.store_timeout, "divert", tracing::Instrument::instrument(call, span))
                    .await?;
            let answers =
                names.into_iter().zip(answers).map(|((key, generation), answer)| (key, generation, answer));
            // A lane that is gone was stopped with everything it knew.
            let _ = lane.cast(LaneMsg::Diverted(answers.collect()));
        }
        Ok(())
    }
}

/// How many of these go into one call: at least one.
fn steps_of_a_call(asks: &VecDeque<Ask>) -> usize {
    let mut rows = 0;
    let fits = |ask: &&Ask| {
        rows += rows_of(&ask.step);
        rows <= MOST_ROWS
    };
    asks.iter().take(MOST_STEPS).take_while(fits).count().max(1)
}

fn rows_of(step: &Step) -> usize {
    match step {
        Step::Fail { behind, .. } => 1 + behind.len(),
        Step::Park { rows } => rows.len(),
        Step::Bury { .. } => 1,
        Step::Resume { delivered } => delivered.len(),
    }
}

impl Diverter {
    fn diversion(&self, ask: Ask) -> ((outbox_contract::KeyId, u64), Diversion) {
        let name = (ask.key.clone(), ask.generation);
        let diversion = Diversion {
            route: self.context.route.clone(),
            relay: self.context.relay,
            bucket: ask.bucket,
            epoch: ask.epoch,
            key: ask.key,
            version: ask.version,
            step: ask.step,
        };
        (name, diversion)
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::fetch::RowId;
    use outbox_contract::{Bucket, Epoch, MessageId, Position};

    use super::*;

    fn ask(rows: usize) -> Ask {
        let message = outbox_contract::Message::new("t".parse().unwrap(), "t");
        let row = RowId { position: Position(1), id: MessageId::from_uuid(uuid::Uuid::nil()) };
        Ask {
            key: message.key_id(),
            generation: 1,
            bucket: Bucket(0),
            epoch: Epoch(1),
            version: None,
            step: Step::Park { rows: vec![row; rows] },
        }
    }

    fn calls(mut asks: VecDeque<Ask>) -> Vec<usize> {
        std::iter::from_fn(|| {
            let steps = (!asks.is_empty()).then(|| steps_of_a_call(&asks))?;
            asks.drain(..steps);
            Some(steps)
        })
        .collect()
    }

    #[test]
    fn a_call_has_few_steps_with_many_rows_or_many_with_few() {
        assert_eq!(calls((0..10).map(|_| ask(500)).collect()), [4, 4, 2]);
        assert_eq!(calls((0..500).map(|_| ask(1)).collect()), [200, 200, 100]);
    }

    #[test]
    fn a_step_that_is_too_large_goes_alone() {
        assert_eq!(calls([ask(1), ask(9_999), ask(1)].into_iter().collect()), [1, 1, 1]);
    }
}
