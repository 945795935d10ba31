//! The receiver: takes what the broker delivers, and gives it to the mailboxes, or writes it to the store.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::Message;
use outbox_contract::backend::{Delivery, Received, Tag};
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};

use super::acknowledger::AcknowledgerMsg;
use super::context::Context;
use super::dispatcher::Item;
use super::mailboxes::MailboxesMsg;
use super::process::{Errand, Place};
use super::source::Source;
use super::stand_in::message_of;
use super::steps::Step;
use super::supervisor::InboxMsg;

pub(crate) struct Receiver {
    pub(crate) context: Arc<Context>,
    pub(crate) source: Arc<Source>,
    pub(crate) supervisor: ActorRef<InboxMsg>,
    pub(crate) acknowledger: ActorRef<AcknowledgerMsg>,
    /// Where deliveries go. None: to the store.
    pub(crate) mailboxes: Option<ActorRef<MailboxesMsg>>,
}

pub(crate) enum ReceiverMsg {
    /// Wait for the next deliveries.
    Next,
    /// Answers when everything that came in is passed on. The subscription was drained before.
    Finish(RpcReplyPort<()>),
}

pub(crate) struct ReceiverState {
    /// How often in a row the broker was away.
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
        Ok(ReceiverState { away: 0, ended: false })
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
                // What was being waited for is over. What comes now goes to whoever is next.
                state.ended = true;
                let _ = reply.send(());
            }
        }
        Ok(())
    }
}

impl Receiver {
    async fn receive(&self, state: &mut ReceiverState) -> Result<(), ActorProcessingErr> {
        match self.source.next().await {
            Ok(Received::Deliveries(deliveries)) => {
                state.away = 0;
                self.context.absence.over();
                self.context.counters.received(deliveries.len());
                self.context.steps.over(Step::Received);
                match &self.mailboxes {
                    Some(mailboxes) => {
                        let items = deliveries.into_iter().map(|delivery| self.item(delivery)).collect();
                        mailboxes.cast(MailboxesMsg::Deliveries(items))?;
                    }
                    None => self.store(deliveries).await?,
                }
            }
            Ok(Received::Revoked(units)) => {
                state.away = 0;
                if let Some(mailboxes) = &self.mailboxes {
                    mailboxes.cast(MailboxesMsg::Revoked(units))?;
                }
            }
            Ok(Received::Ended) => {
                state.ended = true;
                // News to the supervisor unless it has asked for it.
                self.supervisor.cast(InboxMsg::Ended)?;
            }
            Ok(other) => {
                return Err(format!("the subscription says {other:?}, which is not understood").into());
            }
            Err(error) if error.is_retryable() => {
                let config = &self.context.config;
                let pause = config.outage_first_delay.saturating_mul(1 << state.away.min(16));
                if state.away == 0 {
                    tracing::warn!(%error, "the broker gives nothing but errors; waiting for it");
                } else {
                    tracing::debug!(%error, "the broker still gives nothing but errors");
                }
                state.away = state.away.saturating_add(1);
                self.context.absence.failed(self.context.now(), error.to_string());
                // Asking again costs nothing, and what has come meanwhile must not wait for long: the transport connects by itself.
                tokio::time::sleep(pause.min(config.outage_max_delay).min(MAX_PAUSE)).await;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn item(&self, delivery: Delivery) -> Item {
        let (tag, message) = message_of(delivery);
        Item {
            tag,
            key: message.key_id(),
            handler: self.context.process.handler_of(&message),
            _hold: self.context.credit.take(message.bytes()),
            message: Arc::new(message),
        }
    }

    /// Writes deliveries to the store, in their order, and has them acknowledged.
    async fn store(&self, deliveries: Vec<Delivery>) -> Result<(), ActorProcessingErr> {
        let (tags, messages): (Vec<Tag>, Vec<Message>) = deliveries.into_iter().map(message_of).unzip();
        let _holds: Vec<_> =
            messages.iter().map(|message| self.context.credit.take(message.bytes())).collect();
        let rows: Vec<&Message> = messages.iter().collect();
        let errand = Errand { place: Place::Broker, is_suspect: false, is_wanted: &|| true };
        if !self.context.process.store(&errand, &rows).await.map_err(|broken| broken.to_string())? {
            return Err("not all that came in could be stored".into());
        }
        self.context.counters.stored(rows.len());
        Ok(self.acknowledger.cast(AcknowledgerMsg::Finished(tags))?)
    }
}

/// The longest pause after an error of the subscription.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The longest that a broker may be silent about a wish.
pub(crate) const BROKER_TIMEOUT: Duration = Duration::from_secs(5);
