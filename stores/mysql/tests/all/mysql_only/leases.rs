//! Leases under load and under failures: their locks cause no deadlocks, and a client that has gone
//! silent does not keep them.

use std::time::Duration;

use outbox_contract::backend::{RelayId, Step, Transitioned};
use outbox_contract::{Store, StoreErrorKind};
use outbox_servers::Proxy;
use sqlx::Connection;

use super::support::{
    LONG, append, both, both_with, fails, fetch, heartbeat, message, messages, open, options, run,
};

/// A message whose key is in a bucket of these.
fn message_in(buckets: std::ops::Range<u8>) -> outbox_contract::Message {
    let within = |message: &outbox_contract::Message| buckets.contains(&message.key_id().bucket().0);
    (0..).map(|n| message(&format!("key-{n}"))).find(within).unwrap()
}

/// Steps come in no order of buckets, and heartbeats lock the leases from the lowest on: were the
/// leases locked step by step, the two would wait for each other here.
#[tokio::test]
async fn steps_lock_leases_in_the_order_of_heartbeats() {
    for fixture in both().await {
        let store = &fixture.store;
        append(store, [message_in(128..255), message_in(0..127)]).await;
        let me = RelayId::new();
        assert_eq!(store.lease(&heartbeat(me)).await.unwrap().leases.len(), 256);
        let read = messages(&fetch(store, me).await);
        let (high, low) = (fails(me, &read[..1]), fails(me, &read[1..]));
        assert!(high.bucket > low.bucket);
        store.transition(std::slice::from_ref(&high)).await.unwrap();

        // The first step waits in its middle, where it has locked what it locks of leases.
        let mut holder = fixture.connection().await;
        let mut holder = holder.begin().await.unwrap();
        run(&mut holder, "select 1 from outbox_key for update").await;
        let transitioning = tokio::spawn({
            let store = store.clone();
            async move { store.transition(&[high, low]).await }
        });
        fixture.until_waiting("%from outbox_key%").await;
        let another = fixture.another().await;
        let beating = tokio::spawn(async move { another.lease(&heartbeat(RelayId::new())).await });
        fixture.until_waiting("%from outbox_lease%").await;
        holder.rollback().await.unwrap();

        let transitioned = transitioning.await.unwrap().unwrap();
        assert!(
            transitioned.iter().all(|transitioned| matches!(transitioned, Transitioned::Done(Some(_)))),
            "{transitioned:?}"
        );
        assert_eq!(beating.await.unwrap().unwrap().relays, 2);
    }
}

/// Nodes of a cluster learn of changes alone, not of locks: a lease that is taken on one and relied
/// on at another has to be changed by both.
#[tokio::test]
async fn a_step_changes_the_lease_that_it_relies_on() {
    for fixture in both().await {
        let store = &fixture.store;
        append(store, [message("a")]).await;
        let me = RelayId::new();
        store.lease(&heartbeat(me)).await.unwrap();
        let step = fails(me, &messages(&fetch(store, me).await));
        let changed = format!("select sum(steps) from outbox_lease where bucket = {}", step.bucket.0);
        assert_eq!(fixture.number(&changed).await, 0);
        for steps in 1..=2 {
            store.transition(std::slice::from_ref(&step)).await.unwrap();
            assert_eq!(fixture.number(&changed).await, steps);
        }
        assert_eq!(fixture.number("select sum(steps) from outbox_lease").await, 2, "no other bucket's");
        // Whoever takes leases changes them as well, under the next epoch.
        let mut short = heartbeat(me);
        short.lasts = Duration::from_micros(1);
        store.lease(&short).await.unwrap();
        store.lease(&heartbeat(RelayId::new())).await.unwrap();
        assert_eq!(fixture.number("select min(epoch) from outbox_lease").await, 2);
    }
}

/// As above: an operator on one node closes a key while a relay on another one moves messages
/// behind it, or renews a life that is being ended.
#[tokio::test]
async fn what_a_step_or_a_takeover_relies_on_is_changed_by_it() {
    for fixture in both().await {
        let store = &fixture.store;
        append(store, [message("a"), message("a")]).await;
        let me = RelayId::new();
        let mut short = heartbeat(me);
        store.lease(&short).await.unwrap();
        let read = messages(&fetch(store, me).await);
        let mut step = fails(me, &read[..1]);
        store.transition(std::slice::from_ref(&step)).await.unwrap();
        step.step = Step::Park { rows: vec![read[1].row()] };
        assert_eq!(fixture.number("select steps from outbox_key").await, 0);
        store.transition(std::slice::from_ref(&step)).await.unwrap();
        assert_eq!(fixture.number("select steps from outbox_key").await, 1);

        short.lasts = Duration::from_micros(1);
        store.lease(&short).await.unwrap();
        let ended = fixture.number("select expires_at from outbox_relay").await;
        store.lease(&heartbeat(RelayId::new())).await.unwrap();
        assert_eq!(fixture.number("select min(expires_at) from outbox_relay").await, ended - 1);
    }
}

/// Locks of a failed heartbeat are free again, though its connection is kept.
#[tokio::test]
async fn a_heartbeat_that_waits_in_vain_keeps_no_lock() {
    let mut hasty = options();
    hasty.lock_timeout = Duration::from_secs(2);
    for fixture in both_with(hasty).await {
        fixture.store.lease(&heartbeat(RelayId::new())).await.unwrap();
        let mut holder = fixture.connection().await;
        let mut holder = holder.begin().await.unwrap();
        run(&mut holder, "select 1 from outbox_lease where route = 'default' and bucket = 100 for update")
            .await;
        let refused = fixture.store.lease(&heartbeat(RelayId::new())).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Conflict, "{refused}");
        fixture
            .run("select 1 from outbox_lease where route = 'default' and bucket = 99 for update nowait")
            .await;
        holder.rollback().await.unwrap();
    }
}

/// A store behind a proxy whose transactions may be idle for 4 s, so that a machine that is busy
/// takes none of them for quiet.
async fn behind_a_proxy(url: &str) -> (Proxy, outbox_store_mysql::MySqlStore) {
    let proxy = Proxy::to(url);
    let mut short = options();
    short.transaction_idle_timeout = Duration::from_secs(4);
    let store = open(&proxy.url(url), short).await;
    (proxy, store)
}

/// A relay that is stopped, or cut off in silence, between two statements of a heartbeat, which has
/// locked every lease.
#[tokio::test]
async fn a_relay_that_goes_quiet_in_a_heartbeat_keeps_no_lease_from_others() {
    for fixture in both().await {
        let (proxy, quiet) = behind_a_proxy(&fixture.url).await;
        let mut beat = heartbeat(RelayId::new());
        beat.lasts = Duration::from_secs(1);
        quiet.lease(&beat).await.unwrap();
        let mut holder = fixture.connection().await;
        let mut holder = holder.begin().await.unwrap();
        run(&mut holder, "select 1 from outbox_lease where route = 'default' and bucket = 255 for update")
            .await;
        let beating = tokio::spawn(async move { quiet.lease(&beat).await });
        fixture.until_waiting("%from outbox_lease%").await;
        proxy.hold();
        holder.rollback().await.unwrap();

        // Waits for as long as the quiet one may be idle; the other's life was short, and is over.
        let leased = tokio::time::timeout(LONG / 2, fixture.store.lease(&heartbeat(RelayId::new()))).await;
        assert_eq!(leased.expect("the quiet one's locks are free").unwrap().leases.len(), 256);
        proxy.cut();
        assert!(beating.await.unwrap().is_err(), "its connection is gone");
    }
}

/// The same between two statements of a transition.
#[tokio::test]
async fn a_relay_that_goes_quiet_in_a_transition_keeps_no_lease_from_others() {
    for fixture in both().await {
        append(&fixture.store, [message("a")]).await;
        let (proxy, quiet) = behind_a_proxy(&fixture.url).await;
        let me = RelayId::new();
        quiet.lease(&heartbeat(me)).await.unwrap();
        let step = fails(me, &messages(&fetch(&quiet, me).await));
        quiet.transition(std::slice::from_ref(&step)).await.unwrap();
        let mut holder = fixture.connection().await;
        let mut holder = holder.begin().await.unwrap();
        run(&mut holder, "select 1 from outbox_key for update").await;
        let transitioning = tokio::spawn(async move { quiet.transition(&[step]).await });
        fixture.until_waiting("%from outbox_key%").await;
        proxy.hold();
        holder.rollback().await.unwrap();

        let leased = tokio::time::timeout(LONG / 2, fixture.store.lease(&heartbeat(me))).await;
        assert_eq!(leased.expect("the quiet one's locks are free").unwrap().leases.len(), 256);
        proxy.cut();
        assert!(transitioning.await.unwrap().is_err(), "its connection is gone");
    }
}

/// A connection that worked in a transaction may be idle afterwards for as long as before.
#[tokio::test]
async fn a_connection_that_is_in_no_transaction_may_be_idle() {
    for fixture in both().await {
        let mut short = options();
        short.transaction_idle_timeout = Duration::from_secs(4);
        let store = open(&fixture.url, short).await;
        let me = RelayId::new();
        store.lease(&heartbeat(me)).await.unwrap();
        // By the server's own clock, which knows whole seconds and can't be set.
        tokio::time::sleep(Duration::from_secs(6)).await;
        store.lease(&heartbeat(me)).await.unwrap();
    }
}
