//! A transport that panics where it must not: the inbox begins again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use outbox_contract::backend::{Deliveries, Received, Subscription, Tag, TransportLayer, Unit};
use outbox_contract::{Transport, TransportError, async_trait};
use outbox_engine::Status;
use outbox_testkit::{Feed, StoreCall, StoreFault};

use crate::inbox::support::{S, World, within};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    Subscribe,
    Delay,
    Drop,
}

/// Panics there, as often as it is to.
#[derive(Clone)]
struct Bad {
    feed: Feed,
    place: Where,
    left: Arc<AtomicUsize>,
}

impl Bad {
    fn at(&self, place: Where) {
        let less = |left: usize| left.checked_sub(1);
        let is_now =
            place == self.place && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        assert!(!is_now, "told to");
    }
}

impl TransportLayer for Bad {
    type Inner = Feed;

    fn inner(&self) -> &Feed {
        &self.feed
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        self.at(Where::Subscribe);
        Ok(Box::new(Member { bad: self.clone(), inner: Some(self.feed.subscribe(subscription).await?) }))
    }
}

struct Member {
    bad: Bad,
    // None while it is closed.
    inner: Option<Box<dyn Deliveries>>,
}

impl Member {
    fn inner(&self) -> &dyn Deliveries {
        &**self.inner.as_ref().unwrap()
    }
}

#[async_trait]
impl Deliveries for Member {
    async fn next(&self) -> Result<Received, TransportError> {
        self.inner().next().await
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        self.inner().acknowledge(tags).await
    }

    fn acknowledgement_delay(&self) -> std::time::Duration {
        self.bad.at(Where::Delay);
        self.inner().acknowledgement_delay()
    }

    async fn pause(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.inner().pause(units).await
    }

    async fn resume(&self, units: &[Unit]) -> Result<(), TransportError> {
        self.inner().resume(units).await
    }

    async fn drain(&self) -> Result<(), TransportError> {
        self.inner().drain().await
    }

    async fn close(mut self: Box<Self>) -> Result<(), TransportError> {
        match self.inner.take() {
            Some(inner) => inner.close().await,
            None => Ok(()),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.bad.at(Where::Drop);
    }
}

#[tokio::test(start_paused = true)]
async fn a_transport_that_panics_is_subscribed_to_again() {
    for place in [Where::Subscribe, Where::Delay, Where::Drop] {
        let world = World::concurrent(1);
        let bad = Bad { feed: world.feed.clone(), place, left: Arc::new(AtomicUsize::new(2)) };
        let inbox =
            world.bare_on(bad.clone()).on_any(world.handler(Arc::new(|_, _| async { Ok(()) }.boxed())));
        let inbox = inbox.start().await.unwrap();
        let mut sent = world.send("a", 3);
        for _ in 0..3 {
            // The store goes away for a moment: the subscription is dropped, and begun again.
            world.store.inject(StoreCall::Begin, StoreFault::Before, 1);
            sent.extend(world.send("a", 1));
            within(S * 60, || world.feed.unacknowledged() == 0).await;
        }
        world.ledger.assert_once_and_in_order(&sent);
        assert_eq!(bad.left.load(Ordering::SeqCst), 0, "it did panic");
        within(S * 120, || inbox.health().status == Status::Healthy).await;
    }
}
