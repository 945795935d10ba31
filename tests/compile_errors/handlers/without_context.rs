//! A handler that does not take the context.

extern crate outbox_contract as outbox;

use outbox_derive::DomainEvent;
use outbox_engine::{HandlerError, Inbox};
use outbox_store_memory::MemoryStore;
use outbox_testkit::Feed;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order_id: u64,
}

async fn handle(_: OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {
    let _inbox = Inbox::builder(MemoryStore::new(), Feed::new()).on(handle);
}
