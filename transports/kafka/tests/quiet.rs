//! Log where nothing is wrong: no warning. A program of its own, as it listens to all of its
//! process.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

#[path = "all/support/mod.rs"]
mod support;

use std::sync::{Arc, Mutex};

use outbox_contract::backend::{Received, Subscription, Transport};
use outbox_servers::{Kafka, KafkaServer, OrSkip};
use outbox_transport_kafka::KafkaTransport;
use support::{PATIENCE, deliver, fresh_topic, numbered, stored};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Keeps the text of each event of a level, or worse.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<Vec<(Level, String)>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl Subscriber for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let ours = ["librdkafka", "outbox"].iter().any(|of| event.metadata().target().starts_with(of));
        if ours {
            self.0.lock().unwrap().push((*event.metadata().level(), text.0));
        }
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Publishes to a topic of its own, receives and acknowledges that.
async fn run(server: &KafkaServer) {
    let topic = fresh_topic(&server.url(), 2, &[]).await;
    let transport = KafkaTransport::builder(server.url()).build().unwrap();
    let subscription = Subscription::new("reader", [topic.clone()]).unwrap();
    let member = transport.subscribe(subscription).await.unwrap();
    deliver(&transport, &stored((0..20).map(|at| numbered(&topic, "a", at))), PATIENCE).await;
    let mut came = 0;
    while came < 20 {
        let next = tokio::time::timeout(PATIENCE, member.next()).await.unwrap().unwrap();
        if let Received::Deliveries(deliveries) = next {
            came += deliveries.len();
            let tags: Vec<_> = deliveries.into_iter().map(|delivery| delivery.tag).collect();
            member.acknowledge(&tags).await.unwrap();
        }
    }
    member.close().await.unwrap();
    transport.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_run_logs_no_warning() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    // A broker that was just started is not ready for producers and groups, and the client warns of
    // that.
    run(&server).await;
    let listener = Listener::default();
    tracing::subscriber::set_global_default(listener.clone()).unwrap();
    run(&server).await;
    let heard = listener.0.lock().unwrap().clone();
    assert!(
        heard.iter().any(|(_, text)| text.contains("experimental")),
        "the log of librdkafka is listened to"
    );
    let warnings: Vec<_> = heard.iter().filter(|(level, _)| *level <= Level::WARN).collect();
    assert!(warnings.is_empty(), "{warnings:?}");
}
