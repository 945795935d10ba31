//! A subscription that several actors use: one receives, many acknowledge, and at the end somebody closes it.

use std::time::Duration;

use outbox_contract::subscription::{Received, Tag};
use outbox_contract::{Deliveries, TransportError, TransportErrorKind};
use tokio::sync::RwLock;
use tokio::time::timeout;

pub(crate) struct Source {
    // Read by everybody who uses the subscription, also while waiting for deliveries; written once, by who ends it.
    deliveries: RwLock<Option<Box<dyn Deliveries>>>,
    limit: Duration,
}

impl Source {
    pub(crate) fn new(deliveries: Box<dyn Deliveries>, limit: Duration) -> Self {
        Self { deliveries: RwLock::new(Some(deliveries)), limit }
    }

    pub(crate) async fn next(&self) -> Result<Received, TransportError> {
        match &*self.deliveries.read().await {
            Some(deliveries) => deliveries.next().await,
            None => Ok(Received::Ended),
        }
    }

    /// Tells the broker that these are finished. When that can't be said now, say it again: they may not come again while this subscription lasts, and
    /// count against its prefetch.
    pub(crate) async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        let acknowledged = async {
            match &*self.deliveries.read().await {
                Some(deliveries) => deliveries.acknowledge(tags).await,
                None => Ok(()),
            }
        };
        self.in_time("acknowledge", acknowledged).await
    }

    pub(crate) async fn drain(&self) -> Result<(), TransportError> {
        let drained = async {
            match &*self.deliveries.read().await {
                Some(deliveries) => deliveries.drain().await,
                None => Ok(()),
            }
        };
        self.in_time("drain", drained).await
    }

    /// Leaves. Nobody may be receiving any more.
    pub(crate) async fn close(&self) -> Result<(), TransportError> {
        let closed = async {
            let deliveries = self.deliveries.write().await.take();
            match deliveries {
                Some(deliveries) => deliveries.close().await,
                None => Ok(()),
            }
        };
        self.in_time("close", closed).await
    }

    /// Drops the subscription, as a crash would: what is unacknowledged comes again.
    pub(crate) async fn abandon(&self) {
        // Who still uses it drops it.
        let _ = timeout(self.limit, async { drop(self.deliveries.write().await.take()) }).await;
    }

    async fn in_time(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<(), TransportError>>,
    ) -> Result<(), TransportError> {
        let late = || {
            let words = format!("no answer within {:?}", self.limit);
            TransportError::new(TransportErrorKind::Unavailable, what, words)
        };
        timeout(self.limit, call).await.unwrap_or_else(|_| Err(late()))
    }
}
