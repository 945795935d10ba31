//! The session of a relay: it ends with the process, long before the lease of an hour does, and
//! others see that.

use std::time::Duration;

use outbox_contract::Store;
use outbox_contract::backend::{Lease, Leased, LowWater, RelayId};
use outbox_store_mysql::MySqlStore;
use outbox_testkit::until_owned;

use super::support::{Fixture, LONG, both, heartbeat};

/// Time after which a relay looks at the sessions of the others.
const EVERY: Duration = Duration::from_millis(1_500);

/// Number of sessions that hold the lock of relays of this database.
const HELD: &str = "select count(distinct session) from outbox_relay where is_used_lock(concat('outbox_session_', session)) = session";

/// As if the half second were over in which a relay may open another session.
const AGE: &str = "update outbox_relay set session_lost_at = session_lost_at - 10000000";

async fn lease(store: &MySqlStore, relay: RelayId) -> Leased {
    store.lease(&heartbeat(relay)).await.unwrap()
}

/// Ends the session of a relay, as the server does when its process dies, and waits until it is
/// over.
async fn end_session(fixture: &Fixture, relay: RelayId) {
    let of = relay.as_uuid().simple();
    let session = fixture.number(&format!("select session from outbox_relay where relay = x'{of}'")).await;
    fixture.run(&format!("kill {session}")).await;
    let is_free = format!("select is_free_lock('outbox_session_{session}')");
    let ending = async {
        while fixture.number(&is_free).await == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LONG, ending).await.expect("a session that was killed ends");
}

#[tokio::test]
async fn what_a_dead_relay_owned_is_free_when_its_session_has_ended() {
    for fixture in both().await {
        let (dead, heir) = (RelayId::new(), RelayId::new());
        let victim = fixture.another().await;
        let owned = lease(&victim, dead).await.leases;
        assert_eq!(owned.len(), 256);
        let waiting = lease(&fixture.store, heir).await;
        assert_eq!((waiting.leases.len(), waiting.relays, waiting.recheck), (0, 2, Some(EVERY)), "it lives");

        end_session(&fixture, dead).await;
        let inherited = until_owned(&fixture.store, &heartbeat(heir), 256).await;
        assert_eq!((inherited.relays, inherited.recheck), (1, None));
        let epochs = |leases: &[Lease]| leases.iter().map(|lease| lease.epoch.0).sum::<i64>();
        assert_eq!(epochs(&inherited.leases), epochs(&owned) + 256, "each under its next epoch");
    }
}

#[tokio::test]
async fn a_relay_whose_session_is_another_one_keeps_what_it_owns() {
    for fixture in both().await {
        let (alive, other) = (RelayId::new(), RelayId::new());
        let first = fixture.another().await;
        let before = lease(&first, alive).await.leases;
        end_session(&fixture, alive).await;
        let looked = lease(&fixture.store, other).await;
        assert_eq!((looked.leases.len(), looked.relays), (0, 2), "one look is not enough");
        assert!(looked.recheck.is_some());

        let again = fixture.another().await;
        assert_eq!(lease(&again, alive).await.leases, before);
        fixture.run(AGE).await;
        let looked = lease(&fixture.store, other).await;
        assert_eq!((looked.leases.len(), looked.recheck), (0, Some(EVERY)));
    }
}

/// Also where the share of those who live leaves nothing to take.
#[tokio::test]
async fn a_relay_is_dead_when_its_session_has_been_lost_for_half_a_second() {
    for fixture in both().await {
        let (dead, watcher) = (RelayId::new(), RelayId::new());
        lease(&fixture.store, watcher).await;
        let victim = fixture.another().await;
        lease(&victim, dead).await;
        end_session(&fixture, dead).await;
        let looked = lease(&fixture.store, watcher).await;
        assert_eq!((looked.relays, looked.fair_share), (2, 128), "one look is not enough");
        fixture.run(AGE).await;
        let looked = lease(&fixture.store, watcher).await;
        assert_eq!((looked.relays, looked.fair_share, looked.recheck), (1, 256, None));
        let lives = "select count(*) from outbox_relay \
                     where expires_at > timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6))";
        assert_eq!(fixture.number(lives).await, 1, "the end of its life is written, so others agree");
    }
}

#[tokio::test]
async fn a_session_has_one_lock_however_many_relays_and_heartbeats_it_has() {
    for fixture in both().await {
        let relays: Vec<RelayId> = (0..3).map(|_| RelayId::new()).collect();
        for &relay in &relays {
            lease(&fixture.store, relay).await;
            lease(&fixture.store, relay).await;
        }
        assert_eq!(fixture.number(HELD).await, 1);
        // A lock that was taken twice would outlive this.
        let session = fixture.number("select max(session) from outbox_relay").await;
        let route = outbox_contract::Route::default();
        for &relay in &relays[1..] {
            let leases = lease(&fixture.store, relay).await.leases;
            fixture.store.give_back(relay, &route, &leases, &LowWater::default(), true).await.unwrap();
        }
        assert_eq!(fixture.number(HELD).await, 1, "the first relay lives on");
        end_session(&fixture, relays[0]).await;
        assert_eq!(fixture.number(&format!("select is_free_lock('outbox_session_{session}')")).await, 1);
    }
}

#[tokio::test]
async fn relays_of_one_process_do_not_take_each_other_for_dead() {
    for fixture in both().await {
        let (one, other) = (RelayId::new(), RelayId::new());
        assert_eq!(lease(&fixture.store, one).await.leases.len(), 256);
        for _ in 0..3 {
            let looked = lease(&fixture.store, other).await;
            assert_eq!((looked.leases.len(), looked.relays, looked.recheck), (0, 2, Some(EVERY)));
            fixture.run(AGE).await;
        }
    }
}

/// Servers keep such locks to themselves: nodes of a cluster, or the one before a failover.
#[tokio::test]
async fn a_session_on_another_server_says_nothing() {
    for fixture in both().await {
        let (store, victim) = (fixture.another().await, RelayId::new());
        assert_eq!(lease(&store, victim).await.leases.len(), 256);
        fixture.run("update outbox_relay set server = 'elsewhere:3306'").await;
        end_session(&fixture, victim).await;
        let watcher = RelayId::new();
        for _ in 0..3 {
            let looked = lease(&fixture.store, watcher).await;
            assert_eq!((looked.leases.len(), looked.recheck), (0, None), "there is no session to look at");
            fixture.run(AGE).await;
        }
    }
}
