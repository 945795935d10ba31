//! Findings about the broker, each made to happen on a real one, and gone after its remedy.

use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties, ExchangeKind};
use outbox_contract::TransportErrorKind;
use outbox_contract::admin::Diagnosis;
use outbox_contract::backend::Transport;
use outbox_servers::{OrSkip, RabbitMq};
use outbox_transport_rabbitmq::{RabbitMqTransport, RabbitMqTransportBuilder, Topology};

use crate::rabbitmq_only::support::{
    consumer, declared, delete_queue, deliver, eventually, messages, publish, queue, subscribe, topic, vhost,
    vhost_of,
};

/// Returns the findings, each as its kind, its text and its remedy.
async fn found(transport: &RabbitMqTransport) -> Vec<String> {
    let found = transport.diagnose(&[topic("orders"), topic("bills")]).await.unwrap();
    found
        .into_iter()
        .map(|Diagnosis { kind, text, remedy, .. }| format!("{kind}: {text} / {remedy}"))
        .collect()
}

/// A transport to what somebody else makes, told of the consumer of `orders`.
fn checked(url: &str) -> RabbitMqTransportBuilder {
    RabbitMqTransport::builder(url).consumer(topic("orders"), consumer())
}

/// Makes the exchange, as somebody else would.
async fn exchange(url: &str, kind: ExchangeKind, durable: bool) {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let _ = channel.exchange_delete("outbox".into(), ExchangeDeleteOptions::default()).await;
    let options = ExchangeDeclareOptions { durable, ..ExchangeDeclareOptions::default() };
    channel.exchange_declare("outbox".into(), kind, options, FieldTable::default()).await.unwrap();
    connection.close(200, "OK".into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_with_its_defaults_has_no_finding_and_gets_no_message() {
    let Some((server, url)) = vhost() else { return };
    let transport = declared(&url).max_waiting(100).build().unwrap();
    transport.check().await.unwrap();
    assert_eq!(found(&transport).await, [""; 0]);
    // The same, as it is seen by who declares nothing.
    for topology in [Topology::Checked, Topology::Trusted] {
        let other = checked(&url).topology(topology).build().unwrap();
        assert_eq!(found(&other).await, [""; 0], "{topology:?}");
    }
    let waiting = server.ctl(&["list_queues", "-p", vhost_of(&url), "messages"]);
    assert!(waiting.split_whitespace().all(|count| count == "messages" || count == "0"), "{waiting}");
    // A batch finds nothing of the question on its channel.
    deliver(&transport, &messages(&topic("orders"), &["a", "b"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alarm_is_found_until_it_is_over() {
    let Some(server) = RabbitMq::newest().start().or_skip() else { return };
    let transport = || declared(&server.url()).build().unwrap();
    transport().check().await.unwrap();
    server.ctl(&["set_vm_memory_high_watermark", "absolute", "1MB"]);
    // Each time a connection of its own, as of a program that looks once.
    let all = eventually("the alarm is found", async || {
        let all = found(&transport()).await;
        (!all.is_empty()).then_some(all)
    })
    .await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].starts_with("delivery: a resource alarm (low on memory)"), "{all:?}");
    let blocked = transport();
    assert_eq!(found(&blocked).await, all);
    assert_eq!(found(&blocked).await, all, "its connection is blocked by now");
    // The alarm goes before the rights.
    server.ctl(&["add_user", "low", "secret"]);
    server.ctl(&["set_permissions", "-p", "/", "low", "^$", "^outbox$", ".*"]);
    let low = server.url().replace("guest:guest", "low:secret");
    let low = RabbitMqTransport::builder(low).topology(Topology::Trusted).build().unwrap();
    assert_eq!(found(&low).await, all);
    server.ctl(&["set_vm_memory_high_watermark", "absolute", "1GB"]);
    for transport in [blocked, low, transport()] {
        eventually("it is over", async || found(&transport).await.is_empty().then_some(())).await;
    }
}

#[tokio::test]
async fn an_exchange_of_another_kind_is_found() {
    let Some((_server, url)) = vhost() else { return };
    let transport = RabbitMqTransport::builder(&url).build().unwrap();
    let error = transport.diagnose(&[]).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Missing, "{error}");
    for (kind, text) in [
        (ExchangeKind::Fanout, "delivery: exchange \"outbox\" is a fanout exchange"),
        (ExchangeKind::Headers, "delivery: exchange \"outbox\" is a headers exchange"),
    ] {
        exchange(&url, kind, true).await;
        let all = found(&transport).await;
        assert!(all.len() == 1 && all[0].starts_with(text), "{all:?}");
    }
    exchange(&url, ExchangeKind::Fanout, false).await;
    let all = found(&transport).await;
    assert_eq!(all.len(), 2, "both are told: {all:?}");
    assert!(all[1].starts_with("durability: exchange \"outbox\" is not durable"), "{all:?}");
    for kind in [ExchangeKind::Topic, ExchangeKind::Direct] {
        exchange(&url, kind, true).await;
        assert_eq!(found(&transport).await, [""; 0]);
    }
}

#[tokio::test]
async fn queues_that_are_missing_or_lose_messages_are_found() {
    let Some((_server, url)) = vhost() else { return };
    exchange(&url, ExchangeKind::Direct, true).await;
    let transport = checked(&url).build().unwrap();
    let all = found(&transport).await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(
        all[0].starts_with("delivery: queue \"inventory:orders\": does not exist / create it"),
        "{all:?}"
    );

    let classic = [
        ("x-queue-type", AMQPValue::LongString("classic".into())),
        ("x-single-active-consumer", AMQPValue::Boolean(true)),
    ];
    queue(&url, "inventory:orders", "orders", &classic).await;
    let all = found(&transport).await;
    assert_eq!(all.len(), 1, "{all:?}");
    let text = "durability: queue \"inventory:orders\": can't be used: its x-queue-type is classic";
    assert!(all[0].starts_with(text) && all[0].contains("/ delete it when it is empty"), "{all:?}");

    delete_queue(&url, "inventory:orders").await;
    let arguments = [
        ("x-queue-type", AMQPValue::LongString("quorum".into())),
        ("x-single-active-consumer", AMQPValue::Boolean(true)),
        ("x-delivery-limit", AMQPValue::LongInt(-1)),
    ];
    queue(&url, "inventory:orders", "orders", &arguments).await;
    assert_eq!(found(&transport).await, [""; 0]);
}

#[tokio::test]
async fn a_full_queue_is_found_until_its_consumer_has_emptied_it() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&url).max_waiting(3).build().unwrap();
    let sent = messages(&topic("orders"), &["a", "b", "c"]);
    deliver(&transport, &sent).await;
    let all = eventually("it is full", async || {
        let all = found(&transport).await;
        (!all.is_empty()).then_some(all)
    })
    .await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].starts_with("delivery: topic orders has a full queue"), "{all:?}");
    assert!(all[0].ends_with("/ start its consumer, or raise max_waiting"), "{all:?}");
    let member = subscribe(&transport).await;
    crate::rabbitmq_only::support::finish(&*member, &sent).await;
    eventually("it is empty", async || found(&transport).await.is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_that_may_not_look_is_told_the_right_to_grant() {
    let Some((server, url)) = vhost() else { return };
    declared(&url).build().unwrap().check().await.unwrap();
    let (vhost, user) = (vhost_of(&url), format!("user_of_{}", vhost_of(&url)));
    server.ctl(&["add_user", &user, "s3cret"]);
    server.ctl(&["set_permissions", "-p", vhost, &user, "^$", "^outbox$", ".*"]);
    let of_user = url.replace("guest:guest", &format!("{user}:s3cret"));
    let transport = checked(&of_user).build().unwrap();
    let all = found(&transport).await;
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].starts_with("unseen: what exchange \"outbox\" is: telling it needs"), "{all:?}");
    assert!(
        all[1].starts_with("unseen: queue \"inventory:orders\": this user may not inspect it"),
        "{all:?}"
    );
    let trusting = checked(&of_user).topology(Topology::Trusted).build().unwrap();
    assert_eq!(found(&trusting).await, [""; 0], "it is not to look");
    server.ctl(&["set_permissions", "-p", vhost, &user, ".*", "^outbox$", ".*"]);
    assert_eq!(found(&transport).await, [""; 0]);
    let outcomes =
        publish(&transport, &messages(&topic("orders"), &["a"]), std::time::Duration::from_secs(60)).await;
    assert_eq!(outcomes, [Some(outbox_contract::backend::Outcome::Delivered)]);
}

#[tokio::test]
async fn a_closed_transport_finds_nothing_out() {
    let Some((_server, url)) = vhost() else { return };
    let transport = declared(&url).build().unwrap();
    transport.close().await;
    let error = transport.diagnose(&[topic("orders")]).await.unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Closed, "{error}");
}
