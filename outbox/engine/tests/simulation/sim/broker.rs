//! The broker: takes what arrives, and tells the checker.

use std::sync::Arc;

use outbox_contract::backend::{Outcome, Outcomes, PublishBatch, TransportLayer};
use outbox_testkit::history::ConsumerId;
use outbox_testkit::{History, NullTransport};

use super::trace::Trace;

pub(crate) struct Broker {
    history: Arc<History>,
    consumer: ConsumerId,
    trace: Arc<Trace>,
    inner: NullTransport,
}

impl Broker {
    pub(crate) fn new(history: Arc<History>, trace: Arc<Trace>) -> Self {
        let consumer = history.consumer("broker");
        Self { history, consumer, trace, inner: NullTransport::new() }
    }
}

impl TransportLayer for Broker {
    type Inner = NullTransport;

    fn inner(&self) -> &NullTransport {
        &self.inner
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        for (index, stored) in batch.messages.iter().enumerate() {
            self.history.delivered(self.consumer, &stored.message);
            self.trace.say(format!("arrived {} {}", stored.position, stored.message.key_id()));
            outcomes.report(index, Outcome::Delivered);
        }
    }
}
