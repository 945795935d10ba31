//! Fixture: events, a record of what handlers saw, and access to appended messages.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use outbox_contract::{Outbox, async_trait};
use outbox_derive::DomainEvent;
use outbox_engine::{EventHandler, HandlerError, Mediator, UnitOfWork};
use outbox_store_memory::{MemoryStore, MemoryTx};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", key = "order")]
pub(crate) enum OrderEvent {
    #[event(type = "order.placed")]
    Placed { order: String, step: u32 },
    #[event(type = "order.paid")]
    Paid { order: String, step: u32 },
}

#[derive(Debug, Serialize, DomainEvent)]
#[event(local)]
pub(crate) struct StockRanLow {
    pub(crate) item: u32,
}

#[derive(Debug, Serialize, DomainEvent)]
#[event(topic = "purchases", type = "purchase.wanted")]
pub(crate) struct PurchaseWanted {
    #[event(key)]
    pub(crate) item: u32,
}

pub(crate) fn placed(order: &str) -> OrderEvent {
    OrderEvent::Placed { order: order.to_owned(), step: 0 }
}

pub(crate) fn mediator() -> Mediator<MemoryStore> {
    Mediator::new(Outbox::new(MemoryStore::new()))
}

/// Returns the messages to be sent, in the order of positions: event type and key.
pub(crate) fn appended(store: &MemoryStore) -> Vec<(String, String)> {
    let snapshot = store.snapshot();
    let messages = snapshot.hot.iter().map(|(_, stored)| &stored.message);
    messages.map(|message| (message.event_type.to_string(), message.order_key().to_string())).collect()
}

pub(crate) fn pair(event_type: &str, key: &str) -> (String, String) {
    (event_type.to_owned(), key.to_owned())
}

/// Record of what handlers saw, in order, and of what committed with them.
#[derive(Clone, Default)]
pub(crate) struct Book {
    seen: Arc<Mutex<Vec<String>>>,
    committed: Arc<AtomicU32>,
}

impl Book {
    pub(crate) fn note(&self, line: impl Into<String>) {
        self.seen.lock().unwrap().push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// Makes a user's write, which takes effect only if the transaction commits.
    pub(crate) fn write(&self, tx: &mut MemoryTx) {
        let committed = Arc::clone(&self.committed);
        tx.on_commit(move || _ = committed.fetch_add(1, Ordering::SeqCst));
    }

    pub(crate) fn committed(&self) -> u32 {
        self.committed.load(Ordering::SeqCst)
    }
}

/// Handler that notes each event under its name.
pub(crate) struct Notes(pub(crate) &'static str, pub(crate) Book);

#[async_trait]
impl EventHandler<OrderEvent, MemoryStore> for Notes {
    async fn handle(
        &self,
        event: &OrderEvent,
        work: &mut UnitOfWork<MemoryStore>,
    ) -> Result<(), HandlerError> {
        let (OrderEvent::Placed { order, .. } | OrderEvent::Paid { order, .. }) = event;
        self.1.note(format!("{} {order}", self.0));
        self.1.write(work.tx());
        Ok(())
    }
}

#[async_trait]
impl EventHandler<StockRanLow, MemoryStore> for Notes {
    async fn handle(
        &self,
        event: &StockRanLow,
        work: &mut UnitOfWork<MemoryStore>,
    ) -> Result<(), HandlerError> {
        self.1.note(format!("{} {}", self.0, event.item));
        work.publish(PurchaseWanted { item: event.item })?;
        Ok(())
    }
}

pub(crate) async fn runs_low(_: &OrderEvent, work: &mut UnitOfWork<MemoryStore>) -> Result<(), HandlerError> {
    work.publish(StockRanLow { item: 7 })?;
    Ok(())
}

pub(crate) async fn refuses(event: &OrderEvent, _: &mut UnitOfWork<MemoryStore>) -> Result<(), HandlerError> {
    match event {
        OrderEvent::Placed { .. } => Ok(()),
        OrderEvent::Paid { order, .. } => Err(format!("{order} is closed").into()),
    }
}
