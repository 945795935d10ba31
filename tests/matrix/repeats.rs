//! A transport with repeated deliveries: at once, and old ones behind newer ones. As from a broker
//! after a failure, only more often.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use outbox_contract::backend::{Deliveries, Delivery, Received, Subscription, Tag, TransportLayer, Unit};
use outbox_contract::{Transport, TransportError};
use outbox_tests::record::Record;

/// Number of deliveries of a unit kept for later.
const KEPT: usize = 100;

/// Wraps a transport. Real deliveries are recorded; the injected repeats are not.
pub(crate) struct Repeats {
    inner: Arc<dyn Transport>,
    record: Arc<Record>,
    made_up: Arc<AtomicU64>,
}

impl Repeats {
    pub(crate) fn new(inner: Arc<dyn Transport>, record: Arc<Record>) -> Self {
        Self { inner, record, made_up: Arc::default() }
    }

    /// Returns the number of injected repeats so far.
    pub(crate) fn made_up(&self) -> u64 {
        self.made_up.load(Ordering::SeqCst)
    }
}

impl TransportLayer for Repeats {
    type Inner = dyn Transport;

    fn inner(&self) -> &dyn Transport {
        &*self.inner
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        let inner = self.inner.subscribe(subscription).await?;
        let (record, made_up) = (Arc::clone(&self.record), Arc::clone(&self.made_up));
        let seen = Mutex::new(Seen { random: Rng::with_seed(1), of_unit: BTreeMap::new() });
        Ok(Box::new(Repeated { inner, record, made_up, seen }))
    }
}

struct Repeated {
    inner: Box<dyn Deliveries>,
    record: Arc<Record>,
    made_up: Arc<AtomicU64>,
    // A plain mutex: locked while a batch is checked, never across an await.
    seen: Mutex<Seen>,
}

struct Seen {
    random: Rng,
    /// The last deliveries of each unit that this member has.
    of_unit: BTreeMap<Unit, Vec<Delivery>>,
}

impl Seen {
    /// Returns this delivery, sometimes followed by a repeat of itself or of an earlier one of its
    /// unit. A repeat has the tag of its original: acknowledging it twice is allowed.
    fn with_repeats(&mut self, delivery: Delivery) -> Vec<Delivery> {
        let before = self.of_unit.entry(delivery.tag.unit.clone()).or_default();
        let mut all = vec![delivery.clone()];
        if self.random.u8(..5) == 0 {
            all.push(delivery.clone());
        }
        if self.random.u8(..5) == 0
            && let Some(old) = self.random.choice(before.iter())
        {
            all.push(old.clone());
        }
        if before.len() == KEPT {
            before.swap_remove(self.random.usize(..KEPT));
        }
        before.push(delivery);
        all
    }
}

impl Repeated {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Deliveries for Repeated {
    async fn next(&self) -> Result<Received, TransportError> {
        let received = self.inner.next().await?;
        Ok(match received {
            Received::Deliveries(batch) => {
                for delivery in &batch {
                    let message = delivery.message.as_ref().expect("only messages of ours are on the way");
                    self.record.delivered(message);
                }
                let real = batch.len();
                let mut seen = self.seen();
                let all: Vec<Delivery> =
                    batch.into_iter().flat_map(|delivery| seen.with_repeats(delivery)).collect();
                self.made_up.fetch_add((all.len() - real) as u64, Ordering::SeqCst);
                Received::Deliveries(all)
            }
            Received::Revoked(units) => {
                // They belong to another member now, or arrive with new tags.
                self.seen().of_unit.retain(|unit, _| !units.contains(unit));
                Received::Revoked(units)
            }
            other => other,
        })
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        self.inner.acknowledge(tags).await
    }

    fn acknowledgement_delay(&self) -> Duration {
        self.inner.acknowledgement_delay()
    }

    async fn pause(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.inner.pause(units).await
    }

    async fn resume(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.inner.resume(units).await
    }

    async fn drain(&self) -> Result<(), TransportError> {
        self.inner.drain().await
    }

    async fn close(self: Box<Self>) -> Result<(), TransportError> {
        self.inner.close().await
    }
}
