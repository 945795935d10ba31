use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed")]
struct Optional {
    #[event(key)]
    order_id: Option<u64>,
}

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", key = "0")]
struct Floating(f64);

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", key = "orders")]
enum List<'a> {
    #[event(type = "order.placed")]
    Placed { orders: &'a std::vec::Vec<u64> },
}

fn main() {}
