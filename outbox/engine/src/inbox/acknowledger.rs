//! The acknowledger: tells the broker what is finished, one command of the core after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outbox_contract::backend::Tag;
use ractor::{ActorProcessingErr, ActorRef};

use super::context::Context;
use super::dispatcher::DispatcherMsg;
use super::source::Source;
use super::steps::Step;

pub(crate) struct Acknowledger {
    pub(crate) context: Arc<Context>,
    pub(crate) source: Arc<Source>,
    pub(crate) dispatcher: ActorRef<DispatcherMsg>,
}

/// Deliveries that are finished.
pub(crate) struct Acknowledge {
    pub(crate) number: u64,
    pub(crate) tags: Arc<Vec<Tag>>,
}

#[ractor::actor(message = Acknowledge, state = ())]
impl Acknowledger {
    async fn pre_start(&self, _myself: ActorRef<Acknowledge>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _myself: ActorRef<Acknowledge>,
        Acknowledge { number, tags }: Acknowledge,
        _state: &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let result = match self.source.acknowledge(&tags).await {
            Ok(()) => {
                self.context.untold.store(false, Ordering::Release);
                self.context.consumed.acknowledged(&tags, self.context.clock.now());
                self.context.steps.over(Step::Acknowledged);
                Ok(true)
            }
            Err(error) if error.is_retryable() => {
                self.context.untold.store(true, Ordering::Release);
                let deliveries = tags.len();
                tracing::warn!(%error, deliveries, "could not acknowledge finished deliveries; will retry");
                Ok(false)
            }
            Err(error) => Err(error),
        };
        Ok(self.dispatcher.cast(DispatcherMsg::Acknowledged { number, result })?)
    }
}
