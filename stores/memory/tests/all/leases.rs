//! Leases: the cases that need a clock under control.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::support::{LEASE, beat, builder, fetch, message, published, relay, request, write};
use outbox_contract::backend::{BUCKETS, Bucket, BucketSet, Clock, Epoch};
use outbox_contract::{Store, Timestamp};
use outbox_store_memory::MemoryStore;

#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_given_up_is_not_prolonged() {
    let store = builder().build();
    beat(&store, relay(1)).await;
    let yielding = BucketSet::from_iter([Bucket(7)]);
    let mut giving_up = request(relay(1));
    giving_up.yielding = yielding;
    for _ in 0..2 {
        tokio::time::sleep(LEASE / 3).await;
        let leased = store.lease(&giving_up).await.unwrap();
        assert_eq!(leased.leases.len(), BUCKETS, "it is owned until its own time is over");
    }
    tokio::time::sleep(LEASE / 2).await;
    assert_eq!(store.lease(&giving_up).await.unwrap().leases.len(), BUCKETS - 1);
    let leased = beat(&store, relay(1)).await;
    assert_eq!(leases_epoch(&leased, Bucket(7)), Epoch(2), "it comes back under the next epoch");
    assert_eq!(leases_epoch(&leased, Bucket(8)), Epoch(1));
}

#[tokio::test(start_paused = true)]
async fn a_lease_ends_on_the_instant() {
    let store = builder().build();
    write(&store, message("a", 1)).await;
    beat(&store, relay(1)).await;
    tokio::time::sleep(LEASE - Duration::from_millis(1)).await;
    assert_eq!(published(&fetch(&store, relay(1)).await), [1]);
    assert!(beat(&store, relay(2)).await.leases.is_empty());
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(published(&fetch(&store, relay(1)).await), [0; 0]);
    assert_eq!(beat(&store, relay(2)).await.leases.len(), BUCKETS);
}

struct SetClock(AtomicI64);

impl Clock for SetClock {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

#[tokio::test]
async fn a_lease_of_a_clock_that_was_far_ahead_is_free() {
    const HOUR: i64 = 3_600_000_000;
    let clock = Arc::new(SetClock(AtomicI64::new(10 * HOUR)));
    let store = MemoryStore::builder().clock(Arc::clone(&clock) as Arc<dyn Clock>).build();
    beat(&store, relay(1)).await;
    // A little behind is nothing; an hour behind can't be.
    clock.0.fetch_sub(1_000_000, Ordering::Relaxed);
    assert!(beat(&store, relay(2)).await.leases.is_empty());
    clock.0.store(9 * HOUR, Ordering::Relaxed);
    let leased = beat(&store, relay(3)).await;
    assert_eq!((leased.leases.len(), leased.relays), (BUCKETS, 1));
    assert!(leased.leases.iter().all(|lease| lease.epoch == Epoch(2)));
}

#[tokio::test(start_paused = true)]
async fn relays_that_are_long_gone_are_removed() {
    let store = builder().build();
    beat(&store, relay(1)).await;
    tokio::time::sleep(LEASE * 5).await;
    beat(&store, relay(2)).await;
    assert_eq!(store.maintain(10).await.unwrap().relays_removed, 0);
    tokio::time::sleep(LEASE * 7).await;
    beat(&store, relay(3)).await;
    assert_eq!(store.maintain(10).await.unwrap().relays_removed, 1);
    let left = store.snapshot().relays.into_iter().map(|(_, id, _)| id).collect::<Vec<_>>();
    assert_eq!(left, [relay(2), relay(3)]);
}

fn leases_epoch(leased: &outbox_contract::backend::Leased, bucket: Bucket) -> Epoch {
    leased.leases.iter().find(|lease| lease.bucket == bucket).unwrap().epoch
}
