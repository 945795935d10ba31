//! The session of a relay: it ends with the process, long before the lease of an hour does, and
//! others see that.

use std::time::Duration;

use outbox_contract::Store;
use outbox_contract::backend::{LowWater, RelayId};
use outbox_testkit::until_owned;

use super::support::{Fixture, lease, lease_request, open, options};

/// Time after which a relay looks at the sessions of the others.
const EVERY: Duration = Duration::from_millis(1_500);

/// Number of sessions that hold a relay's lock.
const HELD: &str = "select count(*) from pg_locks where locktype = 'advisory' and classid = 'outbox_relay'::regclass \
                    and mode = 'ShareLock' and database = (select oid from pg_database where datname = current_database())";

/// Ends the session of every relay, as the server does when their processes die.
const END: &str = "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' \
                   and classid = 'outbox_relay'::regclass and mode = 'ShareLock'";

/// As if the half second were over in which a relay may open another session.
const AGE: &str = "update outbox_relay set session_lost_at = session_lost_at - 10000000";

#[tokio::test]
async fn what_a_dead_relay_owned_is_free_when_its_session_has_ended() {
    let Some(fixture) = Fixture::new().await else { return };
    let (dead, heir) = (RelayId::new(), RelayId::new());
    let victim = fixture.another().await;
    let owned = lease(&victim, dead).await.leases;
    assert_eq!(owned.len(), 256);
    let waiting = lease(&fixture.store, heir).await;
    assert_eq!((waiting.leases.len(), waiting.relays, waiting.recheck), (0, 2, Some(EVERY)), "it lives");

    drop(victim);
    fixture.run(&format!("select 1 from ({END}) ended")).await;
    // The session of the heir ended too, and its heartbeat opens another one.
    let inherited = until_owned(&fixture.another().await, &lease_request(heir), 256).await;
    assert_eq!(inherited.relays, 1);
    let epochs =
        |leases: &[outbox_contract::backend::Lease]| leases.iter().map(|lease| lease.epoch.0).sum::<i64>();
    assert_eq!(epochs(&inherited.leases), epochs(&owned) + 256, "each under its next epoch");
}

#[tokio::test]
async fn a_relay_whose_session_is_another_one_keeps_what_it_owns() {
    let Some(fixture) = Fixture::new().await else { return };
    let (alive, other) = (RelayId::new(), RelayId::new());
    let before = lease(&fixture.store, alive).await.leases;
    let another = fixture.another().await;
    fixture.run(&format!("select 1 from ({END}) ended")).await;
    let looked = lease(&another, other).await;
    assert_eq!((looked.leases.len(), looked.relays), (0, 2), "one look is not enough");
    assert!(looked.recheck.is_some());

    let again = fixture.another().await;
    assert_eq!(lease(&again, alive).await.leases, before);
    fixture.run(AGE).await;
    let looked = lease(&another, other).await;
    assert_eq!((looked.leases.len(), looked.recheck), (0, Some(EVERY)));
}

/// The rule alone, with its clock handed in.
#[tokio::test]
async fn a_relay_is_dead_when_its_session_has_been_lost_for_half_a_second() {
    let Some(fixture) = Fixture::new().await else { return };
    let victim = fixture.another().await;
    lease(&victim, RelayId::new()).await;
    drop(victim);
    fixture.run(&format!("select 1 from ({END}) ended")).await;
    fixture.until(&format!("select 1 - ({HELD})"), 1).await;
    let watcher = RelayId::new().as_uuid();
    let look = async |now: &str| {
        let look = format!("outbox_end_lost_sessions('default', '{watcher}', {now})");
        fixture.number(&format!("select coalesce({look}, -1) from outbox_relay r")).await
    };
    assert_eq!(look("outbox_now()").await, 500_000, "one look is not enough");
    assert_eq!(look("r.session_lost_at + 499999").await, 1, "it may open another session");
    assert_eq!(look("r.session_lost_at + 500000").await, -1, "there is nothing to look at any more");
    let lived = "select expires_at - session_lost_at from outbox_relay";
    assert_eq!(fixture.number(lived).await, 500_000);
}

#[tokio::test]
async fn a_relay_that_leaves_leaves_no_lock_in_the_session_of_the_others() {
    let Some(fixture) = Fixture::new().await else { return };
    let relays: Vec<RelayId> = (0..3).map(|_| RelayId::new()).collect();
    for &relay in &relays {
        lease(&fixture.store, relay).await;
        lease(&fixture.store, relay).await;
    }
    assert_eq!(fixture.number(HELD).await, 3, "once, however many heartbeats");
    for &relay in &relays {
        let leases = lease(&fixture.store, relay).await.leases;
        let route = outbox_contract::Route::default();
        fixture.store.give_back(relay, &route, &leases, &LowWater::default(), true).await.unwrap();
    }
    assert_eq!(fixture.number(HELD).await, 0);
}

/// A session is not in its own way, so its own locks look free to it.
#[tokio::test]
async fn relays_of_one_process_do_not_take_each_other_for_dead() {
    let Some(fixture) = Fixture::new().await else { return };
    let (one, other) = (RelayId::new(), RelayId::new());
    assert_eq!(lease(&fixture.store, one).await.leases.len(), 256);
    for _ in 0..3 {
        let looked = lease(&fixture.store, other).await;
        assert_eq!((looked.leases.len(), looked.relays, looked.recheck), (0, 2, Some(EVERY)));
        fixture.run(AGE).await;
    }
}

/// Behind a pooler that gives each transaction another session, a session says nothing.
#[tokio::test]
async fn behind_a_transaction_pooler_a_lease_lasts_as_long_as_it_says() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut pooled = options();
    pooled.transaction_pooler = true;
    let victim = open(&fixture.url, pooled.clone()).await;
    assert_eq!(lease(&victim, RelayId::new()).await.leases.len(), 256);
    assert_eq!(fixture.number(HELD).await, 0);
    drop(victim);
    let watcher = RelayId::new();
    for _ in 0..3 {
        let looked = lease(&fixture.store, watcher).await;
        assert_eq!((looked.leases.len(), looked.recheck), (0, None), "there is no session to look at");
        fixture.run(AGE).await;
    }
}
