//! A log that begins anew under the member that reads it.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use crate::support::{PATIENCE, delete_topic, deliver, fresh_name, make_topic, numbered, stored};
use outbox_contract::backend::{Deliveries, Received, Subscription, Tag, Transport};
use outbox_servers::{Kafka, OrSkip};
use outbox_transport_kafka::KafkaTransport;
use tokio::time::timeout;

/// Receives until the message with this number has come; all tags that came, in order.
async fn receive(member: &dyn Deliveries, last: usize) -> Vec<Tag> {
    let receiving = async {
        let mut tags = Vec::new();
        loop {
            match member.next().await {
                Ok(Received::Deliveries(deliveries)) => {
                    let is_last = deliveries.iter().any(|delivery| {
                        delivery.message.as_ref().unwrap().payload == last.to_string().as_bytes()
                    });
                    tags.extend(deliveries.into_iter().map(|delivery| delivery.tag));
                    if is_last {
                        return tags;
                    }
                }
                Ok(Received::Revoked(_)) => tags.clear(),
                Err(error) => assert!(error.is_retryable(), "{error}"),
                other => panic!("{other:?}"),
            }
        }
    };
    timeout(PATIENCE, receiving).await.unwrap_or_else(|_| panic!("message {last} did not come"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_made_anew_is_read_and_committed_from_its_beginning() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = fresh_name();
    make_topic(&server.url(), &topic, 1, &[]).await;
    let publish = async |numbers: std::ops::Range<usize>| {
        // Another one each time: it knows the topic as it is now.
        let transport = KafkaTransport::builder(server.url()).build().unwrap();
        deliver(&transport, &stored(numbers.map(|at| numbered(&topic, "a", at))), PATIENCE).await;
    };
    let subscription = || Subscription::new("reader", [topic.clone()]).unwrap();
    let transport = KafkaTransport::builder(server.url()).build().unwrap();
    let member = transport.subscribe(subscription()).await.unwrap();
    publish(0..100).await;
    let old = receive(&*member, 99).await;
    assert_eq!(old.len(), 100);

    delete_topic(&server.url(), &topic).await;
    make_topic(&server.url(), &topic, 1, &[]).await;
    publish(100..120).await;
    let new = receive(&*member, 119).await;
    assert_eq!(new.iter().map(|tag| tag.number).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    assert!(new[0].incarnation > old[0].incarnation);
    // No member has what was in hand any more.
    member.acknowledge(&old).await.unwrap();
    member.acknowledge(&new).await.unwrap();
    member.close().await.unwrap();

    publish(120..121).await;
    let next = KafkaTransport::builder(server.url()).build().unwrap();
    let next = next.subscribe(subscription()).await.unwrap();
    assert_eq!(receive(&*next, 120).await.len(), 1, "and nothing again");
}
