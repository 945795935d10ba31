use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, local, topic = "orders", type = "order.placed", keyless)]
struct OrderPlaced;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, local = true)]
struct OrderSeen;

fn main() {}
