//! The receiver: takes what the broker delivers, and gives it to the mailboxes, or writes it to the store.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::subscription::{Delivery, Received, Tag, Undecodable};
use outbox_contract::{Headers, Message, Topic};
use ractor::{ActorProcessingErr, ActorRef, RpcReplyPort};

use super::context::Context;
use super::dispatcher::Item;
use super::handlers::{UNDECODABLE, UNDECODABLE_REASON};
use super::mailboxes::MailboxesMsg;
use super::source::Source;
use super::steps::Step;
use super::supervisor::InboxMsg;

pub(crate) struct Receiver {
    pub(crate) context: Arc<Context>,
    pub(crate) source: Arc<Source>,
    pub(crate) supervisor: ActorRef<InboxMsg>,
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
                state.away = state.away.saturating_add(1);
                tracing::warn!(%error, "the broker is away; waiting for it");
                tokio::time::sleep(pause.min(config.outage_most_delay)).await;
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn item(&self, delivery: Delivery) -> Item {
        let message = message_of(delivery.message, &delivery.tag.unit.topic);
        Item {
            tag: delivery.tag,
            key: message.key_id(),
            handler: self.context.process.handler_of(&message),
            _hold: self.context.credit.take(message.bytes()),
            message: Arc::new(message),
        }
    }

    /// Writes deliveries to the store, in their order, and acknowledges them.
    async fn store(&self, deliveries: Vec<Delivery>) -> Result<(), ActorProcessingErr> {
        let (tags, messages): (Vec<Tag>, Vec<Message>) = deliveries
            .into_iter()
            .map(|delivery| {
                let message = message_of(delivery.message, &delivery.tag.unit.topic);
                (delivery.tag, message)
            })
            .unzip();
        let _holds: Vec<_> =
            messages.iter().map(|message| self.context.credit.take(message.bytes())).collect();
        let rows: Vec<&Message> = messages.iter().collect();
        self.context.process.store(&rows).await.map_err(|broken| broken.to_string())?;
        self.context.counters.stored(rows.len());
        self.source.acknowledge(&tags).await;
        self.context.steps.over(Step::Acknowledged);
        Ok(())
    }
}

/// The message; or one that stands for what is none, which no handler gets and which becomes a dead letter.
fn message_of(decoded: Result<Message, Undecodable>, topic: &Topic) -> Message {
    let junk = match decoded {
        Ok(message) => return message,
        Err(junk) => junk,
    };
    let length = junk.payload.len().min(Message::MOST_PAYLOAD_BYTES);
    let mut message = Message::new(topic.clone(), UNDECODABLE)
        .with_content_type("application/octet-stream")
        .with_payload(junk.payload.slice(..length));
    for (name, value) in junk.headers {
        // What can't be a header here can't be kept as one.
        let _ = message.headers.insert(name, value);
    }
    let reason: String = junk.reason.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = reason.floor_char_boundary(Headers::MOST_VALUE_BYTES);
    let _ = message.headers.insert(UNDECODABLE_REASON, &reason[..end]);
    message
}

/// The longest that a broker may be silent about a wish.
pub(crate) const BROKER_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use outbox_contract::Bytes;

    use super::*;

    #[test]
    fn what_is_no_message_is_kept_with_its_bytes_and_the_reason() {
        let headers = vec![("tenant".to_owned(), "acme".to_owned()), (String::new(), "nameless".to_owned())];
        let junk = Undecodable::new("no\nid", Bytes::from_static(b"\xff\x00"), headers);
        let message = message_of(Err(junk), &"orders".parse().unwrap());
        assert!(message.validate().is_ok());
        assert_eq!((&*message.event_type, &message.payload[..]), (UNDECODABLE, &b"\xff\x00"[..]));
        assert_eq!(message.headers.get(UNDECODABLE_REASON), Some("no id"));
        assert_eq!((message.headers.get("tenant"), message.headers.len()), (Some("acme"), 2));
    }

    #[test]
    fn a_reason_of_any_length_is_kept_as_far_as_a_header_goes() {
        let junk = Undecodable::new("é".repeat(9_000), Bytes::new(), Vec::new());
        let message = message_of(Err(junk), &"orders".parse().unwrap());
        assert!(message.headers.get(UNDECODABLE_REASON).is_some_and(|reason| reason.len() > 8_000));
    }
}
