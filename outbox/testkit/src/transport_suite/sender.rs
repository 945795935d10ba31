//! The sending side of the suite: a minimal relay.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use outbox_contract::backend::{Outcome, Outcomes, Position, PublishBatch, RelayId, Stored, Transport};
use outbox_contract::{Message, Route, Timestamp, Topic};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::PATIENCE;

/// The source that all messages of the suite name.
pub(super) const SOURCE: &str = "/suite";

/// Timeout of a batch; its unreported messages are resent.
const DEADLINE: Duration = Duration::from_secs(10);
/// The pause before a resend.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of messages in a batch of the relay.
const BATCH: usize = 100;

/// Sends messages of one store to one transport.
#[derive(Clone)]
pub(super) struct Sender {
    transport: Arc<dyn Transport>,
    relay: RelayId,
    position: Arc<AtomicI64>,
}

impl Sender {
    pub(super) fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, relay: RelayId::new(), position: Arc::new(AtomicI64::new(0)) }
    }

    /// Returns the message as it stands in the store, behind the last one.
    pub(super) fn store(&self, message: Message) -> Arc<Stored> {
        let position = Position(self.position.fetch_add(1, Ordering::Relaxed) + 1);
        Arc::new(Stored::new(position, Timestamp::now(), message))
    }

    /// Returns this many messages of these keys, in turn.
    pub(super) fn messages(&self, topic: &Topic, keys: &[&str], count: usize) -> Vec<Arc<Stored>> {
        (0..count).map(|at| self.store(message(topic, keys[at % keys.len()]))).collect()
    }

    pub(super) fn publish_batch(&self, messages: &[Arc<Stored>]) -> PublishBatch {
        PublishBatch::new(Route::default(), self.relay, SOURCE.into(), messages.to_vec(), DEADLINE)
    }

    /// Publishes one batch, once.
    pub(super) async fn publish(&self, messages: &[Arc<Stored>]) -> Vec<Option<Outcome>> {
        let outcomes = Outcomes::new(messages.len());
        // A message without a report by then is unknown: the result is not needed otherwise.
        let _ = timeout(DEADLINE, self.transport.publish(self.publish_batch(messages), &outcomes)).await;
        let outcomes = outcomes.take();
        assert_key_prefix(messages, &outcomes);
        outcomes
    }

    /// Publishes messages repeatedly until every one is delivered.
    pub(super) async fn deliver(&self, messages: &[Arc<Stored>]) {
        for batch in messages.chunks(BATCH) {
            let mut left = batch.to_vec();
            while !left.is_empty() {
                let outcomes = self.publish(&left).await;
                let rejected = outcomes.iter().find(|it| matches!(it, Some(Outcome::Rejected(_))));
                assert_eq!(rejected, None, "a valid message was rejected");
                let mut outcomes = outcomes.into_iter();
                left.retain(|_| outcomes.next().flatten() != Some(Outcome::Delivered));
                if !left.is_empty() {
                    sleep(PAUSE).await;
                }
            }
        }
    }

    /// Delivers messages while the test does other work.
    pub(super) fn start(&self, messages: &[Arc<Stored>]) -> Sending {
        let (sender, messages) = (self.clone(), messages.to_vec());
        Sending(tokio::spawn(async move { sender.deliver(&messages).await }))
    }
}

/// Messages in flight; given up when dropped.
#[must_use = "messages are given up when this is dropped"]
pub(super) struct Sending(JoinHandle<()>);

impl Sending {
    /// Waits until every message is delivered.
    pub(super) async fn finish(mut self) {
        match timeout(PATIENCE, &mut self.0).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => panic!("a message could not be delivered: {error}"),
            Err(_) => panic!("a message that arrived was not reported delivered within {PATIENCE:?}"),
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A message with a payload of its own.
pub(super) fn message(topic: &Topic, key: &str) -> Message {
    let message = Message::new(topic.clone(), "suite.event").expect("a valid topic");
    let payload = format!(r#"{{"of":"{}"}}"#, message.id);
    message.with_payload(payload).with_key(key).expect("a key of the suite is valid")
}

/// Asserts that behind an undelivered message no message of its key is delivered.
pub(super) fn assert_key_prefix(messages: &[Arc<Stored>], outcomes: &[Option<Outcome>]) {
    assert_eq!(messages.len(), outcomes.len(), "a slot for each message");
    let mut undelivered = BTreeSet::new();
    for (index, (stored, outcome)) in messages.iter().zip(outcomes).enumerate() {
        let key = stored.message.key_id();
        if *outcome != Some(Outcome::Delivered) {
            undelivered.insert(key);
        } else {
            assert!(
                !undelivered.contains(&key),
                "message {index} of the batch was delivered behind an undelivered one of its key {key}: {outcomes:?}"
            );
        }
    }
}
