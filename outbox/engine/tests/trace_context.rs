//! One trace: from the span that appends, through store, relay and transport, to the span that
//! handles.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

extern crate outbox_contract as outbox;

use std::time::Duration;

use opentelemetry::trace::{SpanId, TraceId, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use outbox_contract::backend::{Deliveries, Received, Subscription};
use outbox_contract::{Message, Outbox, Transactional, Transport};
use outbox_derive::DomainEvent;
use outbox_engine::{Mediator, Relay, consume_span};
use outbox_store_memory::MemoryStore;
use outbox_transport_memory::MemoryTransport;
use serde::Serialize;
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

#[derive(Serialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order_id: u32,
}

/// Receives and acknowledges this many messages.
async fn receive(billing: &dyn Deliveries, count: usize) -> Vec<Message> {
    let mut messages = Vec::new();
    while messages.len() < count {
        let next = tokio::time::timeout(Duration::from_secs(120), billing.next()).await.unwrap().unwrap();
        let Received::Deliveries(deliveries) = next else { continue };
        for delivery in deliveries {
            messages.push(delivery.message.unwrap());
            billing.acknowledge(&[delivery.tag]).await.unwrap();
        }
    }
    messages
}

fn named<'s>(spans: &'s [SpanData], name: &str) -> &'s SpanData {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    assert_eq!(found.len(), 1, "spans named {name}: {spans:#?}");
    found[0]
}

fn ids(span: &SpanData) -> (TraceId, SpanId) {
    (span.span_context.trace_id(), span.span_context.span_id())
}

#[tokio::test]
async fn appending_relaying_and_handling_are_one_trace() {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    // For the whole process, because the relay's actors run on tasks of their own. This test is
    // alone in its program.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();

    let (store, transport) = (MemoryStore::new(), MemoryTransport::new());
    let subscription = Subscription::new("billing", ["orders"]).unwrap();
    let billing = transport.subscribe(subscription).await.unwrap();
    let outbox = Outbox::new(store.clone());

    // Both before the relay starts, so that both are in one batch.
    async {
        let mut tx = store.begin().await.unwrap();
        outbox.append(&mut tx, &OrderPlaced { order_id: 1 }).await.unwrap();
        store.commit(tx).await.into_result().unwrap();
    }
    .instrument(tracing::info_span!("place an order"))
    .await;
    async {
        let mut work = Mediator::new(outbox.clone()).begin().await.unwrap();
        work.publish(OrderPlaced { order_id: 1 }).unwrap();
        work.commit().await.unwrap();
    }
    .instrument(tracing::info_span!("do a unit of work"))
    .await;

    let relay = Relay::builder(store, transport).start().await.unwrap();
    for (message, handler) in receive(&*billing, 2).await.iter().zip(["first", "second"]) {
        let handling = async { tracing::info_span!("handler", handler).in_scope(|| {}) };
        handling.instrument(consume_span(message)).await;
    }
    assert!(relay.stop(Duration::from_secs(120)).await);
    provider.force_flush().unwrap();
    let spans = exporter.get_finished_spans().unwrap();

    let appended = [named(&spans, "place an order"), named(&spans, "do a unit of work")];
    let consumed: Vec<_> = spans.iter().filter(|span| span.name == "consume").collect();
    assert_eq!(consumed.len(), 2);
    for (appended, consumed) in appended.into_iter().zip(consumed) {
        assert_eq!((consumed.span_context.trace_id(), consumed.parent_span_id), ids(appended));
        let handlers = spans.iter().filter(|span| span.parent_span_id == consumed.span_context.span_id());
        let traces: Vec<_> = handlers.map(|span| span.span_context.trace_id()).collect();
        assert_eq!(traces, [appended.span_context.trace_id()]);
    }
    let linked: Vec<_> = spans
        .iter()
        .filter(|span| span.name == "publish")
        .flat_map(|span| span.links.iter())
        .map(|link| (link.span_context.trace_id(), link.span_context.span_id()))
        .collect();
    for appended in appended {
        assert!(
            linked.contains(&ids(appended)),
            "the relay's span links to the span that appended: {linked:?}"
        );
    }
}
