//! A queue that is full, beside one of the same topic that is not: what the other one has stored
//! already is not sent to it again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use outbox_contract::Consumer;
use outbox_contract::backend::{Deliveries, Outcome, Received, Stored, Subscription, Transport};
use outbox_transport_rabbitmq::{RabbitMqTransport, RabbitMqTransportBuilder, Topology};

use crate::rabbitmq_only::support::{
    PATIENCE, class, declared, eventually, finish, message, publish, subscribe, topic, vhost,
};

const KEYS: usize = 2_000;
const BATCH: usize = 250;
const ROUNDS: usize = 20;

fn away() -> Consumer {
    Consumer::new("billing").unwrap()
}

/// The queues of a consumer that lives, and of one that is away and has room for ten messages.
fn two_consumers(url: &str) -> RabbitMqTransportBuilder {
    declared(url).max_waiting(10).consumer(topic("orders"), away())
}

fn batches_of(left: &[Arc<Stored>]) -> Vec<Vec<Arc<Stored>>> {
    left.chunks(BATCH).map(<[_]>::to_vec).collect()
}

/// Publishes everything that is left, several batches at once, as a relay that tries a topic again.
/// Says what was said of the messages.
async fn attempt(transport: &RabbitMqTransport, left: &mut Vec<Arc<Stored>>) -> Vec<Option<Outcome>> {
    let batches = batches_of(left);
    let outcomes = join_all(batches.iter().map(|batch| publish(transport, batch, PATIENCE))).await.concat();
    let mut each = outcomes.iter();
    left.retain(|_| each.next() != Some(&Some(Outcome::Delivered)));
    outcomes
}

/// Receives and acknowledges without end, and counts.
async fn count(member: Box<dyn Deliveries>, came: Arc<AtomicUsize>) {
    loop {
        if let Ok(Received::Deliveries(deliveries)) = member.next().await {
            came.fetch_add(deliveries.len(), Ordering::Relaxed);
            let tags: Vec<_> = deliveries.into_iter().map(|delivery| delivery.tag).collect();
            let _ = member.acknowledge(&tags).await;
        }
    }
}

/// Fills the queue of the one that is away; says how many messages are in it at least.
async fn fill(owner: &RabbitMqTransport) -> usize {
    let mut filled = 0;
    eventually("the queue is full", async || {
        let outcomes = publish(owner, &[message(&topic("orders"), "filler", 2)], PATIENCE).await;
        filled += 1;
        (class(&outcomes[0]) == "refused").then_some(())
    })
    .await;
    filled
}

/// Attempts while the other consumer is away, and then until everything is delivered; says how much
/// came meanwhile to the one that lives, and why its topic is not published.
async fn story(publisher: &RabbitMqTransport, owner: &RabbitMqTransport) -> (usize, usize, String) {
    let filled = fill(owner).await;
    let came = Arc::new(AtomicUsize::new(0));
    let counting = tokio::spawn(count(subscribe(owner).await, Arc::clone(&came)));
    let all: Vec<_> = (0..KEYS).map(|key| message(&topic("orders"), &format!("key-{key}"), 2)).collect();
    let mut left = all.clone();
    let mut said = Vec::new();
    for _ in 0..ROUNDS {
        said = attempt(publisher, &mut left).await;
    }
    assert!(said.iter().all(|it| class(it) == "refused"), "{:?}", said.first());
    let Some(Some(Outcome::Unavailable(_, why))) = said.into_iter().next() else { panic!("it is refused") };
    // Stored messages are on their way to a member that takes everything.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let while_away = came.load(Ordering::Relaxed) - filled;

    let member = owner.subscribe(Subscription::new(away(), [topic("orders")]).unwrap()).await.unwrap();
    let attempts = async {
        eventually("everything is delivered", async || {
            attempt(publisher, &mut left).await;
            left.is_empty().then_some(())
        })
        .await;
    };
    tokio::join!(attempts, finish(&*member, &all));
    eventually("everything came", async || (came.load(Ordering::Relaxed) >= KEYS + filled).then_some(()))
        .await;
    let in_all = came.load(Ordering::Relaxed) - filled;
    counting.abort();
    println!("{KEYS} messages: {while_away} deliveries in {ROUNDS} attempts, {in_all} in all");
    (while_away, in_all, why.message)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_repeats_at_the_other_consumers_what_was_under_way_once() {
    let Some((_server, url)) = vhost() else { return };
    let transport = two_consumers(&url).build().unwrap();
    let owner = two_consumers(&url).build().unwrap();
    let (while_away, in_all, why) = story(&transport, &owner).await;
    assert!(while_away <= KEYS, "{while_away} deliveries of {KEYS} messages");
    assert!(in_all <= 4 * KEYS, "{in_all} deliveries of {KEYS} messages");
    assert!(why.contains("in \"billing:orders\""), "{why}");
}

/// A transport that was not told of the consumers can't ask how full their queues are: one message
/// at a time finds out, ever more seldom.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_that_nobody_named_is_tried_with_one_message() {
    let Some((_server, url)) = vhost() else { return };
    let owner = two_consumers(&url).build().unwrap();
    owner.check().await.unwrap();
    let publisher = RabbitMqTransport::builder(&url).topology(Topology::Trusted).build().unwrap();
    let (while_away, in_all, _) = story(&publisher, &owner).await;
    assert!(while_away <= KEYS + ROUNDS, "{while_away} deliveries of {KEYS} messages");
    assert!(in_all <= 5 * KEYS, "{in_all} deliveries of {KEYS} messages");
}
