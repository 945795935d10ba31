//! A cluster: units spread over its nodes, slots move, nodes go away and come back.

use outbox_contract::{Outcome, Transport, TransportErrorKind};
use outbox_servers::{OrSkip as _, RedisCluster};
use outbox_transport_redis::RedisTransport;

use crate::support::{at, class, deliver, finish, messages, publish, subscribe, until};

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

    // The first address is of nobody; another node that was named leads to all.
    let last = cluster.urls().pop().unwrap();
    let other = at("redis://127.0.0.1:1", &prefix).cluster([last]).build().unwrap();
    finish(&*subscribe(&other, "reader").await, &all).await;
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
    assert!(error.to_string().contains("no node of a cluster"), "{error}");
    assert_eq!(class(&publish(&transport, &messages(&["a"], 1)).await[0]), "route configuration");
    let confirming = at(&server.url(), "x").cluster(Vec::<String>::new()).confirm_replicas(1).build();
    assert_eq!(confirming.unwrap_err().kind(), TransportErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_lose_and_reorder_nothing() {
    let Some(cluster) = RedisCluster::newest().start().or_skip() else { return };
    let prefix = cluster.fresh_prefix();
    let transport = clustered(&cluster.url(), &prefix);
    let reader = subscribe(&transport, "reader").await;
    let all = messages(&KEYS, 1_600);
    deliver(&transport, &all[..160]).await;
    let sending = tokio::spawn({
        let (transport, rest) = (transport.clone(), all[160..].to_vec());
        async move { deliver(&transport, &rest).await }
    });
    let moving = tokio::task::spawn_blocking(move || {
        for unit in 0..UNITS {
            let key = format!("{prefix}:{{orders:{unit}}}");
            cluster.move_slot(&key, (cluster.owner(&key) + 1) % 3);
        }
        cluster
    });
    finish(&*reader, &all).await;
    sending.await.unwrap();
    let _until_here = moving.await.unwrap();
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
    // What is asked first may have been under way: after that, nothing is sent to anybody.
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
