use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = "not a path", topic = "orders", type = "order.placed", keyless)]
struct OrderPlaced;

#[derive(DomainEvent)]
#[event(crate, topic = "orders", type = "order.placed", keyless)]
struct OrderMoved;

fn main() {}
