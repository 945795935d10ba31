//! The order in which a member lets go of things, seen from the wire.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use lapin::ConnectionProperties;
use lapin::options::QueueDeleteOptions;
use outbox_servers::{OrSkip, RabbitMq};

use super::*;
use crate::builder::RabbitMqTransportBuilder;
use crate::config::Topology;

#[path = "../tests/all/rabbitmq_only/wiretap.rs"]
mod wiretap;

use wiretap::Wiretap;

fn subscription() -> Subscription {
    Subscription::new("inventory", ["orders"]).unwrap()
}

/// The broker would give their newer messages to the next member first. It has all the time it
/// wants for that: the task of the member waits for its state, and has a runtime to itself, so that
/// the library is not held up by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_connection_is_cut_before_the_queues_that_are_left_are_let_go() {
    const QUEUES: u32 = 4;
    let Some(server) = RabbitMq::newest().shared().or_skip() else { return };
    let url = server.fresh_vhost();
    let wiretap = Wiretap::of(&url);
    let config = RabbitMqTransportBuilder::new(wiretap.url(&url)).topology(Topology::Declared);
    let config = Arc::new(config.partitions(QUEUES).config().unwrap());
    let (close, closed) = watch::channel(false);
    let (shared, task, _leave) =
        join(config, subscription(), Window::new(&subscription()).unwrap(), closed).await.unwrap();
    let alone = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let working = std::thread::spawn(move || alone.block_on(task));

    let connection = lapin::Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let (keep, kept) = oneshot::channel();
    let watching = tokio::task::spawn_blocking(move || {
        let _state = shared.state();
        keep.send(()).unwrap();
        wiretap.wait_until_over(1);
        assert_eq!((wiretap.consumed(), wiretap.cancelled()), (QUEUES as usize, 0));
    });
    kept.await.unwrap();
    channel.queue_delete("inventory:orders.2".into(), QueueDeleteOptions::default()).await.unwrap();
    let watched = watching.await;
    close.send_replace(true);
    tokio::task::spawn_blocking(|| working.join()).await.unwrap().unwrap();
    watched.unwrap();
}
