//! A cluster: units spread over its nodes, slots move, nodes go away and come back.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Outcome, Received, Stored, Subscription, Transport};
use outbox_contract::{Topic, TransportErrorKind};
use outbox_servers::{OrSkip as _, RedisCluster};
use outbox_transport_redis::RedisTransport;
use tokio::time::{Instant, sleep};

use crate::redis_only::support::{
    EVERY, at, class, deliver, finish, messages, next, publish, publish_under, stored_in, subscribe, topic,
    until,
};

/// Enough keys to have some in every unit.
const KEYS: [&str; 16] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"];
const UNITS: usize = 8;

fn clustered(url: &str, prefix: &str) -> RedisTransport {
    at(url, prefix).cluster(Vec::<String>::new()).build().unwrap()
}

#[tokio::test]
async fn units_spread_over_the_nodes_and_any_node_leads_to_all() {
    let Some(cluster) = RedisCluster::newest().shared().or_skip() else { return };
    let prefix = cluster.fresh_prefix();
    let transport = clustered(&cluster.url(), &prefix);
    transport.check().await.unwrap();
    let all = messages(&KEYS, 160);
    deliver(&transport, &all).await;
    let mut owners: Vec<usize> =
        (0..UNITS).map(|unit| cluster.owner(&format!("{prefix}:{{orders:{unit}}}"))).collect();
    owners.sort_unstable();
    owners.dedup();
    assert!(owners.len() > 1, "all units are on one node");

    // No server has the first address; another node that was named leads to all.
    let last = cluster.urls().pop().unwrap();
    let other = at("redis://127.0.0.1:1", &prefix).cluster([last]).build().unwrap();
    finish(&*subscribe(&other, "reader").await, &all).await;
}

/// The transaction of each unit goes to the node of its keys, as a whole.
#[tokio::test]
async fn large_batches_are_appended_by_a_transaction_on_each_node() {
    let Some(cluster) = RedisCluster::newest().shared().or_skip() else { return };
    let transport = clustered(&cluster.url(), &cluster.fresh_prefix());
    let mut sent = Vec::new();
    for epoch in [1, 1, 1, 2, 2] {
        let batch = messages(&KEYS, 640);
        let outcomes = publish_under(&transport, &batch, |_| epoch).await;
        assert!(outcomes.iter().all(|outcome| *outcome == Some(Outcome::Delivered)), "{outcomes:?}");
        sent.extend(batch);
    }
    let late = publish_under(&transport, &messages(&KEYS, 640), |_| 1).await;
    assert!(late.iter().all(|outcome| class(outcome) == "topic fenced"), "{late:?}");
    finish(&*subscribe(&transport, "reader").await, &sent).await;
}

/// A node that is cut off accepts, perhaps, and never says anything. That must not keep the others
/// from being asked, nor be met each time.
#[tokio::test]
async fn a_node_that_is_silent_does_not_hide_the_others() {
    let Some(cluster) = RedisCluster::newest().shared().or_skip() else { return };
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let address = format!("redis://{}", silent.local_addr().unwrap());
    let transport = at(&address, &cluster.fresh_prefix()).connect_timeout(Duration::from_secs(20));
    let transport = transport.cluster([cluster.url()]).build().unwrap();
    transport.check().await.unwrap();
    // Another connection, which begins with the node that answered.
    deliver(&transport, &messages(&KEYS, 16)).await;
    assert!(silent.accept().is_ok(), "it was asked once");
    assert!(silent.accept().is_err(), "it was asked again");
}

#[tokio::test]
async fn a_transport_that_was_not_told_of_the_cluster_says_so() {
    let Some(cluster) = RedisCluster::newest().shared().or_skip() else { return };
    // Of so many names some have slots of other nodes.
    let mut kinds = Vec::new();
    for number in 0..32 {
        let prefix = format!("{}-{number}", cluster.fresh_prefix());
        let alone = at(&cluster.url(), &prefix).build().unwrap();
        if let Err(error) = alone.check().await {
            assert!(error.to_string().contains("cluster()"), "{error}");
            kinds.push(error.kind());
        }
    }
    assert!(
        !kinds.is_empty() && kinds.iter().all(|kind| *kind == TransportErrorKind::Unsupported),
        "{kinds:?}"
    );
}

#[tokio::test]
async fn a_server_that_is_no_node_and_settings_that_do_not_fit_are_refused() {
    let Some(server) = outbox_servers::Redis::newest().shared().or_skip() else { return };
    let transport = clustered(&server.url(), &server.fresh_prefix());
    let error = transport.check().await.unwrap_err();
    assert!(error.to_string().contains("not a cluster node"), "{error}");
    assert_eq!(class(&publish(&transport, &messages(&["a"], 1)).await[0]), "route configuration");
    let confirming = at(&server.url(), "x").cluster(Vec::<String>::new()).confirm_replicas(1).build();
    assert_eq!(confirming.unwrap_err().kind(), TransportErrorKind::Invalid);
}

/// A member that has not heard yet that its units are another's takes nothing of them.
#[tokio::test]
async fn a_member_reads_nothing_of_a_unit_that_has_another_owner() {
    let Some(cluster) = RedisCluster::newest().shared().or_skip() else { return };
    let prefix = cluster.fresh_prefix();
    // So that it is the reader who finds out.
    let slow =
        at(&cluster.url(), &prefix).lease(Duration::from_secs(6_000)).heartbeat(Duration::from_secs(3_000));
    let transport = slow.cluster(Vec::<String>::new()).build().unwrap();
    let reader = subscribe(&transport, "reader").await;
    let first = messages(&KEYS, 160);
    deliver(&transport, &first).await;
    finish(&*reader, &first).await;
    for unit in 0..UNITS {
        let unit = format!("{prefix}:{{orders:{unit}}}");
        let node = cluster.node(cluster.owner(&unit));
        node.cli(&["SET", &format!("{unit}:lease:reader"), "somebody", "PX", "6000000"]);
        node.cli(&["HSET", &format!("{unit}:owner:reader"), "member", "somebody", "epoch", "999"]);
    }
    deliver(&transport, &messages(&KEYS, 160)).await;
    let mut revoked = 0;
    while revoked < UNITS {
        match next(&*reader).await {
            Received::Revoked(units) => revoked += units.len(),
            other => panic!("it was given {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_lose_and_reorder_nothing() {
    let Some(cluster) = RedisCluster::newest().start().or_skip() else { return };
    let prefix = cluster.fresh_prefix();
    let transport = clustered(&cluster.url(), &prefix);
    let reader = subscribe(&transport, "reader").await;
    let mut all = messages(&KEYS, 160);
    deliver(&transport, &all).await;
    let moving = tokio::task::spawn_blocking(move || {
        for unit in 0..UNITS {
            let key = format!("{prefix}:{{orders:{unit}}}");
            cluster.move_slot(&key, (cluster.owner(&key) + 1) % 3);
        }
        cluster
    });
    // Some before, some while, and some after a slot moves, in every unit.
    loop {
        let moved = moving.is_finished();
        let more = messages(&KEYS, KEYS.len());
        deliver(&transport, &more).await;
        all.extend(more);
        if moved {
            break;
        }
        sleep(EVERY * 4).await;
    }
    let _until_here = moving.await.unwrap();
    finish(&*reader, &all).await;
}

/// P5: a move that was begun and never ended. What is missing there is asked for in vain, as long
/// as that lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_stays_half_moved_holds_up_its_own_unit_alone() {
    let Some(cluster) = RedisCluster::newest().start().or_skip() else { return };
    let (prefix, lease) = (cluster.fresh_prefix(), Duration::from_secs(10));
    let transport = at(&cluster.url(), &prefix).lease(lease).cluster(Vec::<String>::new()).build().unwrap();
    let later = Topic::new("shipments").unwrap();
    let subscription = Subscription::new("reader", [topic(), later.clone()]).unwrap();
    let reader = transport.subscribe(subscription.with_prefetch(1_000)).await.unwrap();
    let some = || {
        let of_later = KEYS.map(|key| stored_in(later.clone(), key, 20));
        [messages(&KEYS, 48), of_later.to_vec()].concat()
    };
    let first = some();
    deliver(&transport, &first).await;
    finish(&*reader, &first).await;

    let is_of_stuck = |it: &Arc<Stored>| it.message.topic == topic() && usize::from(it.bucket.0) % UNITS == 0;
    let stuck = format!("{prefix}:{{orders:0}}");
    let owner = cluster.owner(&stuck);
    let (node, to) = (cluster.node(owner), cluster.node((owner + 1) % 3).cli(&["CLUSTER", "MYID"]));
    let slot = node.cli(&["CLUSTER", "KEYSLOT", &stuck]);
    node.cli(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]);
    node.cli(&["DEL", &format!("{stuck}:lease:reader")]);
    let (began, mut of_stuck) = (Instant::now(), Vec::new());
    while began.elapsed() < lease * 2 {
        let (held_up, others): (Vec<_>, Vec<_>) = some().into_iter().partition(is_of_stuck);
        of_stuck.extend(held_up);
        deliver(&transport, &others).await;
        finish(&*reader, &others).await;
    }
    node.cli(&["CLUSTER", "SETSLOT", &slot, "STABLE"]);
    assert!(!of_stuck.is_empty());
    deliver(&transport, &of_stuck).await;
    finish(&*reader, &of_stuck).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_node_makes_the_route_unavailable_until_it_is_back() {
    let wish = RedisCluster::newest().config("appendonly yes").config("appendfsync always");
    let Some(cluster) = wish.start().or_skip() else { return };
    let transport = clustered(&cluster.url(), &cluster.fresh_prefix());
    let reader = subscribe(&transport, "reader").await;
    let all = messages(&KEYS, 320);
    deliver(&transport, &all[..160]).await;
    cluster.node(1).kill();
    // The first request may have been under way: after that, nothing is sent.
    until("it is seen", async || {
        class(&publish(&transport, &messages(&["z"], 1)).await[0]).starts_with("route")
    })
    .await;
    let outcomes = publish(&transport, &messages(&KEYS, 16)).await;
    assert!(!outcomes.contains(&Some(Outcome::Delivered)), "{outcomes:?}");
    cluster.node(1).start_again();
    until("it is reached again", async || transport.check().await.is_ok()).await;
    deliver(&transport, &all[160..]).await;
    finish(&*reader, &all).await;
}
