use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, tpic = "orders", topic = "orders", type = "order.placed", partition = 3)]
struct OrderPlaced {
    #[event(kee)]
    order_id: u64,
    #[event(sort_by)]
    total_cents: i64,
}

fn main() {}
