//! The service: one wiring for outbox, relay and inboxes, all problems at once, and one shutdown.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_contract::{AppendOptions, Message, Outbox, Transactional, Transport};
use outbox_derive::DomainEvent;
use outbox_engine::{
    HandlerContext, HandlerError, Inbox, InboxConfig, Mediator, Service, ServiceBuilder, ServiceHandle,
    StartError, Status,
};
use outbox_store_memory::MemoryStore;
use outbox_testkit::{Feed, RecordingTransport, Warnings};
use outbox_transport_memory::MemoryTransport;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

const S: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order_id: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DomainEvent)]
#[event(topic = "invoices", type = "invoice.sent")]
struct InvoiceSent {
    #[event(key)]
    order_id: u32,
}

/// State of the tests' services: handled orders are sent here when they are committed.
struct Done(UnboundedSender<u32>);

async fn invoice(
    order: OrderPlaced,
    context: &mut HandlerContext<'_, MemoryStore, Done>,
) -> Result<(), HandlerError> {
    let done = context.state().0.clone();
    context.publish(&InvoiceSent { order_id: order.order_id })?;
    context.tx().on_commit(move || _ = done.send(order.order_id));
    Ok(())
}

async fn nothing(_: OrderPlaced, _: &mut HandlerContext<'_, MemoryStore>) -> Result<(), HandlerError> {
    Ok(())
}

async fn ignore(_: InvoiceSent, _: &mut HandlerContext<'_, MemoryStore>) -> Result<(), HandlerError> {
    Ok(())
}

fn service(transport: impl Transport) -> ServiceBuilder<MemoryStore> {
    Service::builder("shop", MemoryStore::new(), transport)
}

fn invoicing(transport: impl Transport) -> (ServiceBuilder<MemoryStore, Done>, UnboundedReceiver<u32>) {
    let (sender, done) = unbounded_channel();
    (service(transport).state(Done(sender)).inbox("billing", |inbox| inbox.on(invoice)), done)
}

async fn append(service: &ServiceHandle<MemoryStore>, orders: std::ops::Range<u32>) {
    let store = service.outbox().store();
    let mut tx = store.begin().await.expect("a transaction begins");
    let orders: Vec<_> = orders.map(|order_id| OrderPlaced { order_id }).collect();
    service.outbox().append_all(&mut tx, &orders).await.expect("the orders are appended");
    store.commit(tx).await.into_result().expect("the orders are committed");
}

async fn until(mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < S * 60, "it does not come");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_appended_is_handled_and_what_handlers_publish_is_sent() {
    let (builder, mut done) = invoicing(MemoryTransport::new());
    let invoices = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&invoices);
    let builder = builder.inbox("archive", |inbox| {
        inbox.state(seen).on(
            async |invoice: InvoiceSent,
                   context: &mut HandlerContext<'_, MemoryStore, Arc<Mutex<Vec<u32>>>>| {
                context.state().lock().unwrap().push(invoice.order_id);
                Ok::<_, HandlerError>(())
            },
        )
    });
    let service = builder.start().await.unwrap();
    append(&service, 0..3).await;
    for _ in 0..3 {
        done.recv().await.unwrap();
    }
    until(|| invoices.lock().unwrap().len() == 3).await;
    until(|| service.health().status == Status::Healthy).await;
    assert_eq!(service.inbox("billing").unwrap().stats().handled, 3);
    assert!(service.inbox("nobody").is_none());
    until(|| service.relay().unwrap().stats().delivered == 6).await;
    service.shutdown(S * 20).await.unwrap();
    let health = service.health();
    assert_eq!(health.status, Status::Unhealthy);
    assert_eq!(health.reasons.len(), 1);
    assert_eq!(health.reasons[0].to_string(), "the service was shut down");
    assert_eq!(service.inbox("archive").unwrap().stats().handled, 3, "as it was when it ended");
}

#[tokio::test(start_paused = true)]
async fn every_problem_of_every_part_is_reported_at_once() {
    let builder = Service::builder("a shop", MemoryStore::new(), MemoryTransport::new())
        .relay(|relay| relay.lease(S * 4).fetch_batch(0))
        .route("default", RecordingTransport::new())
        .inbox("billing", |inbox| inbox)
        .inbox("", |inbox| inbox.on(nothing).prefetch(0))
        .inbox("twice", |inbox| inbox.on(nothing))
        .inbox("twice", |inbox| inbox.on(ignore));
    let Err(error @ StartError::Config(_)) = builder.start().await else { panic!("it was started") };
    let error = error.to_string();
    for problem in [
        "- the name of the service is \"a shop\"; use letters",
        "- relay: lease (4s) is too short",
        "- relay: fetch_batch is 0",
        "- relay: route default is configured twice",
        "- inbox billing: the inbox has no handler",
        "- inbox : the consumer is empty",
        "- inbox : prefetch is 0",
        "- 2 inboxes are named twice",
    ] {
        assert!(error.contains(problem), "{problem}: {error}");
    }
    let Err(error) = service(Feed::new()).without_relay().start().await else { panic!("it was started") };
    assert!(error.to_string().contains("neither a relay nor an inbox"), "{error}");
    let late = service(Feed::new()).inbox("billing", |inbox| inbox.on(nothing));
    let Err(error) = late.outbox(Outbox::new(MemoryStore::new())).start().await else {
        panic!("it was started")
    };
    assert!(error.to_string().contains("`outbox` is called after `inbox`"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_service_has_its_name_as_label_and_no_source_of_its_own() {
    let config: outbox_engine::RelayConfig = serde_json::from_str(r#"{"per_key": 3}"#).unwrap();
    let builder = service(RecordingTransport::new()).relay(|relay| relay.config(config));
    let text = format!("{builder:?}");
    for word in ["per_key: 3", "source: None", "label: \"shop\""] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let own = format!("{:?}", builder.relay(|relay| relay.source("/orders").label("night")));
    assert!(own.contains("source: Some(\"/orders\")") && own.contains("label: \"night\""), "{own}");
}

/// The service's own inbox confirms messages on their way within the process. So the relay finishes
/// first, without waiting for a timeout.
#[tokio::test(start_paused = true)]
async fn within_a_process_a_shutdown_waits_for_no_timeout() {
    let slow = |inbox: outbox_engine::InboxBuilder<MemoryStore>| {
        inbox.on(async |_: OrderPlaced, _: &mut HandlerContext<'_, MemoryStore>| {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok::<_, HandlerError>(())
        })
    };
    let service = service(MemoryTransport::new()).inbox("billing", slow).start().await.unwrap();
    append(&service, 0..200).await;
    until(|| service.inbox("billing").unwrap().stats().handled > 20).await;
    let began = Instant::now();
    service.shutdown(S * 20).await.unwrap();
    assert!(began.elapsed() < S * 2, "{:?}", began.elapsed());
    let (handled, delivered) =
        (service.inbox("billing").unwrap().stats().handled, service.relay().unwrap().stats().delivered);
    assert!(handled < 200 || delivered == 200);
    assert_eq!(handled, delivered, "nothing is handled that the relay does not know of");
}

/// On a broker the inbox finishes first: what its handlers published is still sent.
#[tokio::test(start_paused = true)]
async fn what_handlers_published_last_is_sent_before_the_relay_stops() {
    let (feed, sent) = (Feed::new(), Arc::new(RecordingTransport::new()));
    let slow = async |order: OrderPlaced, context: &mut HandlerContext<'_, MemoryStore>| {
        tokio::time::sleep(S).await;
        context.publish(&InvoiceSent { order_id: order.order_id })?;
        Ok::<_, HandlerError>(())
    };
    let service = service(Arc::clone(&sent))
        .inbox("billing", |inbox| inbox.transport(feed.clone()).on(slow))
        .start()
        .await
        .unwrap();
    feed.send(service.outbox().encode(&OrderPlaced { order_id: 7 }).unwrap());
    tokio::time::sleep(S / 2).await;
    service.shutdown(S * 20).await.unwrap();
    assert_eq!(sent.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_has_one_deadline_and_names_what_did_not_finish() {
    let feed = Feed::new();
    let hangs = async |_: OrderPlaced, _: &mut HandlerContext<'_, MemoryStore>| {
        std::future::pending::<()>().await;
        Ok::<_, HandlerError>(())
    };
    let builder = service(feed.clone()).inbox("billing", |inbox| inbox.on(hangs));
    let service = builder.start().await.unwrap();
    feed.send(service.outbox().encode(&OrderPlaced { order_id: 7 }).unwrap());
    tokio::time::sleep(S / 10).await;
    let began = Instant::now();
    let other = service.clone();
    let (error, same) = tokio::join!(service.shutdown(S * 3), async move {
        tokio::time::sleep(S / 10).await;
        other.shutdown(S * 3).await
    });
    assert!(began.elapsed() <= S * 3, "{:?}", began.elapsed());
    let error = error.unwrap_err();
    assert_eq!(error.unfinished(), ["inbox billing"]);
    assert!(
        error
            .to_string()
            .starts_with("not drained within 3s, or ended before: inbox billing; nothing is lost"),
        "{error}"
    );
    assert_eq!(same.unwrap_err(), error, "a second call waits for the first");
}

#[tokio::test(start_paused = true)]
async fn a_signal_ends_a_run_and_a_canceled_shutdown_says_so() {
    let service = invoicing(Feed::new()).0.shutdown_within(S * 5).start().await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn({
        let service = service.clone();
        async move { service.run_until(stopped).await }
    });
    tokio::time::sleep(S).await;
    assert!(!running.is_finished());
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    service.shutdown(S).await.unwrap();

    let service = invoicing(Feed::new()).0.start().await.unwrap();
    assert!(tokio::time::timeout(Duration::ZERO, service.shutdown(S)).await.is_err());
    let error = service.shutdown(S).await.unwrap_err();
    assert!(error.unfinished().is_empty() && error.to_string().contains("canceled"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_service_without_a_relay_publishes_nothing_and_another_does() {
    let (store, transport) = (MemoryStore::new(), Arc::new(RecordingTransport::new()));
    let writer = Service::builder("web", store.clone(), Feed::new()).without_relay();
    let writer = writer.inbox("billing", |inbox| inbox.on(nothing)).start().await.unwrap();
    assert!(writer.relay().is_none());
    append(&writer, 0..2).await;
    tokio::time::sleep(S * 10).await;
    assert_eq!(transport.len(), 0);
    let relay = Service::builder("shop", store, Arc::clone(&transport)).start().await.unwrap();
    until(|| transport.len() == 2).await;
    relay.shutdown(S * 20).await.unwrap();
    writer.shutdown(S * 20).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_dropped_without_a_shutdown_warns_and_one_that_was_shut_down_does_not() {
    let (warnings, _guard) = Warnings::capture();
    let dropped = || {
        let warned = warnings.take();
        warned.iter().filter(|words| words.contains("dropped without a shutdown")).count()
    };
    let (service, clone) = {
        let service = invoicing(Feed::new()).0.start().await.unwrap();
        (service.clone(), service)
    };
    drop(clone);
    assert_eq!(dropped(), 0, "another clone is left");
    drop(service);
    assert_eq!(dropped(), 1);
    let service = invoicing(Feed::new()).0.start().await.unwrap();
    service.shutdown(S * 20).await.unwrap();
    drop(service);
    assert_eq!(dropped(), 0);
}

/// Closures own what they need; each call gets a clone.
#[tokio::test(start_paused = true)]
async fn closures_handle_events_of_inboxes_and_of_units_of_work() {
    let (calls, feed) = (Arc::new(AtomicU32::new(0)), Feed::new());
    let (of_inbox, of_any, of_mediator) = (Arc::clone(&calls), Arc::clone(&calls), Arc::clone(&calls));
    let inbox = Inbox::builder(MemoryStore::new(), feed.clone())
        .consumer("billing")
        .on(async move |_: OrderPlaced, _: &mut HandlerContext<'_, MemoryStore>| {
            of_inbox.fetch_add(1, Ordering::SeqCst);
            Ok::<_, HandlerError>(())
        })
        .on_any(async move |message: Message, context: &mut HandlerContext<'_, MemoryStore>| {
            assert_eq!(message.id, context.message().id);
            of_any.fetch_add(10, Ordering::SeqCst);
            Ok::<_, HandlerError>(())
        });
    let inbox = inbox.start().await.unwrap();
    feed.send(Outbox::new(MemoryStore::new()).encode(&OrderPlaced { order_id: 7 }).unwrap());
    feed.send(Message::new("orders", "order.paid").unwrap());
    until(|| feed.unacknowledged() == 0).await;
    assert_eq!(calls.load(Ordering::SeqCst), 11);
    assert!(inbox.stop(S * 20).await);

    let mediator = Mediator::new(Outbox::new(MemoryStore::new())).on(
        async move |_: &OrderPlaced, _: &mut outbox_engine::UnitOfWork<MemoryStore>| {
            of_mediator.fetch_add(100, Ordering::SeqCst);
            Ok::<_, HandlerError>(())
        },
    );
    mediator.run(async |work| Ok(work.publish(OrderPlaced { order_id: 7 })?)).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 111);
}

/// Headers and due times are said in one word, wherever an event is published.
#[tokio::test(start_paused = true)]
async fn options_reach_the_message_from_an_outbox_a_handler_and_a_unit_of_work() {
    let (store, feed) = (MemoryStore::new(), Feed::new());
    let options = || AppendOptions::new().header("tenant", "north");
    let handler = async move |order: OrderPlaced, context: &mut HandlerContext<'_, MemoryStore>| {
        context.publish_with(&InvoiceSent { order_id: order.order_id }, options())?;
        Ok::<_, HandlerError>(())
    };
    let builder = Service::builder("shop", store.clone(), feed.clone());
    let service = builder.inbox("billing", |inbox| inbox.on(handler)).without_relay().start().await.unwrap();
    feed.send(service.outbox().encode(&OrderPlaced { order_id: 1 }).unwrap());
    until(|| feed.unacknowledged() == 0).await;
    let mut tx = store.begin().await.unwrap();
    service.outbox().append_with(&mut tx, &InvoiceSent { order_id: 2 }, options()).await.unwrap();
    let later = options().due_at(outbox_contract::Timestamp::from_micros(i64::MAX / 1_000_000));
    service.outbox().append_with(&mut tx, &InvoiceSent { order_id: 3 }, later).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
    let mediator = Mediator::new(service.outbox().clone());
    let work = async |work: &mut outbox_engine::UnitOfWork<MemoryStore>| {
        Ok(work.publish_with(InvoiceSent { order_id: 4 }, options())?)
    };
    mediator.run(work).await.unwrap();
    let tables = store.snapshot();
    let of_hot = |order: &str| {
        let mut rows = tables.hot.iter().map(|(_, row)| &row.message);
        rows.find(|message| message.key.as_ref().is_some_and(|key| *key == order)).unwrap()
    };
    for order in ["1", "2", "4"] {
        assert_eq!(of_hot(order).headers.get("tenant"), Some("north"), "{order}");
    }
    assert_eq!(tables.scheduled, 1);
    service.shutdown(S * 20).await.unwrap();
}

/// A configuration may come from a file; what is wrong in it is found at the start.
#[tokio::test(start_paused = true)]
async fn a_configuration_replaces_the_defaults_of_an_inbox() {
    let config: InboxConfig = serde_json::from_str(r#"{"prefetch": 0, "label": "file"}"#).unwrap();
    let builder = service(Feed::new()).inbox("billing", |inbox| inbox.config(config).on(nothing));
    let Err(error) = builder.start().await else { panic!("it was started") };
    assert!(error.to_string().contains("inbox billing: prefetch is 0"), "{error}");
}
