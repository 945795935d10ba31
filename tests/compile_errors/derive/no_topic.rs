use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, type = "order.placed", keyless)]
struct OrderPlaced {
    order_id: u64,
}

#[derive(DomainEvent)]
#[event(crate = outbox_contract, keyless)]
enum OrderEvent {
    #[event(topic = "orders", type = "order.placed")]
    Placed,
    #[event(type = "order.moved")]
    Moved,
}

fn main() {}
