//! The function is not async.

extern crate outbox_contract as outbox;

use outbox_derive::DomainEvent;
use outbox_engine::{HandlerContext, HandlerError, Inbox};
use outbox_store_memory::MemoryStore;
use outbox_transport_memory::MemoryTransport;

#[derive(serde::Serialize, serde::Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order_id: u32,
}

fn send_invoice(_: OrderPlaced, _: &mut HandlerContext<'_, MemoryStore>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {
    let _ = Inbox::builder(MemoryStore::new(), MemoryTransport::new()).on(send_invoice);
}
