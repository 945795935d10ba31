//! A handler was wrong. It is mended, the consumer forgets what it handled, the outbox replays it:
//! the handler runs once more on each message.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test, also in its helpers")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_contract::admin::{Filter, HandledFilter};
use outbox_contract::{Admin, AdminExt, Message, Outgoing, Transactional};
use outbox_engine::{HandlerContext, HandlerError, Service, ServiceHandle};
use outbox_store_memory::MemoryStore;
use outbox_testkit::eventually;
use outbox_transport_memory::MemoryTransport;

const PATIENCE: Duration = Duration::from_secs(600);

/// Who handled what, in the order of the commits.
type Effects = Arc<Mutex<Vec<(&'static str, Message)>>>;

/// Starts the service with a version of its handler.
async fn start(
    store: &MemoryStore,
    broker: &MemoryTransport,
    effects: &Effects,
    version: &'static str,
) -> ServiceHandle<MemoryStore> {
    let effects = Arc::clone(effects);
    let handler = async move |message: Message, context: &mut HandlerContext<'_, MemoryStore>| {
        context.tx().on_commit(move || effects.lock().unwrap().push((version, message)));
        Ok::<_, HandlerError>(())
    };
    let builder = Service::builder("shop", store.clone(), broker.clone());
    builder.inbox("billing", |inbox| inbox.topic("orders").on_any(handler)).start().await.unwrap()
}

async fn append(store: &MemoryStore, keys: &[&str]) -> Vec<Message> {
    let message = |key: &&str| Message::new("orders", "order.placed").unwrap().with_key(*key).unwrap();
    let messages: Vec<Message> = keys.iter().map(message).collect();
    let mut tx = store.begin().await.unwrap();
    let outgoing: Vec<Outgoing> = messages.iter().cloned().map(Outgoing::from).collect();
    store.append(&mut tx, &outgoing).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
    messages
}

async fn until(effects: &Effects, number: usize) {
    let there = eventually(PATIENCE, async || effects.lock().unwrap().len() >= number).await;
    assert!(there, "{:?}", effects.lock().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_mended_handler_runs_once_more_on_what_is_forgotten_and_replayed() {
    let (store, broker) = (MemoryStore::builder().history(PATIENCE * 10).build(), MemoryTransport::new());
    let effects = Effects::default();
    let wrong = start(&store, &broker, &effects, "wrong").await;
    let sent = append(&store, &["a", "b", "a", "a"]).await;
    until(&effects, 4).await;
    let delivered = Filter::route("default").unwrap();
    let kept = async || store.history(&delivered).await.unwrap().len() == 4;
    assert!(eventually(PATIENCE, kept).await);
    wrong.shutdown(PATIENCE).await.unwrap();

    let mended = start(&store, &broker, &effects, "mended").await;
    let key = sent[0].key_id();
    let of_key = HandledFilter::of("billing").unwrap().with_key(key.key.clone()).unwrap();
    assert_eq!(store.forget(&of_key).await.unwrap(), 3);
    assert_eq!(store.replay(&delivered).await.unwrap(), 4);
    let last = append(&store, &["b"]).await;
    until(&effects, 8).await;
    // Once more, and no second time: these are repeats again, as the one of the other key was.
    assert_eq!(store.replay(&Filter { limit: Some(4), ..delivered.clone() }).await.unwrap(), 4);
    let end = append(&store, &["a", "b"]).await;
    until(&effects, 10).await;
    mended.shutdown(PATIENCE).await.unwrap();

    let handled = |key: &str| -> Vec<_> {
        let effects = effects.lock().unwrap();
        let of = effects.iter().filter(|(_, message)| message.order_key().as_str() == key);
        of.map(|(version, message)| (*version, message.id)).collect()
    };
    let [a, b, c] = [0, 2, 3].map(|at| sent[at].id);
    let wrong = [a, b, c].map(|id| ("wrong", id));
    let mended = [a, b, c, end[0].id].map(|id| ("mended", id));
    assert_eq!(handled("a"), [&wrong[..], &mended].concat());
    assert_eq!(handled("b"), [("wrong", sent[1].id), ("mended", last[0].id), ("mended", end[1].id)]);
}
