use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", keyless)]
union OrderPlaced {
    order_id: u64,
}

fn main() {}
