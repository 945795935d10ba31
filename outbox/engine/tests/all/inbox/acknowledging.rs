//! Acknowledgements: told together, told again when they could not be told, and none forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outbox_contract::backend::{Deliveries, Received, Subscription, Tag, TransportLayer, Unit};
use outbox_contract::{Transport, TransportError, TransportErrorKind, async_trait};
use outbox_engine::{Inbox, Mode, Step};
use outbox_testkit::Feed;

use crate::inbox::support::{S, World, within};

#[tokio::test(start_paused = true)]
async fn what_a_broker_that_was_away_was_not_told_it_is_told_when_it_is_back() {
    for mode in [Mode::Direct, Mode::Stored] {
        for (prefetch, each) in [(1_000, 1), (10, 5)] {
            let world = World::concurrent(1);
            let sent: Vec<_> = (0..10).flat_map(|key| world.send(&format!("key-{key}"), each)).collect();
            // The broker goes away after the first commit, and is not told of that message.
            let (feed, commits) = (world.feed.clone(), AtomicUsize::new(0));
            let inbox = world.inbox().mode(mode).prefetch(prefetch).on_step(move |step| {
                if step == Step::Committed && commits.fetch_add(1, Ordering::SeqCst) == 0 {
                    feed.away(true);
                }
            });
            let inbox = inbox.start().await.unwrap();
            tokio::time::sleep(S * 5).await;
            assert_eq!(world.feed.acknowledgements(), 0, "{mode:?}");
            let reasons = inbox.health().reasons;
            assert!(
                reasons.iter().any(|reason| reason.text.contains("could not acknowledge finished messages")),
                "{reasons:?}"
            );
            world.feed.away(false);
            within(S * 60, || world.feed.unacknowledged() == 0).await;
            within(S * 60, || world.ledger.len() == sent.len()).await;
            world.ledger.assert_once_and_in_order(&sent);
            assert_eq!((inbox.stats().resets, inbox.stats().duplicates), (0, 0), "{mode:?}");
            assert_eq!(inbox.health().reasons, []);
            assert!(inbox.stop(S * 20).await);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_could_not_acknowledge_what_is_finished_says_so() {
    for mode in [Mode::Direct, Mode::Stored] {
        let world = World::new();
        world.feed.delay_acknowledgements(S * 3_600);
        let sent = world.send("a", 3);
        let inbox = world.inbox().mode(mode).start().await.unwrap();
        within(S * 10, || world.ledger.len() == sent.len()).await;
        world.feed.away(true);
        assert!(!inbox.stop(S * 20).await, "{mode:?}: three deliveries come again");
        assert_eq!(world.feed.unacknowledged(), 3);
    }
}

/// Whoever stops it holds the deadline: leaving has no shorter one of its own.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_a_member_that_takes_long_to_leave() {
    for mode in [Mode::Direct, Mode::Stored] {
        for (deadline, in_time) in [(S * 20, true), (S * 5, false)] {
            let world = World::new();
            world.feed.delay_leaving(S * 12);
            let sent = world.send("a", 3);
            let inbox = world.inbox().mode(mode).start().await.unwrap();
            within(S * 10, || world.ledger.len() == sent.len()).await;
            assert_eq!(inbox.stop(deadline).await, in_time, "{mode:?}, {deadline:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_that_takes_no_acknowledgement_any_more_is_made_anew() {
    for mode in [Mode::Direct, Mode::Stored] {
        let world = World::new();
        let sent = world.send("a", 3);
        let over = Over { feed: world.feed.clone(), left: Arc::new(AtomicUsize::new(1)) };
        let inbox = Inbox::builder(Arc::clone(&world.store), over).consumer("inventory").topic("orders");
        let handler = world.handler(Arc::new(|_, _| Box::pin(async { Ok(()) })));
        let inbox = inbox.mode(mode).on_any(handler).start().await.unwrap();
        within(S * 60, || world.feed.unacknowledged() == 0 && world.ledger.len() == sent.len()).await;
        world.ledger.assert_once_and_in_order(&sent);
        assert_eq!(inbox.stats().resets, 1, "{mode:?}");
    }
}

/// A feed whose first subscriptions are over when something is acknowledged.
struct Over {
    feed: Feed,
    left: Arc<AtomicUsize>,
}

struct OverDeliveries {
    inner: Box<dyn Deliveries>,
    left: Arc<AtomicUsize>,
}

impl TransportLayer for Over {
    type Inner = Feed;

    fn inner(&self) -> &Feed {
        &self.feed
    }

    fn name(&self) -> &'static str {
        "over"
    }

    async fn subscribe(&self, subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        let inner = self.feed.subscribe(subscription).await?;
        Ok(Box::new(OverDeliveries { inner, left: Arc::clone(&self.left) }))
    }
}

#[async_trait]
impl Deliveries for OverDeliveries {
    async fn next(&self) -> Result<Received, TransportError> {
        self.inner.next().await
    }

    async fn acknowledge(&self, tags: &[Tag]) -> Result<(), TransportError> {
        let is_over = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if is_over.is_ok() {
            return Err(TransportError::new(
                TransportErrorKind::Closed,
                "acknowledge",
                "its place was taken",
            ));
        }
        self.inner.acknowledge(tags).await
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
