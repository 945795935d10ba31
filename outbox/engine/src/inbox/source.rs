//! A subscription that several actors use: one receives, many acknowledge, and one closes it at the
//! end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use outbox_contract::backend::{Deliveries, Lag, Loss, Problem, Received, Tag};
use outbox_contract::{TransportError, TransportErrorKind};
use tokio::sync::RwLock;

use crate::answer::answer;

pub(crate) struct Source {
    // Read by everybody who uses the subscription, also while waiting for deliveries; written once,
    // by who ends it.
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

    /// Topics and units that give nothing, while others do. None: the subscription is being closed.
    pub(crate) fn problems(&self) -> Option<Vec<Problem>> {
        self.look(|deliveries| deliveries.problems())
    }

    /// Returns the backlogs at the broker. None: the subscription is being closed.
    pub(crate) fn lags(&self) -> Option<Vec<Lag>> {
        self.look(|deliveries| deliveries.lags())
    }

    /// Returns the losses found at the broker since the last call. None: the subscription is being
    /// closed.
    pub(crate) fn losses(&self) -> Option<Vec<Loss>> {
        self.look(|deliveries| deliveries.losses())
    }

    fn look<T>(&self, look: impl FnOnce(&dyn Deliveries) -> T) -> Option<T> {
        let deliveries = self.deliveries.try_read().ok()?;
        let deliveries = deliveries.as_deref()?;
        // Nothing of the inbox is touched by the call, so nothing can be left half done by a panic.
        catch_unwind(AssertUnwindSafe(|| look(deliveries))).ok()
    }

    /// Acknowledges deliveries. On failure, retry: they may not be delivered again while this
    /// subscription lasts, and count against its prefetch.
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

    /// Closes the subscription. No receiver may be active. A member that leaves in the middle of a
    /// rebalance takes longer than any other call.
    pub(crate) async fn close(&self, limit: Duration) -> Result<(), TransportError> {
        let closed = async {
            let deliveries = self.deliveries.write().await.take();
            match deliveries {
                Some(deliveries) => deliveries.close().await,
                None => Ok(()),
            }
        };
        within("close", limit, closed).await
    }

    /// Drops the subscription, like a crash: unacknowledged messages are delivered again.
    pub(crate) async fn abandon(&self) {
        // Who still uses it drops it. It may panic at that: then it is gone all the same.
        let dropped = async { drop(self.deliveries.write().await.take()) };
        let _ = answer(self.limit, dropped).await;
    }

    async fn in_time(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<(), TransportError>>,
    ) -> Result<(), TransportError> {
        within(what, self.limit, call).await
    }
}

async fn within(
    what: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<(), TransportError>>,
) -> Result<(), TransportError> {
    let failed = |why| Err(TransportError::new(TransportErrorKind::Unavailable, what, why));
    answer(limit, call).await.unwrap_or_else(failed)
}
