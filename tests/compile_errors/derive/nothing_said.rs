use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
struct OrderPlaced {
    order_id: u64,
}

#[derive(DomainEvent)]
enum OrderEvent {
    Placed { order_id: u64 },
    Moved { order_id: u64 },
}

fn main() {}
