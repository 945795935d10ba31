//! A transport that sends everything twice: for brokers and relays that repeat a message after a
//! failure. A layer changes what it names, and forwards the rest.

use std::sync::Arc;

use outbox::Transport;
use outbox::backend::{Outcomes, PublishBatch, TransportLayer};

pub(crate) struct Twice(pub(crate) Arc<dyn Transport>);

impl TransportLayer for Twice {
    type Inner = dyn Transport;

    fn inner(&self) -> &Self::Inner {
        &*self.0
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        let unheard = Outcomes::new(batch.messages.len());
        self.0.publish(batch.clone(), &unheard).await;
        self.0.publish(batch, outcomes).await;
    }
}
