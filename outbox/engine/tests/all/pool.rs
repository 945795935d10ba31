//! The pool of a store: its inboxes divide it, or the start says which size they need.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test, also in its helpers")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_contract::backend::{StoreLayer, TransactionalLayer};
use outbox_contract::{Message, Outbox};
use outbox_engine::{HandlerContext, HandlerError, Inbox, InboxBuilder, Service, ServiceBuilder, StartError};
use outbox_store_memory::MemoryStore;
use outbox_testkit::Feed;

const S: Duration = Duration::from_secs(1);

/// A store over a pool of so many connections.
#[derive(Clone)]
struct Pooled(MemoryStore, usize);

impl Pooled {
    fn of(connections: usize) -> Self {
        Self(MemoryStore::builder().concurrent_writers().build(), connections)
    }
}

impl StoreLayer for Pooled {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.0
    }
}

impl TransactionalLayer for Pooled {
    fn max_transactions(&self) -> Option<usize> {
        Some(self.1)
    }
}

/// Handlers at work, by consumer.
type Busy = Arc<Mutex<BTreeMap<String, usize>>>;

async fn hang(_: Message, context: &mut HandlerContext<'_, Pooled, Busy>) -> Result<(), HandlerError> {
    let consumer = context.consumer().to_string();
    *context.state().lock().unwrap().entry(consumer).or_default() += 1;
    std::future::pending().await
}

/// An inbox whose handlers hang, with more messages than there are transactions, each of a key of
/// its own.
fn hanging(inbox: InboxBuilder<Pooled, Busy>) -> InboxBuilder<Pooled, Busy> {
    let feed = Feed::new();
    for order in 0..100 {
        let message = Message::new("orders", "order.placed").unwrap();
        feed.send(message.with_key(order.to_string()).unwrap());
    }
    inbox.transport(feed).topic("orders").on_any(hang)
}

fn service(pool: usize) -> (ServiceBuilder<Pooled, Busy>, Busy) {
    let busy = Busy::default();
    (Service::builder("shop", Pooled::of(pool), Feed::new()).state(Arc::clone(&busy)), busy)
}

/// Returns the numbers of handlers at work once no more begin.
async fn at_work(busy: &Busy) -> Vec<usize> {
    tokio::time::sleep(S).await;
    busy.lock().unwrap().values().copied().collect()
}

#[tokio::test(start_paused = true)]
async fn inboxes_without_a_concurrency_share_the_pool_and_leave_a_part_of_it() {
    for (pool, each) in [(10, 4), (5, 2), (100, 8)] {
        let (builder, busy) = service(pool);
        let service = builder.inbox("one", hanging).inbox("other", hanging).start().await.unwrap();
        assert_eq!(at_work(&busy).await, [each, each], "a pool of {pool}");
        drop(service);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_configured_is_kept_and_the_others_share_the_rest() {
    let (builder, busy) = service(10);
    let builder = builder.inbox("one", |inbox| hanging(inbox).concurrency(5)).inbox("other", hanging);
    // An inbox with a store of its own takes nothing of this pool.
    let builder = builder.inbox("third", |inbox| hanging(inbox).store(Pooled::of(20)));
    let _service = builder.start().await.unwrap();
    assert_eq!(at_work(&busy).await, [5, 3, 8]);
}

#[tokio::test(start_paused = true)]
async fn an_inbox_alone_leaves_a_part_of_a_small_pool() {
    let busy = Busy::default();
    let inbox = Inbox::builder(Pooled::of(5), Feed::new()).state(Arc::clone(&busy)).consumer("one");
    let _inbox = hanging(inbox).start().await.unwrap();
    assert_eq!(at_work(&busy).await, [4]);
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_too_small_for_what_is_configured_is_refused_with_the_size_to_set() {
    let builder = || {
        let (builder, _) = service(10);
        builder.inbox("one", |inbox| hanging(inbox).concurrency(8))
    };
    let Err(error @ StartError::Config(_)) =
        builder().inbox("other", |inbox| hanging(inbox).concurrency(8)).start().await
    else {
        panic!("it was started")
    };
    for words in [
        "the inboxes take 8 + 8 = 16 connections at once, and the pool of the store has 10",
        "max_connections to 20 or more",
        "leave `concurrency` out",
    ] {
        assert!(error.to_string().contains(words), "{words}: {error}");
    }
    // Each inbox takes one: that they share would not help.
    let (tiny, _) = service(1);
    let tiny = tiny.inbox("one", hanging).inbox("other", hanging).start().await;
    let Err(error @ StartError::Config(_)) = tiny else { panic!("it was started") };
    assert!(!error.to_string().contains("leave `concurrency` out"), "{error}");
    let fits = builder().inbox("other", |inbox| hanging(inbox).concurrency(2));
    drop(fits.start().await.unwrap());
    // One writer at a time takes one connection, however small the pool.
    let single = Pooled(MemoryStore::new(), 1);
    let single = Service::builder("shop", single.clone(), Feed::new()).outbox(Outbox::new(single));
    let single = single.state(Busy::default());
    let single = single.inbox("one", |inbox| hanging(inbox).concurrency(8)).inbox("other", hanging);
    drop(single.start().await.unwrap());
}
