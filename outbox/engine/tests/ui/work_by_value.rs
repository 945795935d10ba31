//! A handler of the mediator takes the event by value.

extern crate outbox_contract as outbox;

use outbox_derive::DomainEvent;
use outbox_engine::HandlerError;
use outbox_store_memory::MemoryStore;

#[derive(serde::Serialize, serde::Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order_id: u32,
}

use outbox_contract::Outbox;
use outbox_engine::{Mediator, UnitOfWork};

async fn book_credit(_: OrderPlaced, _: &mut UnitOfWork<MemoryStore>) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {
    let _ = Mediator::new(Outbox::new(MemoryStore::new())).on::<OrderPlaced, _>(book_credit);
}
