//! A transport that records its messages: for tests of what a relay sends, and in which order.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use outbox_contract::backend::{Deliveries, Epoch, Outcome, Outcomes, Position, PublishBatch, Subscription};
use outbox_contract::{KeyId, Message, MessageId, Rejection, Transport, TransportError};
use tokio::sync::watch;

use crate::null_transport::nothing_to_receive;

/// One message as it was published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// Id of the message.
    pub id: MessageId,
    /// Its topic and key.
    pub key: KeyId,
    /// Its position in its store.
    pub position: Position,
    /// Epoch under which the relay claimed to own its bucket.
    pub epoch: Option<Epoch>,
}

/// Confirms every message at once, and records it.
///
/// Put a [`ChaosTransport`](crate::ChaosTransport) around it to record the messages that were
/// really sent: a message that was sent but reported unknown is recorded, one that was reported
/// failed is not.
#[derive(Debug)]
pub struct RecordingTransport {
    published: Mutex<Vec<Published>>,
    count: watch::Sender<usize>,
}

impl RecordingTransport {
    /// Creates a transport that has recorded nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self { published: Mutex::new(Vec::new()), count: watch::Sender::new(0) }
    }

    /// Returns the published messages so far, in order, repeats included.
    #[must_use]
    pub fn published(&self) -> Vec<Published> {
        self.lock().clone()
    }

    /// Returns the published positions of one key so far, in order, repeats included.
    #[must_use]
    pub fn positions_of(&self, key: &KeyId) -> Vec<Position> {
        self.lock().iter().filter(|it| it.key == *key).map(|it| it.position).collect()
    }

    /// Returns the number of published messages so far, repeats included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Returns true if nothing was published so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Waits until this many messages were published, repeats included. Wrap it in a timeout.
    /// Dropping it is safe.
    pub async fn wait_for(&self, count: usize) {
        // The sender lives as long as self, so waiting can't fail.
        let _ = self.count.subscribe().wait_for(|published| *published >= count).await;
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Published>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for RecordingTransport {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Transport for RecordingTransport {
    fn name(&self) -> &'static str {
        "recording"
    }

    async fn check(&self) -> Result<(), TransportError> {
        Ok(())
    }

    fn validate(&self, _: &Message) -> Result<(), Rejection> {
        Ok(())
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        let mut published = self.lock();
        published.extend(batch.messages.iter().map(|stored| Published {
            id: stored.message.id,
            key: stored.message.key_id(),
            position: stored.position,
            epoch: batch.epochs.get(&stored.bucket).copied(),
        }));
        outcomes.report_rest(&Outcome::Delivered);
        // Sent under the lock, so that the count never decreases.
        self.count.send_replace(published.len());
    }

    async fn subscribe(&self, _: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        Err(nothing_to_receive())
    }

    async fn close(&self) {}
}
