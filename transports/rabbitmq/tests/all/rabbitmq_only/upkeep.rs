//! Somebody deletes what the transport declared, while a relay publishes and a member consumes: it
//! is there again, and messages flow.

use std::sync::Arc;
use std::time::Duration;

use lapin::Confirmation;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use outbox_contract::Consumer;
use outbox_contract::backend::{Deliveries, Outcome, Transport};
use outbox_transport_rabbitmq::{RabbitMqTransport, RabbitMqTransportBuilder, Topology};

use crate::rabbitmq_only::support::{
    PATIENCE, declared, deliveries, eventually, id_of, message, publish, subscribe, topic, vhost,
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

/// Somebody beside the transport, over a connection of its own.
struct Person(lapin::Connection);

impl Person {
    async fn at(url: &str) -> Self {
        let connection = lapin::Connection::connect(url, lapin::ConnectionProperties::default());
        Self(connection.await.unwrap())
    }

    /// The broker ends a channel with each refusal.
    async fn channel(&self) -> lapin::Channel {
        self.0.create_channel().await.unwrap()
    }

    async fn delete(&self, part: Part) {
        let channel = self.channel().await;
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
    }

    /// Returns the number of messages that wait in a queue. None: it is not there.
    async fn waiting(&self, queue: &str) -> Option<u32> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let asked = self.channel().await.queue_declare(queue.into(), options, FieldTable::default()).await;
        asked.ok().map(|queue| queue.message_count())
    }

    /// Returns true if what is sent to the exchange of dead letters is kept in a queue.
    async fn keeps_dead_letters(&self) -> bool {
        let channel = self.channel().await;
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let properties = lapin::BasicProperties::default();
        // It comes back where nothing is bound, and is refused where there is no exchange.
        let Ok(sent) = channel.basic_publish("dead".into(), "".into(), options, b"x", properties).await
        else {
            return false;
        };
        matches!(sent.await, Ok(Confirmation::Ack(None)))
    }
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

/// Deletes each part in turn, of what this transport publishes to. What flows shows the rest.
async fn story(url: &str, publisher: &RabbitMqTransport) {
    let owner = with_dead_letters(declared(url)).build().unwrap();
    let member = subscribe(&owner).await;
    flows(publisher, &*member).await;
    let person = Person::at(url).await;
    assert!(person.keeps_dead_letters().await);
    for part in PARTS {
        person.delete(part).await;
        let restored = format!("dead letters are kept again, without {part:?}");
        let kept = eventually(&restored, async || person.keeps_dead_letters().await.then_some(()));
        tokio::join!(flows(publisher, &*member), kept);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_deleted_is_declared_again() {
    let Some((_server, url)) = vhost() else { return };
    let publisher = with_dead_letters(declared(&url)).build().unwrap();
    story(&url, &publisher).await;
}

/// The relay knows no consumer: the members make their queues and bindings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_look_after_what_the_relay_does_not_know() {
    let Some((_server, url)) = vhost() else { return };
    let builder = RabbitMqTransport::builder(&url).topology(Topology::Declared);
    story(&url, &builder.build().unwrap()).await;
}

/// Nothing comes back while another queue gets the message: the relay looks by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_of_a_consumer_that_is_away_is_declared_again() {
    let Some((_server, url)) = vhost() else { return };
    let living = Consumer::new("billing").unwrap();
    let builder = declared(&url).consumer(topic("orders"), living);
    let publisher = builder.connections(1).build().unwrap();
    publisher.check().await.unwrap();
    let person = Person::at(&url).await;
    assert_eq!(person.waiting("inventory:orders").await, Some(0));
    person.delete(Part::Queue).await;
    eventually("the queue is there again", async || {
        let outcomes = publish(&publisher, &[message(&topic("orders"), "a", 2)], PATIENCE).await;
        assert_eq!(outcomes, [Some(Outcome::Delivered)]);
        person.waiting("inventory:orders").await.filter(|waiting| *waiting > 0)
    })
    .await;
}

/// A broker that is asked whether it is there answers for what is made on the way.
#[tokio::test]
async fn a_check_makes_an_exchange_that_was_deleted() {
    let Some((_server, url)) = vhost() else { return };
    let publisher = declared(&url).connections(1).build().unwrap();
    publisher.check().await.unwrap();
    Person::at(&url).await.delete(Part::Exchange).await;
    eventually("the exchange is there again", async || publisher.check().await.ok()).await;
}
