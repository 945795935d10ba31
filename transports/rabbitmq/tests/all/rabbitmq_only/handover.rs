//! A member never cancels a consumer: the broker would give the next member the newer messages
//! first.

use std::time::Duration;

use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use outbox_contract::backend::Transport;
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};

use crate::rabbitmq_only::support::{subscription, vhost};
use crate::rabbitmq_only::wiretap::Wiretap;

/// Many: each that is given up takes a moment, in which others could be cancelled.
const QUEUES: u32 = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_member_that_does_not_get_the_last_queue_cancels_no_other() {
    let Some((_server, url)) = vhost() else { return };
    let (_connection, channel) = queues(&url).await;
    // It is somebody else's alone.
    let last = name(QUEUES - 1);
    let alone = BasicConsumeOptions { exclusive: true, ..BasicConsumeOptions::default() };
    let taken = channel.basic_consume(last.clone().into(), "".into(), alone, FieldTable::default());
    let _taken = taken.await.unwrap();

    let wiretap = Wiretap::of(&url);
    let transport = RabbitMqTransport::builder(wiretap.url(&url)).topology(Topology::Trusted);
    let transport = transport.partitions(QUEUES).build().unwrap();
    for round in 1..=10 {
        let member = transport.subscribe(subscription()).await.unwrap();
        let problems = member.problems();
        assert!(problems.len() == 1 && problems[0].error.contains(&last), "{problems:?}");
        drop(member);
        wiretap.wait_until_over(round);
        assert_eq!(wiretap.consumed(), round * QUEUES as usize);
        assert_eq!(wiretap.cancelled(), 0, "in round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_member_that_hears_nothing_of_the_first_queue_cancels_no_other() {
    let Some((_server, url)) = vhost() else { return };
    drop(queues(&url).await);
    for _ in 0..3 {
        let wiretap = Wiretap::of(&url).mute(&name(0));
        let transport = RabbitMqTransport::builder(wiretap.url(&url)).topology(Topology::Trusted);
        let transport = transport.partitions(QUEUES).timeout(Duration::from_secs(2)).build().unwrap();
        let error = transport.subscribe(subscription()).await.err().unwrap();
        assert!(error.to_string().contains(&name(0)), "{error}");
        wiretap.wait_until_over(1);
        assert_eq!(wiretap.cancelled(), 0, "of {}", wiretap.consumed());
    }
}

fn name(queue: u32) -> String {
    format!("inventory:orders.{queue}")
}

async fn queues(url: &str) -> (lapin::Connection, lapin::Channel) {
    let connection = lapin::Connection::connect(url, lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    for queue in 0..QUEUES {
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(name(queue).into(), durable, FieldTable::default()).await.unwrap();
    }
    (connection, channel)
}
