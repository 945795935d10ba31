//! The receiver: takes what the broker delivers, and passes it to the dispatcher.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::TransportError;
use outbox_contract::backend::{Delivery, Received};
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};

use super::context::Context;
use super::core::{Event, Item};
use super::dispatcher::DispatcherMsg;
use super::source::Source;
use super::steps::Step;
use super::supervisor::InboxMsg;
use super::undecodable::message_of;

pub(crate) struct Receiver {
    pub(crate) context: Arc<Context>,
    pub(crate) source: Arc<Source>,
    pub(crate) supervisor: ActorRef<InboxMsg>,
    pub(crate) dispatcher: ActorRef<DispatcherMsg>,
}

pub(crate) enum ReceiverMsg {
    /// Wait for the next deliveries.
    Next,
    /// Answers when everything that came in is passed on. The subscription was drained before.
    Finish(RpcReplyPort<()>),
}

#[derive(Default)]
pub(crate) struct ReceiverState {
    /// Number of errors in a row.
    away: u32,
    ended: bool,
}

#[ractor::actor(message = ReceiverMsg, state = ReceiverState)]
impl Receiver {
    async fn pre_start(
        &self,
        _myself: ActorRef<ReceiverMsg>,
        (): (),
    ) -> Result<ReceiverState, ActorProcessingErr> {
        Ok(ReceiverState::default())
    }

    async fn post_start(
        &self,
        myself: ActorRef<ReceiverMsg>,
        _state: &mut ReceiverState,
    ) -> Result<(), ActorProcessingErr> {
        Ok(myself.cast(ReceiverMsg::Next)?)
    }

    async fn handle(
        &self,
        myself: ActorRef<ReceiverMsg>,
        message: ReceiverMsg,
        state: &mut ReceiverState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ReceiverMsg::Next if state.ended => {}
            ReceiverMsg::Next => {
                self.receive(state).await?;
                if !state.ended {
                    myself.cast(ReceiverMsg::Next)?;
                }
            }
            ReceiverMsg::Finish(reply) => {
                // The pending wait is over. Messages from now on go to the next owner.
                state.ended = true;
                let _ = reply.send(());
            }
        }
        Ok(())
    }
}

impl Receiver {
    async fn receive(&self, state: &mut ReceiverState) -> Result<(), ActorProcessingErr> {
        let event = match self.source.next().await {
            Ok(Received::Deliveries(deliveries)) => {
                self.context.outage.over();
                self.context.counters.received(deliveries.len());
                self.context.steps.over(Step::Received);
                Event::Delivered(deliveries.into_iter().map(|delivery| self.item(delivery)).collect())
            }
            Ok(Received::Revoked(units)) => Event::Revoked(units),
            Ok(Received::Ended) => {
                state.ended = true;
                // News to the supervisor unless it has asked for it.
                return Ok(self.supervisor.cast(InboxMsg::Ended)?);
            }
            Ok(other) => {
                return Err(format!("the subscription returned {other:?}, which this version does not know; upgrade outbox together with its transport").into());
            }
            Err(error) if error.is_retryable() => {
                self.wait_for_broker(&error, state).await;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        state.away = 0;
        Ok(self.dispatcher.cast(DispatcherMsg::Event(event))?)
    }

    async fn wait_for_broker(&self, error: &TransportError, state: &mut ReceiverState) {
        let config = &self.context.config;
        let pause = config.outage_first_delay.saturating_mul(1 << state.away.min(16));
        if state.away == 0 {
            tracing::warn!(%error, "the broker returns only errors; will keep retrying");
        } else {
            tracing::debug!(%error, "the broker still returns only errors");
        }
        state.away = state.away.saturating_add(1);
        self.context.outage.failed(self.context.now(), error.to_string());
        // Asking again costs nothing, and what has come meanwhile must not wait for long: the
        // transport connects by itself.
        tokio::time::sleep(pause.min(config.outage_max_delay).min(MAX_PAUSE)).await;
    }

    fn item(&self, delivery: Delivery) -> Item {
        let (tag, message) = message_of(delivery, self.context.mapper.as_ref());
        Item {
            tag,
            key: message.key_id(),
            handler: self.context.process.handler_of(&message),
            _hold: self.context.credit.take(message.bytes()),
            message: Arc::new(message),
        }
    }
}

/// The longest pause after an error of the subscription.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The longest that a broker may be silent about a wish.
pub(crate) const BROKER_TIMEOUT: Duration = Duration::from_secs(5);
