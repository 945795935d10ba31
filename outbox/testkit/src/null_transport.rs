//! A transport that discards messages: for benchmarks of everything before it.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use outbox_contract::backend::{Deliveries, Outcome, Outcomes, PublishBatch, Subscription};
use outbox_contract::{Message, Rejection, Transport, TransportError, TransportErrorKind};

/// Confirms every message at once, and counts.
///
/// It keeps nothing, so it costs almost nothing: a benchmark with it measures everything else.
#[derive(Debug, Default)]
pub struct NullTransport {
    // Relaxed: the count is read when all is done, and implies nothing about other memory.
    messages: AtomicU64,
    chunks: AtomicU64,
}

impl NullTransport {
    /// Creates a transport that has counted nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of published messages.
    #[must_use]
    pub fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Returns the number of published batches.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        self.chunks.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Transport for NullTransport {
    fn name(&self) -> &'static str {
        "null"
    }

    async fn check(&self) -> Result<(), TransportError> {
        Ok(())
    }

    fn validate(&self, _: &Message) -> Result<(), Rejection> {
        Ok(())
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        self.messages.fetch_add(u64::try_from(batch.messages.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.chunks.fetch_add(1, Ordering::Relaxed);
        outcomes.report_rest(&Outcome::Delivered);
    }

    async fn subscribe(&self, _: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        Err(nothing_to_receive())
    }

    async fn close(&self) {}
}

/// Error of a publish-only transport for a subscriber.
pub(crate) fn nothing_to_receive() -> TransportError {
    TransportError::new(
        TransportErrorKind::Unsupported,
        "subscribe",
        "this transport only takes messages; use the in-process transport to receive them",
    )
}
