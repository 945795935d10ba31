//! Handlers of a unit of work: one that takes its event by value, one without the unit of work.

extern crate outbox_contract as outbox;

use outbox::Outbox;
use outbox_derive::DomainEvent;
use outbox_engine::{HandlerError, Mediator, UnitOfWork};
use outbox_store_memory::MemoryStore;

#[derive(serde::Serialize, DomainEvent)]
#[event(local)]
struct OrderPlaced;

async fn by_value(_: OrderPlaced, _: &mut UnitOfWork<MemoryStore>) -> Result<(), HandlerError> {
    Ok(())
}

async fn alone(_: &OrderPlaced) -> Result<(), HandlerError> {
    Ok(())
}

fn main() {
    let mediator = Mediator::new(Outbox::new(MemoryStore::new()));
    let _mediator = mediator.on(by_value).on(alone);
}
