//! Transitions of failing keys, and pauses of topics by the retry policy: an actor that writes them
//! to the store.
//!
//! Only their own keys wait for them. A call whose result is unknown makes this actor fail, and the
//! route restarts: the store is read again.

use std::collections::VecDeque;
use std::sync::Arc;

use outbox_contract::admin::Actor;
use outbox_contract::backend::{KeyTransition, Step};
use outbox_contract::{AdminExt, Failure, Topic};
use ractor::{ActorProcessingErr, ActorRef};

use super::context::{Context, in_time};
use super::core::Event;
use super::route::CoreMsg;

pub(crate) struct Transitions {
    pub(crate) context: Arc<Context>,
}

pub(crate) enum TransitionsMsg {
    /// Report answers to this route.
    Serve(ActorRef<CoreMsg>),
    /// Make these transitions, each with its number.
    Make(Vec<(u64, KeyTransition)>),
    /// Pause this topic, because of this failure.
    Pause { number: u64, topic: Topic, failure: Failure },
    /// Write the queued transitions to the store.
    Flush,
}

#[derive(Default)]
pub(crate) struct TransitionsState {
    route: Option<ActorRef<CoreMsg>>,
    asked: VecDeque<(u64, KeyTransition)>,
    flushing: bool,
}

/// Maximum number of transitions of one call.
const MAX_TRANSITIONS: usize = 200;
/// Maximum number of rows of one call, so that it finishes well within its timeout. A single
/// transition has fewer.
const MAX_ROWS: usize = 2_000;

#[ractor::actor(message = TransitionsMsg, state = TransitionsState)]
impl Transitions {
    async fn pre_start(
        &self,
        _myself: ActorRef<TransitionsMsg>,
        (): (),
    ) -> Result<TransitionsState, ActorProcessingErr> {
        Ok(TransitionsState::default())
    }

    async fn handle(
        &self,
        myself: ActorRef<TransitionsMsg>,
        message: TransitionsMsg,
        state: &mut TransitionsState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            TransitionsMsg::Serve(route) => state.route = Some(route),
            TransitionsMsg::Make(transitions) => state.asked.extend(transitions),
            TransitionsMsg::Pause { number, topic, failure } => {
                self.pause(&topic, &failure).await?;
                state.tell(Event::TopicPaused { number });
            }
            TransitionsMsg::Flush => {
                state.flushing = false;
                self.flush(state).await?;
            }
        }
        if !state.asked.is_empty() && !state.flushing {
            // Queued behind what is in the mailbox already, so that transitions of many keys become
            // one call.
            state.flushing = true;
            myself.cast(TransitionsMsg::Flush)?;
        }
        Ok(())
    }
}

impl Transitions {
    async fn flush(&self, state: &mut TransitionsState) -> Result<(), ActorProcessingErr> {
        let Context { store, route, config, .. } = &*self.context;
        let count = transitions_of_a_call(&state.asked).min(state.asked.len());
        let (numbers, transitions): (Vec<u64>, Vec<KeyTransition>) = state.asked.drain(..count).unzip();
        let span = tracing::debug_span!("transition", %route, steps = transitions.len());
        let call = tracing::Instrument::instrument(store.transition(&transitions), span);
        let answers = in_time(config.store_timeout, "transition", call).await?;
        for (number, answer) in numbers.into_iter().zip(answers) {
            state.tell(Event::Transitioned { number, answer });
        }
        Ok(())
    }

    /// Pauses a topic. The audit has the reason as the name of who did it.
    async fn pause(&self, topic: &Topic, failure: &Failure) -> Result<(), ActorProcessingErr> {
        let Context { store, route, config, .. } = &*self.context;
        let actor = Actor::new(format!("{}, by its retry policy: {failure}", config.label));
        let store = store.acting_as(actor);
        in_time(config.store_timeout, "pause", store.pause(route, Some(topic))).await?;
        Ok(())
    }
}

impl TransitionsState {
    fn tell(&self, event: Event) {
        if let Some(route) = &self.route {
            // A route that is gone was stopped with all its state.
            let _ = route.cast(CoreMsg::Event(event));
        }
    }
}

/// Returns the number of leading transitions that go into one call: at least one.
fn transitions_of_a_call(asked: &VecDeque<(u64, KeyTransition)>) -> usize {
    let mut rows = 0;
    let fits = |(_, transition): &&(u64, KeyTransition)| {
        rows += rows_of(&transition.step);
        rows <= MAX_ROWS
    };
    asked.iter().take(MAX_TRANSITIONS).take_while(fits).count().max(1)
}

fn rows_of(step: &Step) -> usize {
    match step {
        Step::Fail { behind, .. } => 1 + behind.len(),
        Step::Park { rows } => rows.len(),
        Step::Bury { .. } => 1,
        Step::Resume { delivered } => delivered.len(),
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::backend::{Bucket, Epoch, Position, RelayId, RowId};
    use outbox_contract::{MessageId, Route};

    use super::*;

    fn park(rows: usize) -> (u64, KeyTransition) {
        let message = outbox_contract::Message::new("t", "t").unwrap();
        let row = RowId { position: Position(1), id: MessageId::from_uuid(uuid::Uuid::nil()) };
        let transition = KeyTransition::new(
            Route::default(),
            RelayId::new(),
            (Bucket(0), Epoch(1)),
            message.key_id(),
            None,
            Step::Park { rows: vec![row; rows] },
        );
        (1, transition)
    }

    fn calls(mut asked: VecDeque<(u64, KeyTransition)>) -> Vec<usize> {
        std::iter::from_fn(|| {
            let count = (!asked.is_empty()).then(|| transitions_of_a_call(&asked))?;
            asked.drain(..count);
            Some(count)
        })
        .collect()
    }

    #[test]
    fn a_call_has_few_transitions_with_many_rows_or_many_with_few() {
        assert_eq!(calls((0..10).map(|_| park(500)).collect()), [4, 4, 2]);
        assert_eq!(calls((0..500).map(|_| park(1)).collect()), [200, 200, 100]);
    }

    #[test]
    fn a_transition_that_is_too_large_goes_alone() {
        assert_eq!(calls([park(1), park(9_999), park(1)].into_iter().collect()), [1, 1, 1]);
    }
}
