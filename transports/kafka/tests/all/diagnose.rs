//! Findings about topics, each made to happen on real brokers, and gone after its remedy.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::time::Instant;

use crate::support::{
    PATIENCE, delete_topic, fresh_name, fresh_topic, make_topic, make_topic_of_copies, set, topics,
};
use outbox_contract::admin::Diagnosis;
use outbox_contract::backend::Transport;
use outbox_contract::{Topic, TransportErrorKind};
use outbox_servers::{Kafka, KafkaCluster, KafkaServer, OrSkip};
use outbox_transport_kafka::KafkaTransport;

/// Starting and ending processes blocks.
async fn blocking<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(what).await.unwrap()
}

fn transport(brokers: &str) -> KafkaTransport {
    KafkaTransport::builder(brokers).build().unwrap()
}

/// Returns the findings, each as its kind, its text and its remedy.
async fn found(transport: &KafkaTransport, topics: &[&Topic]) -> Vec<String> {
    let topics: Vec<Topic> = topics.iter().map(|topic| (*topic).clone()).collect();
    let found = transport.diagnose(&topics).await.unwrap();
    found
        .into_iter()
        .map(|Diagnosis { kind, text, remedy, .. }| format!("{kind}: {text} / {remedy}"))
        .collect()
}

/// Asks until this is so: brokers hear of a change by and by.
async fn until(
    transport: &KafkaTransport,
    topic: &Topic,
    what: &str,
    is: impl Fn(&[String]) -> bool,
) -> Vec<String> {
    let started = Instant::now();
    loop {
        let found = found(transport, &[topic]).await;
        if is(&found) {
            return found;
        }
        assert!(started.elapsed() < PATIENCE, "{what}: {found:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

async fn until_none(transport: &KafkaTransport, topic: &Topic) {
    until(transport, topic, "a healthy topic", <[String]>::is_empty).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_with_its_defaults_has_no_finding() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_topic(&server.url(), 3, &[]).await;
    let transport = transport(&server.url());
    assert_eq!(found(&transport, &[&topic]).await, [""; 0]);
    assert_eq!(found(&transport, &[]).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_does_not_exist_is_found_and_not_made() {
    let wish = Kafka::newest().config("auto.create.topics.enable=true");
    let Some(server) = blocking(move || wish.start().or_skip()).await else { return };
    let (missing, there) = (fresh_name(), fresh_topic(&server.url(), 1, &[]).await);
    let transport = transport(&server.url());
    let all = found(&transport, &[&missing, &there]).await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(
        all[0].starts_with(&format!("delivery: topic {missing} does not exist: messages wait")),
        "{all:?}"
    );
    assert!(all[0].contains("auto.create.topics.enable is true"), "{all:?}");
    assert!(all[0].contains(&format!("kafka-topics.sh --create --topic {missing}")), "{all:?}");
    assert!(!topics(&server.url()).await.contains(&missing.to_string()), "nothing was made");
    make_topic(&server.url(), &missing, 1, &[]).await;
    until_none(&transport, &missing).await;
    delete_topic(&server.url(), &missing).await;
    until(&transport, &missing, "it is gone again", |found| found.len() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_takes_less_than_the_transport_sends_is_found() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_topic(&server.url(), 1, &[("max.message.bytes", "500000")]).await;
    let transport = transport(&server.url());
    let all = found(&transport, &[&topic]).await;
    assert_eq!(all.len(), 1, "{all:?}");
    let text = format!("delivery: topic {topic}: max.message.bytes is 500000, and the transport accepts");
    assert!(all[0].starts_with(&text) && all[0].contains("up to 1048588 bytes"), "{all:?}");
    assert!(all[0].contains("--add-config max.message.bytes=1048588"), "{all:?}");
    let smaller = KafkaTransport::builder(server.url()).max_message_bytes(500_000).build().unwrap();
    assert_eq!(found(&smaller, &[&topic]).await, [""; 0], "the other remedy");
    set(&server.url(), &topic, "max.message.bytes", "1048588").await;
    until_none(&transport, &topic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_whose_confirmed_messages_can_be_lost_are_found_on_a_cluster() {
    let Some(cluster) = blocking(|| Kafka::newest().start_cluster().or_skip()).await else { return };
    let (url, transport) = (cluster.url(), transport(&cluster.url()));
    let copies = async |copies: i32, config: &[(&str, &str)]| {
        let topic = fresh_name();
        make_topic_of_copies(&url, &topic, 2, copies, config).await;
        topic
    };
    let (healthy, one) = (copies(3, &[]).await, copies(1, &[("min.insync.replicas", "1")]).await);
    until_none(&transport, &healthy).await;
    let all = found(&transport, &[&healthy, &one]).await;
    assert_eq!(all.len(), 1, "{all:?}");
    let text = format!("durability: topic {one}: replication factor 1 in a cluster of 3 brokers");
    assert!(all[0].starts_with(&text), "{all:?}");

    set(&url, &healthy, "min.insync.replicas", "1").await;
    let is_one = |found: &[String]| found.len() == 1;
    let all = until(&transport, &healthy, "one replica confirms", is_one).await;
    let text = format!("durability: topic {healthy}: replication factor 3 and min.insync.replicas 1");
    assert!(all[0].starts_with(&text) && all[0].contains("min.insync.replicas=2"), "{all:?}");
    set(&url, &healthy, "min.insync.replicas", "2").await;
    until_none(&transport, &healthy).await;

    set(&url, &healthy, "unclean.leader.election.enable", "true").await;
    let all = until(&transport, &healthy, "unclean", is_one).await;
    assert!(all[0].contains("unclean.leader.election.enable is true"), "{all:?}");
    set(&url, &healthy, "unclean.leader.election.enable", "false").await;
    until_none(&transport, &healthy).await;

    // More than there are replicas: no message is ever taken.
    set(&url, &one, "min.insync.replicas", "2").await;
    let says = |text: &'static str| move |found: &[String]| found.iter().any(|it| it.contains(text));
    let all = until(&transport, &one, "never", says("the broker never takes a message")).await;
    assert!(says("min.insync.replicas=1")(&all), "{all:?}");
    brokers_that_go(&cluster, &transport, &healthy).await;
}

/// Two of the three brokers go, and come back.
async fn brokers_that_go(cluster: &KafkaCluster, transport: &KafkaTransport, topic: &Topic) {
    let says = |text: &'static str| move |found: &[String]| found.iter().any(|it| it.contains(text));
    let end = async |number: usize| {
        let broker = cluster.broker(number).clone();
        blocking(move || broker.kill()).await;
    };
    end(0).await;
    let all = until(transport, topic, "one is away", says("under-replicated: replicas of partition")).await;
    assert!(all.iter().all(|it| it.starts_with("durability: ")), "enough are left: {all:?}");
    end(1).await;
    let too_few = says("1 in-sync replicas, and min.insync.replicas is 2");
    let all = until(transport, topic, "two are away", too_few).await;
    assert!(says("--under-replicated-partitions")(&all), "{all:?}");
    for number in [0, 1] {
        let broker = cluster.broker(number).clone();
        blocking(move || broker.start_again()).await;
    }
    until_none(transport, topic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_without_a_leader_is_found_until_its_broker_is_back() {
    let Some(cluster) = blocking(|| Kafka::newest().start_cluster().or_skip()).await else { return };
    let (url, topic) = (cluster.url(), fresh_name());
    // A partition on each broker.
    make_topic_of_copies(&url, &topic, 3, 1, &[("min.insync.replicas", "1")]).await;
    let transport = transport(&url);
    let away = cluster.broker(2).clone();
    let killed = away.clone();
    blocking(move || killed.kill()).await;
    let says = |text: &'static str| move |found: &[String]| found.iter().any(|it| it.contains(text));
    let all = until(&transport, &topic, "no leader", says("no leader of partition ")).await;
    assert!(all.iter().any(|it| it.starts_with("delivery: ")), "{all:?}");
    blocking(move || away.start_again()).await;
    until(&transport, &topic, "a leader", |found| !says("no leader")(found)).await;
}

/// Gives the user without rights a right to a topic, or takes it.
async fn acl(server: &KafkaServer, change: &'static str, operation: &'static str, topic: &Topic) {
    let (server, topic) = (server.clone(), topic.to_string());
    let changed = move || {
        let (user, brokers) = (format!("User:{}", Kafka::NOBODY.0), server.internal_url());
        let args = ["--bootstrap-server", &brokers, change, "--allow-principal", &user];
        let args = [&args[..], &["--operation", operation, "--topic", &topic]].concat();
        server.tool("org.apache.kafka.tools.AclCommand", &args).unwrap()
    };
    blocking(changed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_may_not_see_the_settings_is_told_the_right_to_grant() {
    let Some(server) = blocking(|| Kafka::newest().authorized().start().or_skip()).await else { return };
    let topic = fresh_topic(&server.internal_url(), 1, &[]).await;
    let (name, password) = Kafka::NOBODY;
    let transport = KafkaTransport::builder(server.url())
        .property("security.protocol", "SASL_PLAINTEXT")
        .property("sasl.mechanism", "PLAIN")
        .property("sasl.username", name)
        .property("sasl.password", password)
        .build()
        .unwrap();
    let all = found(&transport, &[&topic]).await;
    assert_eq!(all.len(), 1, "{all:?}");
    let refused = format!("delivery: topic {topic}: this user is not authorized to write");
    assert!(all[0].starts_with(&refused), "{all:?}");
    assert!(all[0].contains(&format!("--operation Write --topic {topic}")), "{all:?}");
    acl(&server, "--add", "Write", &topic).await;
    let is_hidden = |found: &[String]| found.iter().any(|it| it.starts_with("unseen: "));
    let all = until(&transport, &topic, "its settings are hidden", is_hidden).await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].contains(&format!("--operation DescribeConfigs --topic {topic}")), "{all:?}");
    acl(&server, "--add", "DescribeConfigs", &topic).await;
    until_none(&transport, &topic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_is_an_error_and_not_a_finding() {
    let transport = transport("127.0.0.1:1");
    let error = transport.diagnose(&[fresh_name()]).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Unavailable, "{error}");
    transport.close().await;
    let error = transport.diagnose(&[fresh_name()]).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Closed, "{error}");
}
