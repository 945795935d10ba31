use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed")]
struct OrderPlaced {
    order_id: u64,
}

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "orders.purged")]
struct Purged;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders")]
enum OrderEvent {
    #[event(type = "order.placed")]
    Placed(u64),
    #[event(type = "orders.purged")]
    Purged,
}

fn main() {}
