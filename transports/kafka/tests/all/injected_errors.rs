//! Answers of brokers that are not well, one after the other: from librdkafka's own mock of a
//! cluster, which gives the errors that it is told to. It keeps no account of producers: like a
//! broker that has forgotten them, it takes any first number.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    PATIENCE, counts_nothing, deliver, first_of_key, fresh_name, log, numbered, publish, stored,
};
use outbox_contract::backend::{
    Deliveries, Outcome, Outcomes, PublishBatch, Received, RelayId, Stored, Subscription, Transport,
    Unavailable,
};
use outbox_contract::{Route, Topic};
use outbox_transport_kafka::KafkaTransport;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Code};

/// For batches that must go through.
const LONG: Duration = Duration::from_secs(60);
/// For batches that can't.
const SHORT: Duration = Duration::from_secs(6);
/// Number of messages of a batch that goes by another producer than small ones.
const LARGE: usize = 60;
/// More than are asked for in any test.
const ALWAYS: usize = 100_000;

/// A cluster of two brokers with a topic of one partition.
struct Mock {
    cluster: MockCluster<'static, DefaultProducerContext>,
    url: String,
    topic: Topic,
}

impl Mock {
    fn new() -> Self {
        let cluster = MockCluster::new(2).unwrap();
        let (url, topic) = (cluster.bootstrap_servers(), fresh_name());
        cluster.create_topic(topic.as_str(), 1, 2).unwrap();
        Self { cluster, url, topic }
    }

    /// A transport whose record batches have few messages, so that several of one batch are under
    /// way.
    fn transport(&self) -> KafkaTransport {
        let builder = KafkaTransport::builder(&self.url).property("batch.num.messages", "2");
        // The mock lets no member leave: the next one waits until it is missed, by default 45
        // seconds.
        builder.property("session.timeout.ms", "15000").build().unwrap()
    }

    /// A transport whose producers the broker knows, for small batches and for large ones: no
    /// message goes ahead of the others.
    async fn warm_transport(&self) -> KafkaTransport {
        let transport = self.transport();
        for size in [1, LARGE] {
            let warm = stored((0..size).map(|at| numbered(&self.topic, "warm", at)));
            deliver(&transport, &warm, LONG).await;
        }
        transport
    }

    /// Messages of three keys, in turn.
    fn messages(&self, count: usize) -> Vec<Arc<Stored>> {
        stored((0..count).map(|at| numbered(&self.topic, KEYS[at % 3], at)))
    }

    /// So many requests of a kind are answered like this.
    fn answers(&self, api: Api, times: usize, code: Code) {
        self.cluster.request_errors(api, &vec![code; times]);
    }

    async fn log(&self) -> Vec<(i32, String, String)> {
        log(&self.url, &self.topic).await
    }

    /// Asserts that the log of each key is the beginning of what was sent, in order; and at least
    /// what was reported as delivered.
    async fn is_a_beginning(&self, count: usize, outcomes: &[Option<Outcome>]) {
        let log = self.log().await;
        for (of, key) in KEYS.iter().enumerate() {
            let sent: Vec<usize> = (of..count).step_by(3).collect();
            let there = first_of_key(&log, key);
            assert!(sent.starts_with(&there), "{key}: {there:?} is not how {sent:?} begins");
            let delivered = sent.iter().filter(|at| outcomes[**at] == Some(Outcome::Delivered)).count();
            assert!(delivered <= there.len(), "{key}: {delivered} were delivered, and {there:?} are there");
        }
    }

    /// Everything arrives, each key in order.
    async fn all_arrive(&self, transport: &KafkaTransport, messages: &[Arc<Stored>]) {
        deliver(transport, messages, LONG).await;
        let log = self.log().await;
        for (of, key) in KEYS.iter().enumerate() {
            let sent: Vec<usize> = (of..messages.len()).step_by(3).collect();
            assert_eq!(first_of_key(&log, key), sent, "{key}");
        }
    }
}

const KEYS: [&str; 3] = ["a", "b", "c"];

/// The broker knows nothing of the producer, and would take the second batch after it refused the
/// first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_message_of_a_cold_partition_goes_alone() {
    for size in [30, LARGE] {
        let mock = Mock::new();
        let transport = mock.transport();
        let messages = stored((0..size).map(|at| numbered(&mock.topic, "a", at)));
        mock.answers(Api::Produce, 1, Code::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
        publish(&transport, &messages, LONG).await;
        let there = first_of_key(&mock.log().await, "a");
        assert!((0..size).collect::<Vec<_>>().starts_with(&there), "{there:?} is not in order");
        deliver(&transport, &messages, LONG).await;
        assert_eq!(first_of_key(&mock.log().await, "a"), (0..size).collect::<Vec<_>>());
    }
}

/// Small batches do not wait, so the two may go by a request each: then the end of the second is
/// unknown, and that round shows nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_with_others_is_sent_alone_before_it_is_rejected() {
    for _ in 0..10 {
        let mock = Mock::new();
        let transport = mock.warm_transport().await;
        let messages = mock.messages(2);
        mock.answers(Api::Produce, 1, Code::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
        let outcomes = publish(&transport, &messages, LONG).await;
        assert_eq!(outcomes[0], Some(Outcome::Delivered), "{outcomes:?}");
        assert!(transport.retired_producers() > 0, "a producer that failed is given up");
        mock.is_a_beginning(2, &outcomes).await;
        if outcomes[1] == Some(Outcome::Delivered) {
            return;
        }
        assert!(counts_nothing(&outcomes[1]), "{outcomes:?}");
        mock.all_arrive(&transport, &messages).await;
    }
    panic!("the second message was delivered in none of ten rounds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_refused_alone_is_rejected_and_its_followers_wait() {
    let mock = Mock::new();
    let transport = mock.transport();
    let messages = stored((0..9).map(|at| numbered(&mock.topic, "a", at)));
    // Once as the first of its partition, and once alone.
    mock.answers(Api::Produce, 2, Code::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE);
    let outcomes = publish(&transport, &messages, LONG).await;
    let Some(Outcome::Rejected(failure)) = &outcomes[0] else { panic!("{outcomes:?}") };
    assert_eq!(failure.class, "message-too-large");
    assert!(outcomes[1..].iter().all(|it| *it == Some(Outcome::Blocked)), "{outcomes:?}");
    assert!(mock.log().await.is_empty());
    deliver(&transport, &messages[1..], LONG).await;
    assert_eq!(first_of_key(&mock.log().await, "a"), (1..9).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_few_replicas_count_against_no_message() {
    let mock = Mock::new();
    let transport = mock.warm_transport().await;
    let messages = mock.messages(12);
    mock.answers(Api::Produce, ALWAYS, Code::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS);
    let outcomes = publish(&transport, &messages, SHORT).await;
    assert!(outcomes.iter().all(counts_nothing), "{outcomes:?}");
    mock.is_a_beginning(12, &outcomes).await;
    mock.cluster.clear_request_errors(Api::Produce);
    mock.all_arrive(&transport, &messages).await;
}

/// Everything is written, and the answers are lost: it is sent again, and first deliveries keep
/// their order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgements_that_are_swallowed_leave_messages_unknown() {
    let mock = Mock::new();
    let transport = mock.warm_transport().await;
    let messages = mock.messages(12);
    mock.cluster.broker_round_trip_time(-1, 10 * PATIENCE).unwrap();
    let outcomes = publish(&transport, &messages, SHORT).await;
    assert!(outcomes.iter().all(counts_nothing), "{outcomes:?}");
    mock.cluster.broker_round_trip_time(-1, Duration::ZERO).unwrap();
    // Answers that are late still stand in front of new ones.
    mock.cluster.broker_down(-1).unwrap();
    mock.cluster.broker_up(-1).unwrap();
    mock.all_arrive(&transport, &messages).await;
}

/// The batches of a key are small and large in turns, so they go by two producers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_moves_under_way_loses_and_reorders_nothing() {
    let mock = Mock::new();
    mock.cluster.partition_leader(mock.topic.as_str(), 0, Some(1)).unwrap();
    let transport = mock.warm_transport().await;
    let messages = mock.messages(600);
    let (sending, all) = (transport.clone(), messages.clone());
    let sending = tokio::spawn(async move {
        for part in all.chunks(LARGE + 12) {
            let (large, small) = part.split_at(part.len().min(LARGE));
            deliver(&sending, large, LONG).await;
            deliver(&sending, small, LONG).await;
        }
    });
    mock.cluster.partition_leader(mock.topic.as_str(), 0, Some(2)).unwrap();
    tokio::time::timeout(PATIENCE, sending).await.unwrap().unwrap();
    let log = mock.log().await;
    for (of, key) in KEYS.iter().enumerate() {
        assert_eq!(first_of_key(&log, key), (of..600).step_by(3).collect::<Vec<_>>(), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_can_not_be_seen_is_unavailable_with_the_remedy() {
    let cases = [
        (Code::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED, "not-authorized", "grant"),
        (Code::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART, "topic-missing", "create it"),
    ];
    for (code, class, remedy) in cases {
        let mock = Mock::new();
        let transport = mock.transport();
        mock.cluster.topic_error(mock.topic.as_str(), code).unwrap();
        let messages = mock.messages(4);
        let outcomes = publish(&transport, &messages, LONG).await;
        for outcome in &outcomes[..3] {
            let Some(Outcome::Unavailable(Unavailable::Topic, failure)) = outcome else {
                panic!("{code:?}: {outcomes:?}")
            };
            assert_eq!(failure.class, class);
            assert!(failure.message.contains(remedy), "{failure:?}");
        }
        assert_eq!(outcomes[3], Some(Outcome::Blocked));
        mock.cluster.topic_error(mock.topic.as_str(), Code::RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
        mock.all_arrive(&transport, &messages).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_that_is_withdrawn_makes_the_topic_unavailable() {
    let mock = Mock::new();
    let transport = mock.warm_transport().await;
    let messages = mock.messages(12);
    mock.answers(Api::Produce, ALWAYS, Code::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
    let outcomes = publish(&transport, &messages, LONG).await;
    assert!(outcomes.iter().all(counts_nothing), "{outcomes:?}");
    let Some(Outcome::Unavailable(Unavailable::Topic, failure)) = &outcomes[0] else {
        panic!("{outcomes:?}")
    };
    assert_eq!(failure.class, "not-authorized");
    mock.is_a_beginning(12, &outcomes).await;
    mock.cluster.clear_request_errors(Api::Produce);
    mock.all_arrive(&transport, &messages).await;
}

/// A user that may write to no topic at all gets no number for its producer: the client ends for
/// good, and another one takes its place when the grant is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_rights_in_the_cluster_makes_the_route_unavailable() {
    let mock = Mock::new();
    mock.answers(Api::InitProducerId, ALWAYS, Code::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED);
    let transport = mock.transport();
    let messages = mock.messages(6);
    for _ in 0..3 {
        let outcomes = publish(&transport, &messages, SHORT).await;
        assert!(outcomes.iter().all(counts_nothing), "{outcomes:?}");
        let Some(Outcome::Unavailable(Unavailable::Route, failure)) = &outcomes[0] else {
            panic!("{outcomes:?}")
        };
        assert_eq!(failure.class, "not-authorized", "{failure:?}");
    }
    mock.cluster.clear_request_errors(Api::InitProducerId);
    mock.all_arrive(&transport, &messages).await;
}

/// A batch that was given up while no broker could be reached is not started when one can: only
/// what is sent after that arrives, by the same producer or by another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_given_up_is_not_started_later() {
    for size in [4, LARGE] {
        let mock = Mock::new();
        let transport = mock.warm_transport().await;
        mock.cluster.broker_down(-1).unwrap();
        let given_up = stored((0..size).map(|at| numbered(&mock.topic, "given-up", at)));
        let outcomes = publish(&transport, &given_up, SHORT).await;
        assert!(matches!(outcomes[0], Some(Outcome::Unavailable(Unavailable::Route, _))), "{outcomes:?}");
        assert!(outcomes.iter().all(counts_nothing), "{outcomes:?}");
        mock.cluster.broker_up(-1).unwrap();
        // Into the same partition: it would stand in front of these, or soon behind them.
        let messages = mock.messages(6 + 2 * LARGE);
        deliver(&transport, &messages[..6], LONG).await;
        deliver(&transport, &messages[6..6 + LARGE], LONG).await;
        mock.all_arrive(&transport, &messages).await;
        assert_eq!(first_of_key(&mock.log().await, "given-up"), [0; 0], "{size}");
    }
}

async fn receive(deliveries: &dyn Deliveries, count: usize) -> Vec<outbox_contract::backend::Delivery> {
    let mut all = Vec::new();
    let receiving = async {
        while all.len() < count {
            if let Received::Deliveries(some) = deliveries.next().await.unwrap() {
                all.extend(some);
            }
        }
    };
    tokio::time::timeout(PATIENCE, receiving).await.unwrap();
    all
}

/// Two partitions, each led by a broker of its own, and keys of each. Both brokers know the
/// producer.
async fn two_partitions() -> (Mock, KafkaTransport, [Vec<String>; 2]) {
    let mut mock = Mock::new();
    mock.topic = fresh_name();
    mock.cluster.create_topic(mock.topic.as_str(), 2, 2).unwrap();
    for (partition, broker) in [(0, 1), (1, 2)] {
        mock.cluster.partition_leader(mock.topic.as_str(), partition, Some(broker)).unwrap();
    }
    let transport = mock.transport();
    let keys: Vec<String> = (0..16).map(|at| format!("key-{at}")).collect();
    deliver(&transport, &stored(keys.iter().map(|key| numbered(&mock.topic, key, 0))), LONG).await;
    let log = mock.log().await;
    let keys = [0, 1].map(|partition| {
        let of_it = log.iter().filter(|(at, _, _)| *at == partition).map(|(_, key, _)| key.clone());
        of_it.collect::<Vec<_>>()
    });
    assert!(keys.iter().all(|keys| keys.len() > 2), "{keys:?}");
    (mock, transport, keys)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_partition_confirmed_is_reported_while_another_is_silent() {
    let (mock, transport, [answering, silent]) = two_partitions().await;
    mock.cluster.broker_round_trip_time(2, 10 * PATIENCE).unwrap();
    let keys: Vec<&String> = answering.iter().chain(&silent).collect();
    let messages = stored(keys.iter().map(|key| numbered(&mock.topic, key, 1)));
    let outcomes = Outcomes::new(messages.len());
    let batch = PublishBatch::new(Route::default(), RelayId::new(), "/test".into(), messages, LONG);
    // Long before the transport gives up by itself.
    let published = tokio::time::timeout(LONG / 6, transport.publish(batch, &outcomes)).await;
    assert!(published.is_err(), "nothing came of the silent partition");
    let outcomes = outcomes.take();
    let (confirmed, open) = outcomes.split_at(answering.len());
    assert!(confirmed.iter().all(|it| *it == Some(Outcome::Delivered)), "{outcomes:?}");
    assert!(open.iter().all(Option::is_none), "{outcomes:?}");
}

/// Else each round would name one key of it, and the others would slow every batch that they are
/// in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_keys_of_a_partition_that_does_not_answer_are_named_at_once() {
    let (mock, transport, [_, silent]) = two_partitions().await;
    mock.cluster.broker_round_trip_time(2, 10 * PATIENCE).unwrap();
    let messages = stored(silent.iter().flat_map(|key| [1, 2].map(|at| numbered(&mock.topic, key, at))));
    // The first time all are under way. The next producer is not known there: it sends one message
    // ahead.
    for _ in 0..2 {
        let outcomes = publish(&transport, &messages, SHORT).await;
        for pair in outcomes.chunks(2) {
            assert!(counts_nothing(&pair[0]) && pair[0] != Some(Outcome::Blocked), "{outcomes:?}");
            assert_eq!(pair[1], Some(Outcome::Blocked), "{outcomes:?}");
        }
    }
}

/// A client goes on asking the broker that it used last: one of the two, at random.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_broker_that_is_silent_is_not_taken_for_all_of_them() {
    let mock = Mock::new();
    let transport = mock.transport();
    transport.check().await.unwrap();
    for silent in [1, 2] {
        mock.cluster.broker_round_trip_time(silent, 10 * PATIENCE).unwrap();
        transport.check().await.unwrap();
        mock.cluster.broker_round_trip_time(silent, Duration::ZERO).unwrap();
    }
    for silent in [1, 2] {
        mock.cluster.broker_round_trip_time(silent, 10 * PATIENCE).unwrap();
    }
    let error = transport.check().await.unwrap_err();
    assert!(error.to_string().contains("the broker does not answer"), "{error}");
}

/// Answers for others are no answer to those that are told nothing: a partition that hangs is given
/// up in its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_that_does_not_answer_is_given_up_while_others_go_on() {
    let (mock, transport, [answering, silent]) = two_partitions().await;
    mock.cluster.broker_round_trip_time(2, 10 * PATIENCE).unwrap();
    let messages = stored(silent.iter().map(|key| numbered(&mock.topic, key, 1)));
    let others = stored(answering.iter().map(|key| numbered(&mock.topic, key, 1)));
    let mut rounds = 0;
    let outcomes = {
        let others_go_on = async {
            loop {
                deliver(&transport, &others, LONG).await;
                rounds += 1;
            }
        };
        tokio::select! {
            outcomes = publish(&transport, &messages, SHORT) => outcomes,
            () = others_go_on => unreachable!("they go on for ever"),
        }
    };
    assert!(rounds > 10, "others went on {rounds} times");
    assert!(outcomes.iter().all(counts_nothing), "{outcomes:?}");
}

/// It takes twelve seconds, where what hangs is given up after four: each answer comes after half a
/// second, and no more than five requests, of two messages each, are on their way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_broker_is_waited_for_while_it_answers() {
    let mock = Mock::new();
    let transport = mock.warm_transport().await;
    mock.cluster.broker_round_trip_time(-1, Duration::from_millis(500)).unwrap();
    let (first, second) = (mock.messages(120), stored((0..120).map(|at| numbered(&mock.topic, "d", at))));
    let publish = async |messages: Vec<Arc<Stored>>| {
        let outcomes = Outcomes::new(messages.len());
        let batch = PublishBatch::new(Route::default(), RelayId::new(), "/test".into(), messages, SHORT);
        transport.publish(batch, &outcomes).await;
        outcomes.delivered().into_iter().filter(|delivered| *delivered).count()
    };
    let both = async { tokio::join!(publish(first), publish(second)) };
    assert_eq!(tokio::time::timeout(PATIENCE, both).await.unwrap(), (120, 120));
    assert_eq!(transport.retired_producers(), 0);
}

/// Each acknowledgment that no task waits for any longer would leave a thread behind.
#[test]
fn acknowledgements_during_an_outage_do_not_pile_up() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).max_blocking_threads(6).enable_all().build().unwrap();
    let mock = Mock::new();
    let (member, received, has_threads) = runtime.block_on(async {
        let transport = mock.transport();
        deliver(&transport, &mock.messages(12), LONG).await;
        let subscription = Subscription::new("reader", [mock.topic.clone()]).unwrap();
        let member = transport.subscribe(subscription).await.unwrap();
        let received = receive(&*member, 12).await;
        mock.cluster.broker_round_trip_time(-1, 10 * PATIENCE).unwrap();
        for delivery in &received {
            let tags = [delivery.tag.clone()];
            let acknowledged = tokio::time::timeout(Duration::from_millis(200), member.acknowledge(&tags));
            assert!(acknowledged.await.is_err(), "no broker answers");
        }
        let thread = tokio::task::spawn_blocking(|| ());
        let has_threads = tokio::time::timeout(Duration::from_secs(10), thread).await.is_ok();
        (member, received, has_threads)
    });
    mock.cluster.broker_round_trip_time(-1, Duration::ZERO).unwrap();
    mock.cluster.broker_down(-1).unwrap();
    mock.cluster.broker_up(-1).unwrap();
    let acknowledged = runtime.block_on(async {
        let tags = [received[0].tag.clone()];
        tokio::time::timeout(PATIENCE, member.acknowledge(&tags)).await
    });
    drop(member);
    runtime.shutdown_background();
    assert!(has_threads, "every thread waits for the broker");
    // The first may hear of the outage still.
    assert!(acknowledged.is_ok());
}

/// Deliveries that were finished while the broker took no offsets are committed when the member's
/// partitions move: the next one does not get them again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_finished_is_committed_before_a_partition_moves() {
    let mock = Mock::new();
    let transport = mock.transport();
    deliver(&transport, &mock.messages(6), LONG).await;
    let subscription = Subscription::new("reader", [mock.topic.clone()]).unwrap();
    let first = transport.subscribe(subscription.clone()).await.unwrap();
    let received = receive(&*first, 6).await;
    let tags: Vec<_> = received.iter().map(|delivery| delivery.tag.clone()).collect();

    // The commit of the acknowledgement meets this, and the member leaves before it is tried again.
    mock.answers(Api::OffsetCommit, 1, Code::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS);
    tokio::select! {
        biased;
        _ = first.acknowledge(&tags) => {}
        () = std::future::ready(()) => {}
    }
    tokio::time::timeout(PATIENCE, first.close()).await.unwrap().unwrap();

    let second = transport.subscribe(subscription).await.unwrap();
    deliver(&transport, &stored([numbered(&mock.topic, "a", 6)]), LONG).await;
    let next = receive(&*second, 1).await.remove(0);
    assert_eq!(next.message.unwrap().payload, "6");
    second.close().await.unwrap();
}
