use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", topic = "others")]
#[event(type = "order.placed")]
struct OrderPlaced {
    #[event(key, key)]
    order_id: u64,
}

fn main() {}
