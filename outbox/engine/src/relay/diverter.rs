//! The diverter: takes the steps of failing keys to the store.
//!
//! A lane does not wait for its steps: other keys go on meanwhile. A step whose result is unknown makes this actor fail, and with it everything
//! that is known of the route: the store is read again.

use std::sync::Arc;

use outbox_contract::Diversion;
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
        let mut asks = asks.into_iter().peekable();
        while asks.peek().is_some() {
            let (names, diversions): (Vec<_>, Vec<_>) =
                asks.by_ref().take(MOST_STEPS).map(|ask| self.diversion(ask)).unzip();
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
