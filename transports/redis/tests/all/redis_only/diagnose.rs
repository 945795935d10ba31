//! Findings about the server, each made to happen on real ones, and gone after its remedy.

use outbox_contract::admin::Diagnosis;
use outbox_contract::backend::Transport;
use outbox_contract::{Topic, TransportErrorKind};
use outbox_servers::{OrSkip as _, Redis, RedisCluster, RedisServer};
use outbox_transport_redis::RedisTransport;

use crate::redis_only::support::{at, builder, deliver, messages, publish, topic};

/// Rules of snapshots as of a server without a line of configuration.
const SAVES: &str = "save 3600 1 300 100 60 10000";

/// Servers that keep what they have.
fn servers() -> Vec<RedisServer> {
    let wishes = [Redis::newest(), Redis::oldest(), Redis::valkey()];
    wishes.into_iter().filter_map(|wish| wish.config(SAVES).start().or_skip()).collect()
}

/// Returns the findings, each as its kind, its text and its remedy.
async fn found(transport: &RedisTransport, topics: &[&str]) -> Vec<String> {
    let topics: Vec<Topic> = topics.iter().map(|topic| Topic::new(*topic).unwrap()).collect();
    let found = transport.diagnose(&topics).await.unwrap();
    found
        .into_iter()
        .map(|Diagnosis { kind, text, remedy, .. }| format!("{kind}: {text} / {remedy}"))
        .collect()
}

#[tokio::test]
async fn a_server_with_its_defaults_has_no_finding_and_gets_no_topic() {
    for server in servers() {
        let prefix = server.fresh_prefix();
        let transport = at(&server.url(), &prefix).build().unwrap();
        assert_eq!(found(&transport, &["orders", "bills"]).await, [""; 0]);
        assert_eq!(server.cli(&["KEYS", &format!("{prefix}*")]).trim(), "", "nothing was made");
        deliver(&transport, &messages(&["a"], 3)).await;
        assert_eq!(found(&transport, &["orders", "bills"]).await, [""; 0]);
    }
}

#[tokio::test]
async fn a_server_that_keeps_nothing_over_a_restart_is_found() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let transport = builder(&server).build().unwrap();
    let all = found(&transport, &[]).await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].starts_with("durability: appendonly is no, save is empty"), "{all:?}");
    assert!(all[0].contains("CONFIG SET appendonly yes"), "{all:?}");
    server.cli(&["CONFIG", "SET", "appendonly", "yes"]);
    assert_eq!(found(&transport, &[]).await, [""; 0]);
}

#[tokio::test]
async fn memory_that_is_about_to_be_full_is_found() {
    for server in servers() {
        let transport = builder(&server).build().unwrap();
        deliver(&transport, &messages(&["a"], 3)).await;
        let used: u64 = {
            let info = server.cli(&["INFO", "memory"]);
            let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
            used.trim().parse().unwrap()
        };
        server.cli(&["CONFIG", "SET", "maxmemory", &(used + used / 50).to_string()]);
        let all = found(&transport, &["orders"]).await;
        assert!(all.len() == 1 && all[0].starts_with("delivery: used_memory is "), "{all:?}");
        server.cli(&["CONFIG", "SET", "maxmemory", &(used * 4).to_string()]);
        assert_eq!(found(&transport, &["orders"]).await, [""; 0]);
    }
}

#[tokio::test]
async fn a_policy_that_evicts_leases_is_found() {
    let Some(server) = Redis::newest().config(SAVES).start().or_skip() else { return };
    let transport = builder(&server).build().unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    assert_eq!(found(&transport, &[]).await, [""; 0], "without a limit nothing is evicted");
    server.cli(&["CONFIG", "SET", "maxmemory", "1gb"]);
    let all = found(&transport, &[]).await;
    assert!(all.len() == 1 && all[0].starts_with("delivery: maxmemory-policy is volatile-lru"), "{all:?}");
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert_eq!(found(&transport, &[]).await, [""; 0]);
}

/// The server itself shows that the finding is right: it confirms nothing in time.
#[tokio::test]
async fn a_disk_that_is_waited_for_and_never_synced_is_found() {
    let Some(server) = Redis::newest().config("appendonly yes").start().or_skip() else { return };
    let transport = builder(&server).confirm_disk().build().unwrap();
    assert_eq!(found(&transport, &[]).await, [""; 0]);
    deliver(&transport, &messages(&["a"], 3)).await;
    server.cli(&["CONFIG", "SET", "appendfsync", "no"]);
    transport.check().await.unwrap();
    let all = found(&transport, &[]).await;
    assert!(all.len() == 1 && all[0].starts_with("delivery: appendfsync is no"), "{all:?}");
    let outcomes = publish(&transport, &messages(&["b"], 1)).await;
    assert_ne!(outcomes[0], Some(outbox_contract::backend::Outcome::Delivered), "{outcomes:?}");
    let plain = builder(&server).build().unwrap();
    assert_eq!(found(&plain, &[]).await, [""; 0], "which waits for no disk");
    server.cli(&["CONFIG", "SET", "appendfsync", "everysec"]);
    assert_eq!(found(&transport, &[]).await, [""; 0]);
}

#[tokio::test]
async fn a_key_that_holds_something_else_is_found() {
    for server in servers() {
        let prefix = server.fresh_prefix();
        let transport = at(&server.url(), &prefix).units(2).build().unwrap();
        transport.create_topic(topic()).await.unwrap();
        let stream = format!("{prefix}:{{orders:1}}");
        server.cli(&["SET", &stream, "not a stream"]);
        server.cli(&["LPUSH", &format!("{prefix}:{{bills}}"), "no units"]);
        let all = found(&transport, &["orders", "bills"]).await;
        assert_eq!(all.len(), 2, "{all:?}");
        let text = format!("delivery: key {prefix}:{{bills}} holds a list, where a hash belongs");
        assert!(all[0].starts_with(&text), "{all:?}");
        assert!(
            all[1].starts_with(&format!("delivery: key {stream} holds a string, where a stream")),
            "{all:?}"
        );
        server.cli(&["RENAME", &stream, "elsewhere"]);
        server.cli(&["RENAME", &format!("{prefix}:{{bills}}"), "elsewhere-too"]);
        server.cli(&["HSET", &format!("{prefix}:{{bills}}"), "units", "1000"]);
        let all = found(&transport, &["orders", "bills"]).await;
        assert!(all.len() == 1 && all[0].starts_with("delivery: topic bills has 1000 units"), "{all:?}");
        server.cli(&["HSET", &format!("{prefix}:{{bills}}"), "units", "2"]);
        assert_eq!(found(&transport, &["orders", "bills"]).await, [""; 0]);
    }
}

#[tokio::test]
async fn a_topic_that_nobody_made_is_found_where_none_is_made_by_name() {
    let Some(server) = Redis::newest().config(SAVES).start().or_skip() else { return };
    let transport = builder(&server).existing_topics_only().build().unwrap();
    let all = found(&transport, &["orders", "bills"]).await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].starts_with("delivery: topics orders, bills do not exist"), "{all:?}");
    transport.create_topic("orders").await.unwrap();
    let all = found(&transport, &["orders", "bills"]).await;
    assert!(all[0].starts_with("delivery: topic bills does not exist"), "{all:?}");
    transport.create_topic("bills").await.unwrap();
    assert_eq!(found(&transport, &["orders", "bills"]).await, [""; 0]);
}

#[tokio::test]
async fn a_user_that_may_not_look_is_told_the_right_to_grant() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let all_rights = at(&server.url(), "mine").build().unwrap();
    all_rights.create_topic("orders").await.unwrap();
    server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~mine*", "+@all", "-config", "-type"]);
    let low = at(&server.url().replace("redis://", "redis://app:pw@"), "mine").build().unwrap();
    let all = found(&low, &["orders"]).await;
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].starts_with("unseen: this user may not read settings"), "{all:?}");
    assert!(all[0].contains("+config|get"), "{all:?}");
    assert!(all[1].starts_with("unseen: key mine:{orders} is hidden"), "{all:?}");
    assert!(all[1].contains("+type ~mine:*"), "{all:?}");
    server.cli(&["ACL", "SETUSER", "app", "+config|get", "+type"]);
    let all = found(&low, &["orders"]).await;
    assert!(all.len() == 1 && all[0].starts_with("durability: appendonly is no"), "it is seen: {all:?}");
}

#[tokio::test]
async fn each_node_of_a_cluster_is_examined() {
    let Some(cluster) = RedisCluster::newest().start().or_skip() else { return };
    let prefix = cluster.fresh_prefix();
    let transport = at(&cluster.url(), &prefix).cluster(Vec::<String>::new()).units(16).build().unwrap();
    deliver(&transport, &messages(&["a", "b", "c"], 12)).await;
    let all = found(&transport, &["orders"]).await;
    // The nodes of tests keep nothing.
    assert!(all.iter().all(|it| it.starts_with("durability: node 127.0.0.1:")), "{all:?}");
    let nodes = all.len();
    assert!(nodes >= 3, "{all:?}");
    cluster.node(1).cli(&["CONFIG", "SET", "appendonly", "yes"]);
    assert_eq!(found(&transport, &["orders"]).await.len(), nodes - 1);
}

#[tokio::test]
async fn a_server_that_is_away_is_an_error_and_not_a_finding() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let transport = builder(&server).build().unwrap();
    transport.diagnose(&[topic()]).await.unwrap();
    server.stop();
    let error = transport.diagnose(&[topic()]).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{error}");
    transport.close().await;
    let error = transport.diagnose(&[topic()]).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Closed, "{error}");
}
