//! Filling of the queue, before its messages are consumed.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Outcome, Outcomes, Position, PublishBatch, RelayId, Stored};
use outbox_contract::{Message, Route, Timestamp, Topic, Transport};
use serde::{Deserialize, Serialize};

use crate::bench::KEYS;
use crate::broker::Address;
use crate::child::{ready, tell};

/// Number of messages, and their destination.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fill {
    pub(crate) broker: Address,
    pub(crate) messages: u64,
    /// Messages per second; None: as many as the broker takes.
    pub(crate) rate: Option<u32>,
}

impl Fill {
    pub(crate) async fn play(self) {
        let (transport, topic) = (self.broker.transport(), self.broker.topic());
        ready().await;
        let stored: Vec<Arc<Stored>> = (0..self.messages)
            .map(|number| made(&topic, number, &format!("key-{}", number % KEYS)))
            .collect();
        // One batch after the other: the queue has them in this order.
        let (chunk, every) = match self.rate {
            Some(rate) => (usize::try_from(rate / 20).unwrap_or(1).max(1), Duration::from_millis(50)),
            None => (250, Duration::from_nanos(1)),
        };
        let mut turn = tokio::time::interval(every);
        for batch in stored.chunks(chunk) {
            turn.tick().await;
            publish(&*transport, batch.to_vec()).await;
        }
        tell(&());
        transport.close().await;
    }
}

/// Publishes a batch, and its undelivered messages again.
pub(crate) async fn publish(transport: &dyn Transport, mut messages: Vec<Arc<Stored>>) {
    let relay = RelayId::new();
    while !messages.is_empty() {
        let outcomes = Outcomes::new(messages.len());
        let batch = PublishBatch::new(
            Route::default(),
            relay,
            Arc::from("/bench"),
            messages.clone(),
            Duration::from_secs(30),
        );
        transport.publish(batch, &outcomes).await;
        let mut taken = outcomes.take().into_iter();
        messages.retain(|_| taken.next() != Some(Some(Outcome::Delivered)));
    }
}

/// A message of 300 bytes.
pub(crate) fn made(topic: &Topic, number: u64, key: &str) -> Arc<Stored> {
    let payload = format!("{:x<298}\"}}", format!("{{\"n\":{number},\"x\":\""));
    let message = Message::new(topic.clone(), "order.placed").expect("valid names").with_payload(payload);
    let message = message.with_key(key).expect("a valid key");
    let position = Position(i64::try_from(number).unwrap_or(i64::MAX) + 1);
    Arc::new(Stored::new(position, Timestamp::default(), message))
}
