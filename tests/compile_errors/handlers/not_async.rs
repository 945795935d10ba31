//! A handler that is not async.

extern crate outbox_contract as outbox;

use outbox_derive::DomainEvent;
use outbox_engine::{HandlerContext, HandlerError, Inbox};
use outbox_store_memory::MemoryStore;
use outbox_testkit::Feed;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order_id: u64,
}

fn handle(_: OrderPlaced, _: &mut HandlerContext<'_, MemoryStore>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {
    let _inbox = Inbox::builder(MemoryStore::new(), Feed::new()).on(handle);
}
