//! Faults of relays.

use std::time::{Duration, Instant};

use outbox_testkit::eventually;
use outbox_tests::fresh::Fresh;
use outbox_tests::halt::Halt;
use outbox_tests::kind::{StoreKind, TransportKind};
use outbox_tests::pair::Pair;

use crate::process::Process;
use crate::world::{Servers, Wishes, World};

/// The relays that the database knows.
const RELAYS: &str = "select relay::text from outbox_relay";
/// Number of buckets of a relay.
const OWNED: &str = "select count(*) from outbox_lease where relay = $1::uuid";

#[tokio::test(flavor = "multi_thread")]
async fn killed_relays_lose_nothing_and_bring_nothing_out_of_order() {
    let Some(mut world) = Servers::new(Wishes::default()).await else { return };
    world.consume().await;
    world.write(4, 20);
    for _ in 0..3 {
        let relay = world.relay();
        world.more(300).await;
        relay.kill();
    }
    let killed = Instant::now();
    let last = world.relay();
    world.flows_again_since(killed, 20).await;
    world.more(300).await;
    world.finish().await;
    last.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_relay_joins_and_carries_on_alone() {
    let Some(mut world) = Servers::new(Wishes::default()).await else { return };
    world.consume().await;
    world.write(4, 20);
    let first = world.relay();
    world.more(300).await;
    let firsts: String = sqlx::query_scalar(RELAYS).fetch_one(world.store.pool()).await.unwrap();
    let second = world.relay();
    world.more(300).await;
    // In order, under load: its in-flight messages are finished or left to the other.
    first.stop();
    let alive: Vec<String> = sqlx::query_scalar(RELAYS).fetch_all(world.store.pool()).await.unwrap();
    assert!(alive.len() == 1 && alive[0] != firsts, "it said that it is gone; there are {alive:?}");
    let left: i64 = sqlx::query_scalar(OWNED).bind(&firsts).fetch_one(world.store.pool()).await.unwrap();
    assert_eq!(left, 0, "its leases are given back, and need not run out");
    // The other has them with its next heartbeat.
    let owned = async || {
        let owned: i64 =
            sqlx::query_scalar(OWNED).bind(&alive[0]).fetch_one(world.store.pool()).await.unwrap();
        owned == 256
    };
    let most = Pair::HEARTBEAT + Duration::from_secs(10);
    assert!(
        eventually(most, owned).await,
        "the second relay has not every lease {most:?} after the first stopped"
    );
    world.more(300).await;
    let third = world.relay();
    world.more(300).await;
    let killed = Instant::now();
    second.kill();
    world.flows_again_since(killed, 20).await;
    world.more(300).await;
    world.finish().await;
    drop(third);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_slept_past_its_lease_brings_nothing_out_of_order() {
    let Some(mut world) = Servers::new(Wishes::default()).await else { return };
    world.consume().await;
    world.write(4, 20);
    let sleeper = world.relay();
    for _ in 0..2 {
        world.more(200).await;
        sleeper.pause();
        // New messages belong to another relay, which took over when the lease had ended.
        let other = world.relay();
        world.more(300).await;
        // It continues in the middle of the other's work.
        sleeper.resume();
        world.more(300).await;
        other.kill();
    }
    world.more(200).await;
    world.finish().await;
    drop(sleeper);
}

/// Lets relays die one after the other, each at a point of its work, while writers write and a
/// consumer receives.
async fn killed_at_every_point(store: StoreKind, transport: TransportKind) {
    let Some(fresh) = Fresh::new(store, transport).await else { return };
    let mut world = World::new(fresh.pair.clone()).await;
    world.consume().await;
    world.write(4, 20);
    for halt in Halt::ALL {
        Process::relay_until(&world.pair, halt).aborted(&format!("{halt:?}")).await;
    }
    let last = world.relay();
    world.more(300).await;
    world.finish().await;
    last.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_killed_at_every_point_between_postgresql_and_rabbitmq_lose_nothing() {
    killed_at_every_point(StoreKind::Postgres, TransportKind::RabbitMq).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_killed_at_every_point_between_postgresql_and_kafka_lose_nothing() {
    killed_at_every_point(StoreKind::Postgres, TransportKind::Kafka).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_killed_at_every_point_between_mysql_and_redis_lose_nothing() {
    killed_at_every_point(StoreKind::MySql, TransportKind::Redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_killed_at_every_point_between_mongodb_and_rabbitmq_lose_nothing() {
    killed_at_every_point(StoreKind::MongoDb, TransportKind::RabbitMq).await;
}
