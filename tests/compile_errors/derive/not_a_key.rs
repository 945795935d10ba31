use outbox_derive::DomainEvent;

struct OrderId(u64);

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed")]
struct OrderPlaced {
    #[event(key)]
    order_id: OrderId,
}

fn main() {}
