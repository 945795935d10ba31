//! The diverter: takes the steps of failing keys to the store.
//!
//! A lane does not wait for its steps: other keys go on meanwhile. A step whose result is unknown makes this actor fail, and with it everything
//! that is known of the route: the store is read again.

use std::collections::{BTreeSet, VecDeque};
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

pub(crate) enum DiverterMsg {
    /// Steps of one lane.
    Steps { lane: ActorRef<LaneMsg>, asks: Vec<Ask> },
    /// Take to the store what is there.
    Flush,
}

#[derive(Default)]
pub(crate) struct DiverterState {
    asks: VecDeque<(ActorRef<LaneMsg>, Ask)>,
    flushing: bool,
}

/// The most steps of one call.
const MOST_STEPS: usize = 200;
/// The most rows of one call, so that it is over well before it counts as failed. A step alone has fewer.
const MOST_ROWS: usize = 2_000;

#[ractor::actor(message = DiverterMsg, state = DiverterState)]
impl Diverter {
    async fn pre_start(
        &self,
        _myself: ActorRef<DiverterMsg>,
        (): (),
    ) -> Result<DiverterState, ActorProcessingErr> {
        Ok(DiverterState::default())
    }

    async fn handle(
        &self,
        myself: ActorRef<DiverterMsg>,
        message: DiverterMsg,
        state: &mut DiverterState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            DiverterMsg::Steps { lane, asks } => {
                state.asks.extend(asks.into_iter().map(|ask| (lane.clone(), ask)));
            }
            DiverterMsg::Flush => {
                state.flushing = false;
                self.flush(state).await?;
            }
        }
        if !state.flushing && !state.asks.is_empty() {
            // Behind what is in the mailbox already: many steps become one call.
            state.flushing = true;
            myself.cast(DiverterMsg::Flush)?;
        }
        Ok(())
    }
}

impl Diverter {
    /// One call.
    async fn flush(&self, state: &mut DiverterState) -> Result<(), ActorProcessingErr> {
        let context = &self.context;
        let steps = steps_of_a_call(state.asks.iter().map(|(_, ask)| ask));
        let mut names = Vec::with_capacity(steps);
        let mut diversions = Vec::with_capacity(steps);
        for (lane, ask) in state.asks.drain(..steps) {
            names.push((lane, ask.key.clone(), ask.generation));
            diversions.push(self.diversion(ask));
        }
        let span = tracing::debug_span!("divert", route = %context.route, steps = diversions.len());
        let call = tracing::Instrument::instrument(context.store.divert(&diversions), span);
        let answers = in_time(context.config.store_timeout, "divert", call).await?;
        let mut of_lanes: Vec<(ActorRef<LaneMsg>, Vec<_>)> = Vec::new();
        for ((lane, key, generation), answer) in names.into_iter().zip(answers) {
            let answer = (key, generation, answer);
            match of_lanes.iter_mut().find(|(other, _)| other.get_id() == lane.get_id()) {
                Some((_, answers)) => answers.push(answer),
                None => of_lanes.push((lane, vec![answer])),
            }
        }
        for (lane, answers) in of_lanes {
            // A lane that is gone was stopped with everything it knew.
            let _ = lane.cast(LaneMsg::Diverted(answers));
        }
        Ok(())
    }
}

/// How many of these go into one call: at least one, and no two of one key.
fn steps_of_a_call<'a>(asks: impl Iterator<Item = &'a Ask>) -> usize {
    let (mut steps, mut rows, mut keys) = (0, 0, BTreeSet::new());
    for ask in asks.take(MOST_STEPS) {
        rows += rows_of(&ask.step);
        if rows > MOST_ROWS || !keys.insert(&ask.key) {
            break;
        }
        steps += 1;
    }
    steps.max(1)
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
    fn diversion(&self, ask: Ask) -> Diversion {
        Diversion {
            route: self.context.route.clone(),
            relay: self.context.relay,
            bucket: ask.bucket,
            epoch: ask.epoch,
            key: ask.key,
            version: ask.version,
            step: ask.step,
        }
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::fetch::RowId;
    use outbox_contract::{Bucket, Epoch, MessageId, Position};

    use super::*;

    fn ask(key: usize, rows: usize) -> Ask {
        let message = outbox_contract::Message::new("t".parse().unwrap(), "t").with_key(key.to_string());
        let row = RowId { position: Position(1), id: MessageId::from_uuid(uuid::Uuid::nil()) };
        Ask {
            key: message.unwrap().key_id(),
            generation: 1,
            bucket: Bucket(0),
            epoch: Epoch(1),
            version: None,
            step: Step::Park { rows: vec![row; rows] },
        }
    }

    fn calls(asks: impl IntoIterator<Item = Ask>) -> Vec<usize> {
        let mut asks: VecDeque<Ask> = asks.into_iter().collect();
        std::iter::from_fn(|| {
            let steps = (!asks.is_empty()).then(|| steps_of_a_call(asks.iter()))?;
            asks.drain(..steps);
            Some(steps)
        })
        .collect()
    }

    #[test]
    fn a_call_has_few_steps_with_many_rows_or_many_with_few() {
        assert_eq!(calls((0..10).map(|key| ask(key, 500))), [4, 4, 2]);
        assert_eq!(calls((0..500).map(|key| ask(key, 1))), [200, 200, 100]);
    }

    #[test]
    fn a_step_that_is_too_large_goes_alone() {
        assert_eq!(calls([ask(0, 1), ask(1, 9_999), ask(2, 1)]), [1, 1, 1]);
    }

    #[test]
    fn two_steps_of_a_key_go_one_after_the_other() {
        assert_eq!(calls([0, 1, 0, 2, 0].map(|key| ask(key, 1))), [2, 2, 1]);
    }
}
