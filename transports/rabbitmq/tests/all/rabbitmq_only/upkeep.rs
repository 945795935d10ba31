//! Somebody deletes what the transport declared, while a relay publishes and a member consumes: it
//! is there again, and messages flow.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use outbox_contract::Consumer;
use outbox_contract::backend::{Deliveries, Outcome, Transport};
use outbox_servers::RabbitMqServer;
use outbox_transport_rabbitmq::{RabbitMqTransport, RabbitMqTransportBuilder, Topology};

use crate::rabbitmq_only::support::{
    PATIENCE, declared, deliveries, eventually, id_of, message, publish, subscribe, topic, vhost, vhost_of,
};

#[derive(Clone, Copy, Debug)]
enum Part {
    Exchange,
    Queue,
    Binding,
    DeadExchange,
    DeadQueue,
    DeadBinding,
}

const PARTS: [Part; 6] =
    [Part::Exchange, Part::Queue, Part::Binding, Part::DeadExchange, Part::DeadQueue, Part::DeadBinding];

fn with_dead_letters(builder: RabbitMqTransportBuilder) -> RabbitMqTransportBuilder {
    builder.dead_letters("dead").delivery_limit(1_000)
}

async fn delete(url: &str, part: Part) {
    let connection = lapin::Connection::connect(url, lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let (exchange, queue) = (ExchangeDeleteOptions::default(), QueueDeleteOptions::default());
    let none = FieldTable::default();
    match part {
        Part::Exchange => channel.exchange_delete("outbox".into(), exchange).await.unwrap(),
        Part::DeadExchange => channel.exchange_delete("dead".into(), exchange).await.unwrap(),
        Part::Queue => _ = channel.queue_delete("inventory:orders".into(), queue).await.unwrap(),
        Part::DeadQueue => _ = channel.queue_delete("dead".into(), queue).await.unwrap(),
        Part::Binding => channel
            .queue_unbind("inventory:orders".into(), "outbox".into(), "orders".into(), none)
            .await
            .unwrap(),
        Part::DeadBinding => {
            channel.queue_unbind("dead".into(), "dead".into(), "".into(), none).await.unwrap();
        }
    }
    connection.close(200, "OK".into()).await.unwrap();
}

/// Bindings: nothing is bound that is not there.
async fn topology(server: &RabbitMqServer, url: &str) -> String {
    let (server, vhost) = (server.clone(), vhost_of(url).to_owned());
    let ask = move || {
        let columns = ["source_name", "destination_name", "routing_key"];
        let bindings = server.ctl(&[&["list_bindings", "-p", &vhost][..], &columns[..]].concat());
        let mut lines: Vec<_> = bindings.lines().map(str::trim).collect();
        lines.sort_unstable();
        lines.join("\n")
    };
    tokio::task::spawn_blocking(ask).await.unwrap()
}

/// Publishes one message until it is delivered, as a relay does, and receives until it comes.
async fn flows(transport: &RabbitMqTransport, member: &dyn Deliveries) {
    let sent = message(&topic("orders"), "a", 2);
    let publishing = async {
        eventually("a message is delivered", async || {
            let outcomes = publish(transport, &[Arc::clone(&sent)], Duration::from_secs(5)).await;
            (outcomes[0] == Some(Outcome::Delivered)).then_some(())
        })
        .await;
    };
    let receiving = async {
        loop {
            let deliveries = deliveries(member).await;
            let is_there = deliveries.iter().any(|delivery| id_of(delivery) == sent.message.id);
            let tags: Vec<_> = deliveries.into_iter().map(|delivery| delivery.tag).collect();
            let _ = member.acknowledge(&tags).await;
            if is_there {
                return;
            }
        }
    };
    tokio::join!(publishing, receiving);
}

/// Deletes each part in turn, of what this transport publishes to.
async fn story(server: &RabbitMqServer, url: &str, publisher: &RabbitMqTransport) {
    let owner = with_dead_letters(declared(url)).build().unwrap();
    let member = subscribe(&owner).await;
    flows(publisher, &*member).await;
    let whole = topology(server, url).await;
    assert!(whole.lines().any(|line| line.starts_with("dead\tdead")), "{whole}");
    for part in PARTS {
        delete(url, part).await;
        let is_gone = topology(server, url).await != whole;
        println!("{part:?}: {}", if is_gone { "gone" } else { "made again before anybody looked" });
        let (start, restored) = (std::time::Instant::now(), format!("{part:?} is there again"));
        tokio::join!(
            flows(publisher, &*member),
            eventually(&restored, async || (topology(server, url).await == whole).then_some(())),
        );
        println!("{part:?}: there again after {:?}", start.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_deleted_is_declared_again() {
    let Some((server, url)) = vhost() else { return };
    let publisher = with_dead_letters(declared(&url)).build().unwrap();
    story(&server, &url, &publisher).await;
}

/// The relay knows no consumer: the members make their queues and bindings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_look_after_what_the_relay_does_not_know() {
    let Some((server, url)) = vhost() else { return };
    let builder = RabbitMqTransport::builder(&url).topology(Topology::Declared);
    story(&server, &url, &builder.build().unwrap()).await;
}

/// Nothing comes back while another queue gets the message: the relay looks by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_of_a_consumer_that_is_away_is_declared_again() {
    let Some((server, url)) = vhost() else { return };
    let living = Consumer::new("billing").unwrap();
    let builder = declared(&url).consumer(topic("orders"), living);
    let publisher = builder.connections(1).build().unwrap();
    publisher.check().await.unwrap();
    let whole = topology(&server, &url).await;
    delete(&url, Part::Queue).await;
    eventually("the queue is there again", async || {
        let outcomes = publish(&publisher, &[message(&topic("orders"), "a", 2)], PATIENCE).await;
        assert_eq!(outcomes, [Some(Outcome::Delivered)]);
        (topology(&server, &url).await == whole).then_some(())
    })
    .await;
}

/// A broker that is asked whether it is there answers for what is made on the way.
#[tokio::test]
async fn a_check_makes_an_exchange_that_was_deleted() {
    let Some((_server, url)) = vhost() else { return };
    let publisher = declared(&url).connections(1).build().unwrap();
    publisher.check().await.unwrap();
    delete(&url, Part::Exchange).await;
    eventually("the exchange is there again", async || publisher.check().await.ok()).await;
}
