//! Headers that are about as large as a frame, and headers that the client can't read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable};
use outbox_contract::backend::{Outcome, Position, Stored, Transport};
use outbox_contract::{Message, Timestamp};
use outbox_servers::Proxy;

use crate::rabbitmq_only::support::{
    PATIENCE, declared, deliver, deliveries, eventually, finish, id_of, message, messages, publish, revoked,
    subscribe, topic, vhost,
};
use crate::rabbitmq_only::wiretap::Wiretap;

/// A message with so many bytes of headers, without their names.
fn with_headers(bytes: usize) -> Arc<Stored> {
    const VALUE: usize = 8_000;
    let mut message = Message::new(topic("orders"), "test.event").unwrap().with_key("a").unwrap();
    for at in 0..bytes.div_ceil(VALUE) {
        let value = "v".repeat(VALUE.min(bytes - at * VALUE));
        message = message.with_header(format!("header-{at}"), value).unwrap();
    }
    Arc::new(Stored::new(Position(1), Timestamp::now(), message))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_more_headers_than_a_small_frame_is_received() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&url).build().unwrap();
    let member = subscribe(&transport).await;
    let sent = [with_headers(40_000), message(&topic("orders"), "b", 2)];
    deliver(&transport, &sent).await;
    finish(&*member, &sent).await;
}

/// Delivered once more, it has headers of the broker's besides: that it fits then too is seen to
/// before it is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_just_below_the_limit_of_headers_can_be_received_again() {
    let Some((_server, url)) = vhost() else { return };
    let proxy = Proxy::to(&url);
    let publishing = declared(&url).build().unwrap();
    publishing.check().await.unwrap();
    // From what certainly does not fit down to what does.
    let mut sent = None;
    for bytes in (100_000..=131_072).rev().step_by(50) {
        let largest = with_headers(bytes);
        let outcomes = publish(&publishing, &[Arc::clone(&largest)], PATIENCE).await;
        match &outcomes[0] {
            Some(Outcome::Delivered) => {
                sent = Some(largest);
                break;
            }
            Some(Outcome::Rejected(failure)) => {
                assert_eq!(failure.class, "headers-too-large");
                assert!(failure.message.contains("frame_max"), "{failure:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    let sent = sent.unwrap();
    let receiving = declared(&proxy.url(&url)).build().unwrap();
    let member = subscribe(&receiving).await;
    for _ in 0..2 {
        let came = deliveries(&*member).await;
        assert_eq!(id_of(&came[0]), sent.message.id);
        proxy.cut();
        assert_eq!(revoked(&*member).await, 1);
    }
    finish(&*member, &[sent]).await;
}

/// Publishes a message with a header whose name is not UTF-8, which the client library has no way
/// to read.
async fn publish_unreadable(url: &str) {
    let wiretap = Wiretap::of(url).replace(b"odd_name", b"odd\xe9name");
    let url = wiretap.url(url);
    let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let mut headers = FieldTable::default();
    headers.insert("odd_name".into(), AMQPValue::LongString("x".into()));
    let properties = lapin::BasicProperties::default().with_headers(headers);
    channel.confirm_select(lapin::options::ConfirmSelectOptions::default()).await.unwrap();
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let published = channel.basic_publish("outbox".into(), "orders".into(), options, b"x", properties);
    let confirmed = published.await.unwrap().await.unwrap();
    assert!(confirmed.is_ack(), "{confirmed:?}");
}

/// It can't be passed over, as its end is unknown; but it is named, and the broker is not asked for
/// it again and again without a pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_can_not_be_read_is_named_and_asked_for_less_and_less_often() {
    let Some((_server, url)) = vhost() else { return };
    let transport =
        declared(&url).pauses(Duration::from_millis(400), Duration::from_secs(60)).build().unwrap();
    let member = subscribe(&transport).await;
    let first = messages(&topic("orders"), &["a"]);
    deliver(&transport, &first).await;
    finish(&*member, &first).await;
    publish_unreadable(&url).await;

    assert_eq!(revoked(&*member).await, 1);
    let started = Instant::now();
    let said = eventually("it is named", async || member.next().await.err()).await;
    assert!(said.is_retryable(), "{said}");
    let words = said.to_string();
    assert!(words.contains("\"inventory:orders\"") && words.contains("can't read a message"), "{words}");
    // Half of each pause at least: 0.2, 0.4, 0.8, 1.6 and 3.2 seconds.
    for _ in 0..5 {
        revoked(&*member).await;
    }
    assert!(started.elapsed() >= Duration::from_secs(6), "{:?}", started.elapsed());
    member.close().await.unwrap();

    // Removed, as was said, everything goes on.
    let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel
        .queue_purge("inventory:orders".into(), lapin::options::QueuePurgeOptions::default())
        .await
        .unwrap();
    let member = subscribe(&transport).await;
    let next = messages(&topic("orders"), &["a"]);
    deliver(&transport, &next).await;
    finish(&*member, &next).await;
}

/// The broker moves it, which counts how often it was delivered; what is behind it goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_can_not_be_read_becomes_a_dead_letter_where_deliveries_have_a_limit() {
    let Some((_server, url)) = vhost() else { return };
    let pause = Duration::from_millis(100);
    let transport =
        declared(&url).dead_letters("dead").delivery_limit(3).pauses(pause, pause).build().unwrap();
    let member = subscribe(&transport).await;
    let first = messages(&topic("orders"), &["a"]);
    deliver(&transport, &first).await;
    finish(&*member, &first).await;
    publish_unreadable(&url).await;
    let waiting = async || {
        let connection =
            lapin::Connection::connect(&url, lapin::ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let options = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
        let queue = channel.queue_declare("dead".into(), options, FieldTable::default()).await.unwrap();
        (queue.message_count() == 1).then_some(())
    };
    let reading = async {
        loop {
            let _ = member.next().await;
        }
    };
    tokio::select! {
        () = eventually("it is a dead letter", waiting) => {}
        () = reading => {}
    }
    let next = messages(&topic("orders"), &["a"]);
    deliver(&transport, &next).await;
    finish(&*member, &next).await;
}
