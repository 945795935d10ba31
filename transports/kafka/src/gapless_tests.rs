//! Messages that a producer keeps back once something has failed, on librdkafka's mock of a
//! cluster.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Position, Stored};
use outbox_contract::{Message, Timestamp, Topic};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Code};
use tokio::time::timeout;

use crate::flight::{Flight, Heard};
use crate::gapless::{Gapless, Sent};
use crate::record::Record;
use crate::transport::KafkaTransport;

/// Long: a slow machine is no failure.
const PATIENCE: Duration = Duration::from_secs(120);

struct Subject {
    cluster: MockCluster<'static, DefaultProducerContext>,
    producer: Gapless,
    topic: Topic,
}

impl Subject {
    /// A producer whose first message was acknowledged.
    async fn new() -> Self {
        let cluster = MockCluster::new(1).unwrap();
        let topic = Topic::new("orders").unwrap();
        cluster.create_topic(topic.as_str(), 1, 1).unwrap();
        let producer =
            Gapless::new(&KafkaTransport::builder(cluster.bootstrap_servers()).config, 1_000_000, true)
                .unwrap();
        let subject = Self { cluster, producer, topic };
        assert_eq!(subject.send(|| {}).await, Heard::Acknowledged);
        subject
    }

    /// Returns what is heard of a message, something being done once it was handed over.
    async fn send(&self, meanwhile: impl FnOnce()) -> Heard {
        let (flight, sent) = self.begin(1);
        meanwhile();
        timeout(PATIENCE, sent.done()).await.unwrap();
        flight.all()[0].1
    }

    /// Sends so many messages together.
    fn begin(&self, messages: usize) -> (Arc<Flight>, Sent<'_>) {
        let message = Message::new(self.topic.clone(), "test").unwrap().with_key("a").unwrap();
        let stored = Arc::new(Stored::new(Position(1), Timestamp::now(), message));
        let flight = Flight::new((self.topic.clone(), 0), vec![0; messages]);
        let record = Record::new(stored, "/test".into(), 0);
        let sent = self.producer.send(&vec![&record; messages], &flight);
        (flight, sent)
    }

    /// The client would go on, and still nothing is handed over.
    async fn takes_nothing_more(&self) {
        assert!(
            self.producer.client().fatal_error().is_none(),
            "the client itself has ended: this shows nothing"
        );
        assert!(self.producer.is_broken());
        assert_eq!(self.send(|| {}).await, Heard::NotSent);
    }
}

/// The broker says that it had such a message long before: it is unknown whether it has this one.
#[tokio::test]
async fn behind_a_message_without_an_offset_nothing_is_handed_over() {
    let subject = Subject::new().await;
    subject.cluster.request_errors(Api::Produce, &[Code::RD_KAFKA_RESP_ERR_DUPLICATE_SEQUENCE_NUMBER]);
    assert_eq!(subject.send(|| {}).await, Heard::WithoutOffset);
    subject.takes_nothing_more().await;
}

#[tokio::test]
async fn behind_a_message_that_was_given_up_nothing_is_handed_over() {
    let subject = Subject::new().await;
    subject.cluster.broker_down(-1).unwrap();
    let heard = subject.send(|| subject.producer.purge()).await;
    assert!(matches!(heard, Heard::Failed(_)), "{heard:?}");
    subject.cluster.broker_up(-1).unwrap();
    subject.takes_nothing_more().await;
}

#[tokio::test]
async fn what_comes_while_the_client_is_full_is_handed_over_when_that_is_reported() {
    let subject = Subject::new().await;
    subject.cluster.broker_down(-1).unwrap();
    let (first, first_sent) = subject.begin(5);
    let (second, second_sent) = subject.begin(2);
    assert!(first.all().iter().all(|(_, heard)| *heard == Heard::Nothing));
    assert!(second.all().iter().all(|(_, heard)| *heard == Heard::NotSent));
    subject.cluster.broker_up(-1).unwrap();
    timeout(PATIENCE, second_sent.done()).await.unwrap();
    assert!(first.is_delivered() && second.is_delivered());
    drop(first_sent);
}

#[tokio::test]
async fn what_waits_for_its_turn_when_the_producer_is_closed_is_never_handed_over() {
    let subject = Subject::new().await;
    subject.cluster.broker_down(-1).unwrap();
    let (first, first_sent) = subject.begin(5);
    let (second, second_sent) = subject.begin(2);
    subject.producer.close();
    timeout(PATIENCE, second_sent.done()).await.unwrap();
    assert!(!first.is_done());
    subject.cluster.broker_up(-1).unwrap();
    timeout(PATIENCE, first_sent.done()).await.unwrap();
    assert!(second.all().iter().all(|(_, heard)| *heard == Heard::NotSent));
}
