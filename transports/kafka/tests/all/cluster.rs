//! Three brokers of which two must have a message, brokers that let in only whom they know, and
//! networks that swallow what comes back.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::time::{Duration, Instant};

use crate::support::{
    PATIENCE, counts_nothing, deliver, first_of_key, fresh_name, leader, log, make_topic,
    make_topic_of_copies, numbered, publish, stored,
};
use outbox_contract::backend::{Outcome, Subscription, Transport, Unavailable};
use outbox_contract::{Failure, TransportErrorKind};
use outbox_servers::{Kafka, KafkaServer, OrSkip};
use outbox_transport_kafka::KafkaTransport;

/// For batches that must go through.
const LONG: Duration = Duration::from_secs(60);
/// For batches that can't.
const SHORT: Duration = Duration::from_secs(6);

/// Starting and ending processes blocks.
async fn blocking<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(what).await.unwrap()
}

/// A leader is killed while messages are under way; then another broker, so that too few are left;
/// then both come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_that_go_and_come_back_lose_and_reorder_nothing() {
    let Some(cluster) = blocking(|| Kafka::newest().start_cluster().or_skip()).await else { return };
    let (url, topic) = (cluster.url(), fresh_name());
    make_topic_of_copies(&url, &topic, 1, 3, &[]).await;
    let transport = KafkaTransport::builder(&url).build().unwrap();
    let messages = stored((0..900).map(|at| numbered(&topic, &format!("key-{}", at % 3), at)));
    deliver(&transport, &messages[..30], LONG).await;

    let first = usize::try_from(leader(&url, &topic).await.unwrap()).unwrap();
    let sending = {
        let (transport, messages) = (transport.clone(), messages.clone());
        tokio::spawn(async move {
            for batch in messages[30..600].chunks(30) {
                deliver(&transport, batch, LONG).await;
            }
        })
    };
    let killed = cluster.broker(first).clone();
    blocking(move || killed.kill()).await;
    tokio::time::timeout(3 * PATIENCE, sending).await.unwrap().unwrap();

    // Of the three one is left: it may not take anything.
    let second = cluster.broker((first + 1) % cluster.size()).clone();
    let going = second.clone();
    blocking(move || going.kill()).await;
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < PATIENCE, "a topic with too few replicas was never said to be away");
        let outcomes = publish(&transport, &messages[600..630], SHORT).await;
        assert!(outcomes.iter().all(counts_nothing), "{outcomes:?}");
        if let Some(Outcome::Unavailable(Unavailable::Topic, failure)) = &outcomes[0] {
            assert!(["not-enough-replicas", "no-leader"].contains(&&*failure.class), "{failure:?}");
            break;
        }
    }

    let back = cluster.broker(first).clone();
    blocking(move || {
        back.start_again();
        second.start_again();
    })
    .await;
    for batch in messages[600..].chunks(30) {
        deliver(&transport, batch, LONG).await;
    }
    let log = log(&url, &topic).await;
    for of in 0..3 {
        let sent: Vec<usize> = (of..900).step_by(3).collect();
        assert_eq!(first_of_key(&log, &format!("key-{of}")), sent);
    }
}

/// The broker has everything, and its answers are lost: it is sent again, and first deliveries keep
/// their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_swallowed_cost_repeats_and_nothing_else() {
    let Some(server) = blocking(|| Kafka::newest().proxied().start().or_skip()).await else { return };
    let topic = fresh_name();
    make_topic(&server.internal_url(), &topic, 1, &[]).await;
    let transport = KafkaTransport::builder(server.url()).build().unwrap();
    let messages = stored((0..60).map(|at| numbered(&topic, &format!("key-{}", at % 3), at)));
    deliver(&transport, &messages[..3], LONG).await;
    server.proxy().swallow_answers();
    let outcomes = publish(&transport, &messages[3..], SHORT).await;
    assert!(outcomes.iter().all(counts_nothing), "{outcomes:?}");
    server.proxy().pass();
    server.proxy().cut();
    deliver(&transport, &messages[3..], LONG).await;
    let log = log(&server.internal_url(), &topic).await;
    for of in 0..3 {
        let sent: Vec<usize> = (of..60).step_by(3).collect();
        assert_eq!(first_of_key(&log, &format!("key-{of}")), sent);
    }
}

fn of_user(server: &KafkaServer, (name, password): (&str, &str)) -> KafkaTransport {
    KafkaTransport::builder(server.url())
        .property("security.protocol", "SASL_PLAINTEXT")
        .property("sasl.mechanism", "PLAIN")
        .property("sasl.username", name)
        .property("sasl.password", password)
        .build()
        .unwrap()
}

/// Gives the user without rights a right to a topic.
async fn grant(server: &KafkaServer, operation: &'static str, topic: &str) {
    let (server, topic) = (server.clone(), topic.to_owned());
    blocking(move || {
        let user = format!("User:{}", Kafka::NOBODY.0);
        let brokers = server.internal_url();
        let what = ["--bootstrap-server", &brokers, "--add", "--allow-principal", &user];
        let which = ["--operation", operation, "--topic", &topic];
        server.tool("org.apache.kafka.tools.AclCommand", &[&what[..], &which[..]].concat()).unwrap()
    })
    .await;
}

/// Publishes until the first message is unavailable for a reason of this class; nothing else may
/// happen to it but not to be known.
async fn until_unavailable(
    transport: &KafkaTransport,
    topic: &outbox_contract::Topic,
    class: &str,
) -> Failure {
    let messages = stored((0..3).map(|at| numbered(topic, "a", at)));
    let started = Instant::now();
    loop {
        let outcomes = publish(transport, &messages, SHORT).await;
        assert!(outcomes.iter().all(counts_nothing), "{outcomes:?}");
        match &outcomes[0] {
            Some(Outcome::Unavailable(_, failure)) if failure.class == class => return failure.clone(),
            other => assert!(started.elapsed() < PATIENCE, "{class} was expected, not {other:?}"),
        }
    }
}

/// A user gets its rights one after the other; the same transport sees each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_user_may_not_do_is_unavailable_until_it_may() {
    let Some(server) = blocking(|| Kafka::newest().authorized().start().or_skip()).await else { return };
    let topic = fresh_name();
    make_topic(&server.internal_url(), &topic, 1, &[]).await;
    let transport = of_user(&server, Kafka::NOBODY);
    transport.check().await.unwrap();
    let failure = until_unavailable(&transport, &topic, "not-authorized").await;
    assert!(failure.message.contains(topic.as_str()) && failure.message.contains("grant"), "{failure:?}");
    let subscription = Subscription::new("reader", [topic.clone()]).unwrap();
    let error = transport.subscribe(subscription).await.err().unwrap();
    assert_eq!(error.kind(), TransportErrorKind::NotPermitted, "{error}");

    // It may look at the topic, and still write to nothing: now the cluster refuses it.
    grant(&server, "Describe", topic.as_str()).await;
    let started = Instant::now();
    loop {
        let failure = until_unavailable(&transport, &topic, "not-authorized").await;
        if failure.message.contains("grant Write on the topics") {
            break;
        }
        assert!(started.elapsed() < PATIENCE, "{failure:?}");
    }
    grant(&server, "Write", topic.as_str()).await;
    deliver(&transport, &stored((0..3).map(|at| numbered(&topic, "a", at))), LONG).await;
    assert_eq!(first_of_key(&log(&server.internal_url(), &topic).await, "a"), [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_are_said_and_not_shown() {
    let Some(server) = blocking(|| Kafka::newest().authorized().shared().or_skip()).await else { return };
    let topic = fresh_name();
    make_topic(&server.internal_url(), &topic, 1, &[]).await;
    let good = of_user(&server, Kafka::ADMIN);
    good.check().await.unwrap();
    deliver(&good, &stored([numbered(&topic, "a", 0)]), LONG).await;

    let wrong = of_user(&server, (Kafka::ADMIN.0, "not-the-secret"));
    let error = wrong.check().await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::NotPermitted, "{error}");
    let failure = until_unavailable(&wrong, &topic, "not-authorized").await;
    for said in [error.to_string(), failure.message.clone(), format!("{wrong:?}")] {
        assert!(!said.contains("not-the-secret"), "{said}");
    }
}
