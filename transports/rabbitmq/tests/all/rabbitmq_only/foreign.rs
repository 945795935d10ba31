//! Messages of other programs: read as far as it goes, and noted where it is not as it was sent.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use outbox_contract::backend::ADAPTED;
use outbox_contract::{Key, Message};

use crate::rabbitmq_only::support::{declared, deliveries, subscribe, vhost};

fn text(bytes: impl Into<Vec<u8>>) -> AMQPValue {
    AMQPValue::LongString(bytes.into().into())
}

/// Publishes an event for each of these lists of headers, and receives them as messages.
async fn received(all: &[&[(&str, AMQPValue)]]) -> Option<Vec<Message>> {
    let (_server, url) = vhost()?;
    let transport = declared(&url).build().unwrap();
    let member = subscribe(&transport).await;
    let connection = lapin::Connection::connect(&url, lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    for (at, more) in all.iter().enumerate() {
        let mut headers = FieldTable::default();
        let attributes = [("specversion", "1.0"), ("source", "/legacy"), ("type", "x")];
        for (name, value) in attributes {
            headers.insert(format!("cloudEvents:{name}").into(), text(value));
        }
        headers.insert("cloudEvents:id".into(), AMQPValue::LongLongInt(at as i64));
        more.iter().for_each(|(name, value)| _ = headers.insert((*name).into(), value.clone()));
        let properties = BasicProperties::default().with_headers(headers).with_content_type("".into());
        let options = lapin::options::BasicPublishOptions::default();
        let published = channel.basic_publish("outbox".into(), "orders".into(), options, b"{}", properties);
        published.await.unwrap().await.unwrap();
    }
    let mut messages = Vec::new();
    while messages.len() < all.len() {
        messages.extend(deliveries(&*member).await.into_iter().map(|came| came.message.unwrap()));
    }
    Some(messages)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_program_writes_is_read_as_far_as_it_goes() {
    let mut nested = FieldTable::default();
    nested.insert("a".into(), AMQPValue::LongInt(1));
    let headers = [
        ("bytes", AMQPValue::ByteArray(vec![0xff, 7].into())),
        ("lines", text("two\nlines")),
        ("long", text([b'x'; 10_000])),
        ("table", AMQPValue::FieldTable(nested)),
        ("cloudEvents:schemaversion", text("1.2.0")),
        ("cloudEvents:subject", text([b's'; 300])),
        ("tenant", text("acme")),
    ];
    let Some(messages) = received(&[&headers]).await else { return };
    let [message] = &messages[..] else { panic!("{messages:?}") };
    let header = |name| message.headers.get(name).unwrap();
    assert_eq!((header("bytes"), header("lines"), header("tenant")), ("\\xff\\x07", "two\\nlines", "acme"));
    let own = message.headers.iter().filter(|(name, _)| !name.starts_with("ce-"));
    assert_eq!((header("long").len(), own.count()), (8_192, 6));
    assert_eq!((message.schema_version, &*message.content_type), (1, "application/octet-stream"));
    assert_eq!(message.key, Some(Key::of_bytes(&[b's'; 300])));
    let note = header(ADAPTED);
    assert!(["bytes", "lines", "long", "1.2.0"].iter().all(|words| note.contains(words)), "{note}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_whatever_bytes_it_is() {
    let subject = ("cloudEvents:subject", text("line-1"));
    let key = |value| [("cloudEvents:partitionkey", value), subject.clone()];
    let all = [
        key(AMQPValue::ByteArray(vec![0, 0, 0, 7].into())),
        key(text([0, 0, 0, 7])),
        key(AMQPValue::ByteArray(vec![0xff].into())),
        key(text("a\nb")),
        key(AMQPValue::LongLongInt(7)),
    ];
    let Some(messages) = received(&all.each_ref().map(|headers| &headers[..])).await else { return };
    let keys: Vec<String> = messages.into_iter().map(|message| message.key.unwrap().to_string()).collect();
    assert_eq!(keys, ["0x00000007", "0x00000007", "0xff", "0x610a62", "7"]);
}
