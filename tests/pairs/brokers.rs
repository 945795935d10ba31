//! Faults of the broker, and of the connection to it.

use std::sync::Mutex;

use bytes::Bytes;
use outbox_contract::AdminExt as _;
use outbox_contract::admin::Filter;
use outbox_servers::Proxy;
use outbox_tests::record::until;

use crate::world::{Servers, Wishes};

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_killed_and_started_again_loses_nothing() {
    let wishes = Wishes { own_rabbitmq: true, ..Wishes::default() };
    let Some(mut world) = Servers::new(wishes).await else { return };
    world.consume().await;
    world.write(4, 20);
    let relay = world.relay();
    world.more(300).await;
    world.rabbitmq.kill();
    world.rabbitmq.start_again();
    world.more(300).await;
    world.rabbitmq.restart();
    world.more(300).await;
    world.finish().await;
    relay.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_broker_never_takes_becomes_a_dead_letter_and_its_key_goes_on() {
    let wishes = Wishes { max_bytes: Some(10_000), ..Wishes::default() };
    let Some(mut world) = Servers::new(wishes).await else { return };
    world.consume().await;
    let relay = world.relay();
    let poison = world.message("key").with_payload(Bytes::from(vec![0; 10_001]));
    let (id, sent) = (poison.id, poison.clone());
    // Until then it certainly was no dead letter.
    let alive = Mutex::new(world.record.now());
    let before = (0..20).map(|_| world.message("key"));
    let after = (0..20).map(|_| world.message("key"));
    world.append(before.chain([poison]).chain(after)).await;
    world.write(2, 5);
    world.more(300).await;
    let dead = async || world.store.dead_letters(&Filter::all_routes()).await.unwrap();
    let died = async || {
        let now = world.record.now();
        let died = !dead().await.is_empty();
        if !died {
            *alive.lock().unwrap() = now;
        }
        died
    };
    until("a dead letter", died).await;
    let dead: Vec<_> = dead().await.iter().map(|letter| letter.stored.message.id).collect();
    assert_eq!(dead, [id], "the one that is too large, and no other");
    assert!(!world.record.is_delivered(id));
    world.record.never_sent(&sent, alive.into_inner().unwrap());
    world.finish().await;
    relay.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_is_waited_for_and_loses_nothing() {
    const MOST: u32 = 50;
    let wishes = Wishes { max_waiting: Some(MOST), ..Wishes::default() };
    let Some(mut world) = Servers::new(wishes).await else { return };
    // The consumer's queues must exist before it starts.
    world.consume().await;
    world.append([world.message("first")]).await;
    let relay = world.relay();
    world.more(1).await;
    world.stop_consuming().await;
    world.append((0..10 * MOST).map(|_| world.message("key"))).await;
    let host = world.pair.broker.rsplit_once('/').unwrap().1.to_owned();
    let waiting = async || {
        let queues = world.rabbitmq.ctl(&["list_queues", "-p", &host, "--no-table-headers", "messages"]);
        queues.lines().filter_map(|line| line.trim().parse::<u32>().ok()).max().unwrap_or_default()
    };
    until("a full queue", async || waiting().await >= MOST).await;
    // Some batches may have been under way when it was full; far fewer than there are messages.
    assert!(waiting().await < 5 * MOST, "the queue refuses what is too much");
    world.consume().await;
    world.finish().await;
    relay.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_whose_connection_is_cut_thirty_times_misses_nothing() {
    let Some(mut world) = Servers::new(Wishes::default()).await else { return };
    let proxy = Proxy::to(&world.pair.broker);
    let by_proxy = proxy.url(&world.pair.broker);
    world.consume_by(&by_proxy).await;
    world.write(4, 20);
    let relay = world.relay();
    // More than the twenty times after which a queue with RabbitMQ's own defaults drops a message.
    for _ in 0..30 {
        world.more(20).await;
        proxy.cut();
    }
    world.more(20).await;
    world.finish().await;
    relay.stop();
}
