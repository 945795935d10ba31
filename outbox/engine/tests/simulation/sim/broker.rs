//! The broker: takes what arrives, and tells the checker.

use std::sync::Arc;

use outbox_contract::backend::{Deliveries, Outcome, Outcomes, PublishBatch, Subscription};
use outbox_contract::{Message, Rejection, Transport, TransportError, TransportErrorKind, async_trait};
use outbox_testkit::History;
use outbox_testkit::history::ConsumerId;

use super::trace::Trace;

pub(crate) struct Broker {
    history: Arc<History>,
    consumer: ConsumerId,
    trace: Arc<Trace>,
}

impl Broker {
    pub(crate) fn new(history: Arc<History>, trace: Arc<Trace>) -> Self {
        let consumer = history.consumer("broker");
        Self { history, consumer, trace }
    }
}

#[async_trait]
impl Transport for Broker {
    fn name(&self) -> &'static str {
        "simulated"
    }

    async fn check(&self) -> Result<(), TransportError> {
        Ok(())
    }

    fn validate(&self, _: &Message) -> Result<(), Rejection> {
        Ok(())
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        for (index, stored) in batch.messages.iter().enumerate() {
            self.history.delivered(self.consumer, &stored.message);
            self.trace.say(format!("arrived {} {}", stored.position, stored.message.key_id()));
            outcomes.report(index, Outcome::Delivered);
        }
    }

    async fn subscribe(&self, _: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        Err(TransportError::new(TransportErrorKind::Unsupported, "subscribe", "the checker is the consumer"))
    }

    async fn close(&self) {}
}
