//! Publishing to RabbitMQ with only the client library, as in hand-written code that is optimized
//! for speed.
//!
//! On the wire it sends the same as our transport: the same exchange, routing key, properties,
//! headers and body.

use std::sync::Arc;

use futures_util::future::try_join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, PublisherConfirm};
use outbox_contract::backend::Stored;
use outbox_contract::backend::cloudevents::{self, AMQP};

use crate::bench::TOPIC;

/// A connection with one channel, which confirms.
pub(crate) struct ByHand {
    connection: Connection,
    channel: Channel,
}

/// The exchange that our transport has created.
const EXCHANGE: &str = "outbox";
/// A message that reaches no queue is returned, instead of being confirmed and dropped.
const OPTIONS: BasicPublishOptions = BasicPublishOptions { mandatory: true, immediate: false };
/// Kept on the disk.
const PERSISTENT: u8 = 2;

impl ByHand {
    pub(crate) async fn connect(url: &str) -> lapin::Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(Self { connection, channel })
    }

    /// Publishes messages, all at once; returns when all are confirmed.
    pub(crate) async fn publish(&self, messages: &[Arc<Stored>]) -> lapin::Result<()> {
        // One after the other, each would wait until the one before is written.
        let sent = try_join_all(messages.iter().map(|stored| self.send(stored))).await?;
        for confirmation in try_join_all(sent).await? {
            assert_eq!(confirmation, Confirmation::Ack(None), "the broker takes everything");
        }
        Ok(())
    }

    async fn send(&self, stored: &Stored) -> lapin::Result<PublisherConfirm> {
        let (exchange, payload) = (EXCHANGE.into(), &stored.message.payload);
        self.channel.basic_publish(exchange, TOPIC.into(), OPTIONS, payload, properties(stored)).await
    }

    pub(crate) async fn close(self) {
        self.connection.close(200, "OK".into()).await.expect("the broker answers");
    }
}

fn properties(stored: &Stored) -> BasicProperties {
    let message = &stored.message;
    let mut headers = FieldTable::default();
    cloudevents::each(message, "/bench", stored.position, AMQP, |name, value| {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    });
    BasicProperties::default()
        .with_content_type(message.content_type.to_string().into())
        .with_delivery_mode(PERSISTENT)
        .with_message_id(message.id.to_string().into())
        .with_headers(headers)
}
