//! Filling of the queue, before its messages are consumed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use outbox_contract::backend::{Outcome, Outcomes, Position, PublishBatch, RelayId, Stored};
use outbox_contract::{Message, Route, Timestamp, Transport};
use serde::{Deserialize, Serialize};

use crate::bench::{KEYS, topic, transport};
use crate::child::{ready, tell};

/// Number of messages, and their destination.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fill {
    pub(crate) broker: String,
    pub(crate) messages: u64,
}

impl Fill {
    pub(crate) async fn play(self) {
        let transport = transport(&self.broker);
        ready().await;
        let stored: Vec<Arc<Stored>> =
            (0..self.messages).map(|number| made(number, &format!("key-{}", number % KEYS))).collect();
        // One batch after the other: the queue has them in this order.
        let chunks = futures_util::stream::iter(stored.chunks(250));
        chunks.for_each(|batch| publish(&transport, batch.to_vec())).await;
        tell(&());
        transport.close().await;
    }
}

/// Publishes a batch, and its undelivered messages again.
pub(crate) async fn publish(transport: &impl Transport, mut messages: Vec<Arc<Stored>>) {
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
pub(crate) fn made(number: u64, key: &str) -> Arc<Stored> {
    let payload = format!("{:x<298}\"}}", format!("{{\"n\":{number},\"x\":\""));
    let message = Message::new(topic(), "order.placed").expect("valid names").with_payload(payload);
    let message = message.with_key(key).expect("a valid key");
    let position = Position(i64::try_from(number).unwrap_or(i64::MAX) + 1);
    Arc::new(Stored::new(position, Timestamp::default(), message))
}
