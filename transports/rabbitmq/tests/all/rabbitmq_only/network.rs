//! Networks that cut and swallow, and a broker that dies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_contract::backend::{Outcome, Stored, Transport};
use outbox_contract::{KeyId, MessageId};
use outbox_servers::{OrSkip, Proxy, RabbitMq};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::rabbitmq_only::support::{
    PATIENCE, declared, deliver, eventually, finish, finish_telling, ids, message, messages, publish,
    revoked, subscribe, topic, vhost,
};

/// The first deliveries of each key are in the order in which its messages were sent.
fn assert_in_order(sent: &[Arc<Stored>], came: &[MessageId]) {
    let mut keys: BTreeMap<KeyId, Vec<MessageId>> = BTreeMap::new();
    for stored in sent {
        keys.entry(stored.message.key_id()).or_default().push(stored.message.id);
    }
    for (key, expected) in keys {
        let of_key: Vec<_> = came.iter().copied().filter(|id| expected.contains(id)).collect();
        assert_eq!(of_key, expected, "first deliveries of {key}");
    }
}

/// Connections are cut while batches are on their way: everything arrives, each key in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections_lose_nothing_and_keep_the_order() {
    let Some((_server, url)) = vhost() else { return };
    let proxy = Proxy::to(&url);
    let quick =
        |url: &str| declared(url).partitions(2).pauses(Duration::from_millis(20), Duration::from_millis(200));
    let receiving = quick(&url).build().unwrap();
    let member = subscribe(&receiving).await;
    let publishing = quick(&proxy.url(&url)).build().unwrap();
    let orders = topic("orders");
    let sent: Vec<_> = (0..600).map(|at| message(&orders, &format!("key-{}", at % 7), 2)).collect();
    // Number of messages so far, repeats included.
    let (seen, mut saw) = watch::channel(0);
    let mut in_the_middle = 0;
    let sending = async {
        for (at, batch) in sent.chunks(60).enumerate() {
            if at % 2 == 0 {
                deliver(&publishing, batch).await;
                continue;
            }
            let before = *saw.borrow();
            let cut = async {
                let some = before + [1, 7, 20, 35, 50][at / 2];
                saw.wait_for(|seen| *seen >= some).await.expect("the receiver outlives the sender");
                proxy.cut();
                let came = *saw.borrow() - before;
                in_the_middle += usize::from(0 < came && came < batch.len());
            };
            let cut = async { timeout(PATIENCE, cut).await.expect("what is sent arrives") };
            tokio::join!(deliver(&publishing, batch), cut);
        }
    };
    let receiving = finish_telling(&*member, &sent, |count| seen.send_modify(|seen| *seen += count));
    let (came, ()) = tokio::join!(receiving, sending);
    assert_in_order(&sent, &came);
    assert!(in_the_middle > 0, "no connection was cut in the middle of a batch, so nothing was shown");
}

/// A network that takes everything and gives nothing back: noticed by heartbeats, on both sides of
/// the transport.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_swallows_everything_is_noticed() {
    let Some((_server, url)) = vhost() else { return };
    let proxy = Proxy::to(&url);
    let transport =
        declared(&proxy.url(&url)).heartbeat(Duration::from_secs(1)).timeout(Duration::from_secs(20));
    let transport = transport.build().unwrap();
    let member = subscribe(&transport).await;
    let first = messages(&topic("orders"), &["a", "b"]);
    deliver(&transport, &first).await;
    finish(&*member, &first).await;

    proxy.swallow();
    assert_eq!(revoked(&*member).await, 1);
    let lost = messages(&topic("orders"), &["a", "b"]);
    let outcomes = publish(&transport, &lost, Duration::from_secs(5)).await;
    assert!(!outcomes.contains(&Some(Outcome::Delivered)), "{outcomes:?}");

    proxy.pass();
    // Connections that lost bytes stay silent for ever; new ones are as good as any.
    let after = [lost, messages(&topic("orders"), &["c"])].concat();
    let (came, ()) = tokio::join!(finish(&*member, &after), deliver(&transport, &after));
    assert!(ids(&after).iter().all(|id| came.contains(id)));
}

/// A connection that is lost, and is not had again as the network swallows the new one, costs no
/// batch anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_carries_on_while_another_can_not_be_made() {
    let Some((_server, url)) = vhost() else { return };
    let proxy = Proxy::to(&url);
    let transport = declared(&proxy.url(&url)).build().unwrap();
    for _ in 0..2 {
        deliver(&transport, &messages(&topic("orders"), &["a"])).await;
    }
    assert_eq!(proxy.connections(), 2);
    proxy.swallow_new(true);
    proxy.cut_oldest();
    // Messages under way at the cut may be unknown.
    deliver(&transport, &messages(&topic("orders"), &["a"])).await;
    for at in 0..20 {
        // As long as a relay waits.
        let sent = messages(&topic("orders"), &["a", "b"]);
        let outcomes = publish(&transport, &sent, Duration::from_secs(5)).await;
        assert!(outcomes.iter().all(|it| *it == Some(Outcome::Delivered)), "batch {at}: {outcomes:?}");
    }
}

/// An error of the network is found out once, and not by each queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_many_queues_leaves_a_silent_network_in_the_time_of_one() {
    let Some((_server, url)) = vhost() else { return };
    let proxy = Proxy::to(&url);
    let limit = Duration::from_secs(2);
    let transport = declared(&proxy.url(&url)).partitions(16).heartbeat(Duration::from_secs(60));
    let transport = transport.timeout(limit).build().unwrap();
    let member = subscribe(&transport).await;
    proxy.swallow();
    let started = Instant::now();
    member.close().await.unwrap();
    // For a channel and for the connection; the rest is for a busy machine.
    assert!(started.elapsed() < 8 * limit, "it took {:?}", started.elapsed());
}

/// The broker does what it is asked to, and its answers are lost: what was sent is unknown, and
/// comes again in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confirmation_that_is_lost_leaves_the_message_unknown() {
    let Some((_server, url)) = vhost() else { return };
    let proxy = Proxy::to(&url);
    let publishing = declared(&proxy.url(&url)).build().unwrap();
    let receiving = declared(&url).build().unwrap();
    let member = subscribe(&receiving).await;
    let warm = messages(&topic("orders"), &["a"]);
    deliver(&publishing, &warm).await;
    // The other connection too.
    deliver(&publishing, &messages(&topic("orders"), &["z"])).await;

    proxy.swallow_answers();
    let sent = messages(&topic("orders"), &["a", "a", "b"]);
    let outcomes = publish(&publishing, &sent, Duration::from_secs(2)).await;
    assert!(!outcomes.contains(&Some(Outcome::Delivered)), "{outcomes:?}");
    // The first of each key was written before the answers were lost.
    finish(&*member, &[Arc::clone(&sent[0]), Arc::clone(&sent[2])]).await;
    proxy.pass();
    proxy.cut();
    let (came, ()) = tokio::join!(finish(&*member, &sent), deliver(&publishing, &sent));
    assert_in_order(&sent[..2], &came);
}

/// Messages that the broker confirmed before it was killed are there when it comes back; no program
/// has to be restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_broker_that_comes_back_has_what_it_confirmed() {
    let Some(server) = RabbitMq::newest().start().or_skip() else { return };
    // RabbitMQ writes down which queues a node has a moment after they are declared. A queue whose
    // only node is killed before that comes back empty; one that was there when the broker started
    // does not.
    declared(&server.url()).build().unwrap().check().await.unwrap();
    let restart = server.clone();
    tokio::task::spawn_blocking(move || restart.restart()).await.unwrap();
    let transport = declared(&server.url()).build().unwrap();
    let member = subscribe(&transport).await;
    let before = messages(&topic("orders"), &["a", "b", "c"]);
    deliver(&transport, &before).await;
    let kill = server.clone();
    tokio::task::spawn_blocking(move || kill.kill()).await.unwrap();
    assert_eq!(revoked(&*member).await, 1);
    let meanwhile = messages(&topic("orders"), &["a", "b", "c"]);
    let outcomes = publish(&transport, &meanwhile, PATIENCE).await;
    assert!(!outcomes.contains(&Some(Outcome::Delivered)), "{outcomes:?}");
    assert!(
        matches!(eventually("the member is told", async || member.next().await.err()).await, error if error.is_retryable())
    );

    let back = server.clone();
    tokio::task::spawn_blocking(move || back.start_again()).await.unwrap();
    let all = [before, meanwhile.clone()].concat();
    let (came, ()) = tokio::join!(finish(&*member, &all), deliver(&transport, &meanwhile));
    assert_in_order(&all, &came);
}
