//! Publishing alone: batches from memory, as many at once as a relay has in flight.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use futures_util::{Stream, StreamExt};
use outbox_contract::backend::{Outcome, Outcomes, Position, PublishBatch, RelayId, Stored};
use outbox_contract::{Message, Route, Timestamp, Transport};
use serde::{Deserialize, Serialize};

use crate::bench::KEYS;
use crate::broker::Address;
use crate::by_hand::ByHand;
use crate::child::{finished, measured, ready, tell};
use crate::ours::topic;

/// Messages to publish.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Publish {
    pub(crate) broker: Address,
    pub(crate) messages: u64,
    /// With the client library alone. To RabbitMQ only.
    pub(crate) by_hand: bool,
}

/// Number of messages in a batch of a relay.
pub(crate) const CHUNK: usize = 500;
/// Lanes times depth of a relay.
const AT_ONCE: usize = 8;
/// Default number of connections of our transport to RabbitMQ.
const CONNECTIONS: usize = 2;

impl Publish {
    pub(crate) async fn play(self) {
        let transport = self.broker.transport();
        answers(&*transport).await;
        let stored: Vec<Arc<Stored>> = (0..self.messages).map(made).collect();
        let chunks = futures_util::stream::iter(stored.chunks(CHUNK));
        if self.by_hand {
            transport.close().await;
            return self.by_hand(chunks).await;
        }
        ready().await;
        let work = chunks.for_each_concurrent(AT_ONCE, |batch| publish(&*transport, batch.to_vec()));
        tell(&measured(self.messages, work).await);
        finished().await;
        transport.close().await;
    }

    /// Publishes the same batches, as many at once.
    async fn by_hand(&self, chunks: impl Stream<Item = &[Arc<Stored>]>) {
        let connect = (0..CONNECTIONS).map(|_| ByHand::connect(&self.broker.url));
        let connections: Vec<ByHand> = try_join_all(connect).await.expect("the broker answers");
        ready().await;
        let work = chunks.enumerate().for_each_concurrent(AT_ONCE, |(number, batch)| {
            let published = connections[number % CONNECTIONS].publish(batch);
            async { published.await.expect("the broker answers") }
        });
        tell(&measured(self.messages, work).await);
        finished().await;
        join_all(connections.into_iter().map(ByHand::close)).await;
    }
}

/// Waits for the broker: what the subject before it left behind may keep it busy for seconds.
pub(crate) async fn answers(transport: &dyn Transport) {
    let mut tries = 0;
    while let Err(error) = transport.check().await {
        tries += 1;
        assert!(tries < 20, "the broker does not answer: {error}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Publishes a batch, and its undelivered messages again.
pub(crate) async fn publish(transport: &dyn Transport, mut messages: Vec<Arc<Stored>>) {
    let relay = RelayId::new();
    while !messages.is_empty() {
        let outcomes = Outcomes::new(messages.len());
        let source = Arc::from("/bench");
        let batch =
            PublishBatch::new(Route::default(), relay, source, messages.clone(), Duration::from_secs(30));
        transport.publish(batch, &outcomes).await;
        let mut taken = outcomes.take().into_iter();
        messages.retain(|_| taken.next() != Some(Some(Outcome::Delivered)));
    }
}

fn made(number: u64) -> Arc<Stored> {
    let payload = format!("{:x<300}", format!("{{\"n\":{number},\"x\":\""));
    let message = Message::new(topic(), "bench.made").expect("valid names").with_payload(payload);
    let message = message.with_key(format!("key-{}", number % KEYS)).expect("a valid key");
    let position = Position(i64::try_from(number).unwrap_or(i64::MAX) + 1);
    Arc::new(Stored::new(position, Timestamp::default(), message))
}
