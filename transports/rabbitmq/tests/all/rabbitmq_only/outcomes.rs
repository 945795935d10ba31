//! Outcomes of messages that the broker does not take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lapin::types::AMQPValue;
use outbox_contract::backend::{Outcome, Outcomes, PublishBatch, RelayId, Stored, Transport, Unavailable};
use outbox_contract::{Route, TransportErrorKind};
use outbox_servers::{OrSkip, RabbitMq, RabbitMqServer};
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};
use tokio::task::JoinHandle;

use crate::rabbitmq_only::support::{
    PATIENCE, class, consumer, declared, deliver, eventually, finish, finish_telling, ids, message, messages,
    publish, queue, subscribe, topic, vhost,
};

/// Every second message comes back; never is another one taken for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_comes_back_is_told_from_what_stays() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&url).build().unwrap();
    let (good, nowhere) = (topic("orders"), topic("nowhere"));
    for _ in 0..20 {
        let keys: Vec<String> = (0..100).map(|key| format!("key-{key}")).collect();
        let batch: Vec<_> = keys
            .iter()
            .enumerate()
            .map(|(at, key)| message(if at % 2 == 0 { &good } else { &nowhere }, key, 2))
            .collect();
        let outcomes = publish(&transport, &batch, PATIENCE).await;
        for (stored, outcome) in batch.iter().zip(&outcomes) {
            let expected = if stored.message.topic == good { "delivered" } else { "unroutable" };
            assert_eq!(class(outcome), expected, "{outcome:?}");
        }
    }
}

/// One event for two topics is two messages with one id, of which one may come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_comes_back_is_told_from_the_one_that_stays() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&url).build().unwrap();
    let (good, nowhere) = (topic("orders"), topic("nowhere"));
    for _ in 0..20 {
        let batch: Vec<_> = (0..50)
            .flat_map(|key| {
                let first = message(&good, &format!("key-{key}"), 2);
                let mut copy = (*message(&nowhere, &format!("key-{key}"), 2)).clone();
                copy.message.id = first.message.id;
                [first, Arc::new(copy)]
            })
            .collect();
        let outcomes = publish(&transport, &batch, PATIENCE).await;
        for (stored, outcome) in batch.iter().zip(&outcomes) {
            let expected = if stored.message.topic == good { "delivered" } else { "unroutable" };
            assert_eq!(class(outcome), expected, "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn a_full_queue_makes_its_topic_unavailable_and_no_other() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&url).max_waiting(5).consumer(topic("others"), consumer()).build().unwrap();
    let (orders, others) = (topic("orders"), topic("others"));
    let refused = eventually("the queue is full", async || {
        let outcomes = publish(&transport, &[message(&orders, "a", 2)], PATIENCE).await;
        (outcomes[0] != Some(Outcome::Delivered)).then(|| outcomes[0].clone())
    })
    .await;
    assert!(matches!(refused, Some(Outcome::Unavailable(Unavailable::Topic, _))), "{refused:?}");
    assert_eq!(class(&refused), "refused");
    let batch = [message(&orders, "a", 2), message(&orders, "a", 2), message(&others, "a", 2)];
    let outcomes = publish(&transport, &batch, PATIENCE).await;
    assert_eq!(outcomes.iter().map(class).collect::<Vec<_>>(), ["refused", "behind another", "delivered"]);
}

/// The broker does not say which message it finds too large: it is the one that was sent alone.
#[tokio::test]
async fn a_message_over_the_limit_of_the_broker_is_rejected_when_it_is_alone() {
    let limit = RabbitMq::newest().config("max_message_size = 100000");
    let Some(server) = limit.shared().or_skip() else { return };
    let transport = declared(&server.fresh_vhost()).build().unwrap();
    let orders = topic("orders");
    let (small, large, other) =
        (message(&orders, "a", 2), message(&orders, "b", 200_000), message(&orders, "c", 2));
    let behind = message(&orders, "b", 2);
    let batch = [small, Arc::clone(&large), behind, other];
    for _ in 0..3 {
        let outcomes = publish(&transport, &batch, PATIENCE).await;
        for (at, outcome) in outcomes.iter().enumerate() {
            assert!(!matches!(outcome, Some(Outcome::Rejected(_) | Outcome::Failed(_))), "{outcome:?}");
            assert!(
                at == 0 || at == 3 || *outcome != Some(Outcome::Delivered),
                "message {at} is not delivered"
            );
        }
    }
    let outcomes = publish(&transport, &[large, Arc::clone(&batch[2])], PATIENCE).await;
    assert!(matches!(outcomes[0], Some(Outcome::Rejected(_))), "{outcomes:?}");
    assert_eq!(outcomes[1], Some(Outcome::Blocked));
    let rest: Vec<_> = [0, 2, 3].map(|at| Arc::clone(&batch[at])).into();
    deliver(&transport, &rest).await;
}

/// Headers have to fit into one frame: a broker ends the whole connection over larger ones, with
/// all that is on its way.
#[tokio::test]
async fn headers_over_a_frame_are_rejected_before_they_are_sent_and_payloads_take_several() {
    let Some((_server, url)) = vhost() else { return };
    let url = format!("{url}?frame_max=8192");
    let transport = declared(&url).build().unwrap();
    let member = subscribe(&transport).await;
    let orders = topic("orders");
    let mut heavy = (*message(&orders, "a", 2)).clone();
    heavy.message = heavy.message.with_header("long", "x".repeat(8_192)).unwrap();
    let batch = [Arc::new(heavy), message(&orders, "a", 2), message(&orders, "b", 100_000)];
    let outcomes = publish(&transport, &batch, PATIENCE).await;
    assert!(
        matches!(&outcomes[0], Some(Outcome::Rejected(failure)) if failure.class == "headers-too-large"),
        "{outcomes:?}"
    );
    assert_eq!(outcomes[1..], [Some(Outcome::Blocked), Some(Outcome::Delivered)]);
    finish(&*member, &batch[2..]).await;
}

/// A batch that was given up leaves a channel behind; the broker closes it, and its number is used
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_were_given_up_take_no_channels_with_them() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&format!("{url}?channel_max=4")).connections(1).build().unwrap();
    let orders = topic("orders");
    deliver(&transport, &[message(&orders, "a", 2)]).await;
    for _ in 0..50 {
        let batch = messages(&orders, &["a", "b", "c"]);
        let outcomes = publish(&transport, &batch, Duration::from_micros(200)).await;
        assert!(!outcomes.iter().any(|it| matches!(it, Some(Outcome::Rejected(_) | Outcome::Failed(_)))));
        deliver(&transport, &batch).await;
    }
}

#[tokio::test]
async fn an_exchange_that_is_missing_makes_everything_unavailable() {
    let Some((_server, url)) = vhost() else { return };
    let builder = RabbitMqTransport::builder(url).topology(Topology::Trusted).exchange("nowhere");
    let transport = builder.build().unwrap();
    let error = transport.check().await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Missing, "{error}");
    for outcome in publish(&transport, &messages(&topic("orders"), &["a", "b"]), PATIENCE).await {
        assert!(matches!(outcome, Some(Outcome::Unavailable(Unavailable::Route, _))), "{outcome:?}");
        assert_eq!(class(&outcome), "missing");
    }
}

/// While memory or disk is short nothing is rejected and nothing failed; afterwards everything
/// arrives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alarm_makes_the_transport_unavailable_until_it_is_over() {
    let Some(server) = RabbitMq::newest().start().or_skip() else { return };
    let transport = declared(&server.url()).build().unwrap();
    let member = subscribe(&transport).await;
    let alarms: [(&[&str], &[&str]); 2] = [
        (
            &["set_vm_memory_high_watermark", "absolute", "1"],
            &["set_vm_memory_high_watermark", "absolute", "1GB"],
        ),
        (&["set_disk_free_limit", "1000000GB"], &["set_disk_free_limit", "50MB"]),
    ];
    for (short, enough) in alarms {
        let before = messages(&topic("orders"), &["a", "b"]);
        deliver(&transport, &before).await;
        ctl(&server, short).await;
        let mut sent = Vec::new();
        eventually("the broker is short of something", async || {
            let batch = messages(&topic("orders"), &["a", "b", "c"]);
            sent.extend(batch.iter().cloned());
            let outcomes = publish(&transport, &batch, Duration::from_secs(5)).await;
            assert!(
                !outcomes.iter().any(|it| matches!(it, Some(Outcome::Rejected(_) | Outcome::Failed(_)))),
                "{outcomes:?}"
            );
            outcomes.iter().all(is_blocked).then_some(())
        })
        .await;
        ctl(&server, enough).await;
        let after: Vec<Arc<Stored>> = messages(&topic("orders"), &["d", "e"]);
        deliver(&transport, &after).await;
        let came = finish(&*member, &[before, after].concat()).await;
        assert!(!came.is_empty());
    }
}

/// A batch that is being sent when an alarm begins goes through once that is over, and arrives once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_under_way_when_an_alarm_begins_is_waited_for() {
    let Some(server) = RabbitMq::newest().start().or_skip() else { return };
    let transport = declared(&server.url()).connections(1).build().unwrap();
    let member = subscribe(&transport).await;
    let keys: Vec<String> = (0..2_000).map(|n| format!("key-{n}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut sent = Vec::new();
    // An alarm may begin between two batches: then the next one is not sent at all.
    let held = eventually("an alarm begins during a batch", async || {
        ctl(&server, &["set_vm_memory_high_watermark", "absolute", "1"]).await;
        loop {
            let batch = messages(&topic("orders"), &keys);
            let outcomes = Outcomes::new(batch.len());
            let publishing = publishing(&transport, &batch, &outcomes);
            let told = async || (publishing.is_finished() || outcomes.stop_reason().is_some()).then_some(());
            eventually("it is over, or held", told).await;
            if outcomes.delivered().contains(&true) || outcomes.stop_reason().is_some() {
                sent.extend(batch);
            }
            let is_held = outcomes.stop_reason().is_some();
            if is_held || outcomes.delivered().contains(&false) {
                ctl(&server, &["set_vm_memory_high_watermark", "absolute", "1GB"]).await;
                return is_held.then_some((publishing, outcomes));
            }
        }
    })
    .await;
    let (publishing, outcomes) = held;
    publishing.await.unwrap();
    assert_eq!((outcomes.stop_reason(), outcomes.delivered().contains(&false)), (None, false));
    let came = AtomicUsize::new(0);
    finish_telling(&*member, &sent, |deliveries| _ = came.fetch_add(deliveries, Ordering::Relaxed)).await;
    assert_eq!(came.into_inner(), sent.len(), "nothing twice");
}

fn publishing(
    transport: &RabbitMqTransport,
    messages: &[Arc<Stored>],
    outcomes: &Outcomes,
) -> JoinHandle<()> {
    let (transport, outcomes) = (transport.clone(), outcomes.clone());
    let (relay, deadline) = (RelayId::new(), Duration::from_secs(30));
    let batch = PublishBatch::new(Route::default(), relay, "/test".into(), messages.to_vec(), deadline);
    tokio::spawn(async move { transport.publish(batch, &outcomes).await })
}

fn is_blocked(outcome: &Option<Outcome>) -> bool {
    matches!(outcome, Some(Outcome::Unavailable(Unavailable::Route, failure)) if failure.class == "blocked")
}

async fn ctl(server: &RabbitMqServer, args: &[&str]) {
    let (server, args) = (server.clone(), args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
    let run = move || server.ctl(&args.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(run).await.unwrap();
}

/// A message goes to the queues of all consumers; one that reaches some of them was delivered to
/// those that are bound.
#[tokio::test]
async fn a_queue_of_another_program_gets_messages_too() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&url).build().unwrap();
    transport.check().await.unwrap();
    queue(&url, "of-another", "audit", &[("x-queue-type", AMQPValue::LongString("quorum".into()))]).await;
    let sent = messages(&topic("audit"), &["a", "b"]);
    deliver(&transport, &sent).await;
    assert_eq!(ids(&sent).len(), 2);
}
