//! Fidelity: received messages equal the published ones.

use std::sync::Arc;

use outbox_contract::backend::Stored;
use outbox_contract::{Message, Timestamp};

use super::TransportHarness;
use super::receiver::{Log, Receiver, received, subscription};
use super::sender::{SOURCE, Sender, message};

/// Every field of a message, its attributes, its headers and its trace context arrive unchanged.
pub async fn what_is_published_arrives_byte_for_byte<H: TransportHarness>(harness: &H) {
    let topic = harness.topic().await;
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let everything = Message::new(topic.clone(), "order.plac\u{e9}")
        .expect("a valid topic")
        .with_key("ключ 1/ü#?&=%")
        .and_then(|message| message.with_header("traceparent", trace))
        .and_then(|message| message.with_header("tracestate", "vendor=a:b,other=c"))
        .and_then(|message| message.with_header("tenant", "Ünïcode, ключ, 鍵, \"quoted\""))
        .and_then(|message| message.with_header("empty", ""))
        .and_then(|message| message.with_subject("заказ/1"))
        .and_then(|message| message.with_data_schema("https://schemas.example.com/order?v=7#x"))
        .and_then(|message| message.with_extension("tenantid", "Ünïcode, \"quoted\""))
        .expect("the headers of the suite are valid")
        .with_schema_version(7)
        .with_content_type("application/x-protobuf; charset=\"utf-8\"")
        .with_occurred_at(Timestamp::from_micros(1_234_567_890_123_456))
        .with_payload((0..=u8::MAX).collect::<Vec<u8>>());
    let without_key = Message::new(topic.clone(), "order.placed").expect("a valid topic").with_payload("{}");
    let without_key = without_key.with_subject("no key").expect("the subject of the suite is valid");
    let before_1970 = message(&topic, "old").with_occurred_at(Timestamp::from_micros(-1));
    arrive_unchanged(harness, vec![everything, without_key, before_1970]).await;
}

/// A tombstone arrives as one, and an empty payload as an empty payload.
pub async fn a_tombstone_is_told_from_an_empty_payload<H: TransportHarness>(harness: &H) {
    let topic = harness.topic().await;
    let messages = vec![
        message(&topic, "gone").with_payload("").with_content_type("application/x-protobuf"),
        message(&topic, "gone").into_tombstone(),
        message(&topic, "gone").with_payload("{}"),
    ];
    assert!(messages[1].is_tombstone() && !messages[0].is_tombstone());
    arrive_unchanged(harness, messages).await;
}

/// An empty payload and a large one arrive.
pub async fn an_empty_and_a_large_payload_arrive<H: TransportHarness>(harness: &H) {
    let topic = harness.topic().await;
    let large = harness.large();
    let bytes: Vec<u8> = (0..large).map(|at| u8::try_from(at % 251).unwrap_or_default()).collect();
    let messages = vec![
        message(&topic, "empty").with_payload(Vec::new()),
        message(&topic, "large").with_payload(bytes),
        message(&topic, "empty").with_payload(Vec::new()),
    ];
    arrive_unchanged(harness, messages).await;
}

/// A delivery carries `source` and `sequence`, so that a consumer without an inbox can drop
/// repeats.
pub async fn a_delivery_says_where_it_came_from<H: TransportHarness>(harness: &H) {
    let (topic, log) = (harness.topic().await, Log::default());
    let transport = harness.transport();
    let receiver = Receiver::join(&*transport, subscription("origin", &topic), &log).await;
    let sender = Sender::new(transport);
    let messages = sender.messages(&topic, &["a", "b"], 10);
    let sending = sender.start(&messages);
    let mut left = messages.len();
    while left > 0 {
        let deliveries = receiver.deliveries().await;
        for delivery in &deliveries {
            let stored = find(&messages, received(delivery));
            let origin = delivery.origin.as_ref().expect("a delivery of ours says where it came from");
            assert_eq!((&*origin.source, origin.sequence), (SOURCE, stored.position.0));
            left = left.saturating_sub(1);
        }
        receiver.acknowledge(&deliveries).await;
    }
    sending.finish().await;
}

async fn arrive_unchanged<H: TransportHarness>(harness: &H, messages: Vec<Message>) {
    let log = Log::default();
    let topic = messages[0].topic.clone();
    let transport = harness.transport();
    let receiver = Receiver::join(&*transport, subscription("reader", &topic), &log).await;
    let sender = Sender::new(Arc::clone(&transport));
    for message in &messages {
        transport.validate(message).expect("a message that every transport takes is valid");
    }
    let messages: Vec<_> = messages.into_iter().map(|message| sender.store(message)).collect();
    let sending = sender.start(&messages);
    let mut arrived = std::collections::BTreeSet::new();
    while arrived.len() < messages.len() {
        let deliveries = receiver.deliveries().await;
        for delivery in &deliveries {
            let came = received(delivery);
            let sent = &find(&messages, came).message;
            assert_eq!(came, sent, "what arrived is what was sent");
            arrived.insert(came.id);
        }
        receiver.acknowledge(&deliveries).await;
    }
    sending.finish().await;
}

fn find<'m>(messages: &'m [Arc<Stored>], came: &Message) -> &'m Arc<Stored> {
    let sent = messages.iter().find(|stored| stored.message.id == came.id);
    sent.unwrap_or_else(|| panic!("{came:?} arrived, which was never sent"))
}
