use outbox_derive::DomainEvent;

const ORDERS: &str = "orders";

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = ORDERS, type, version = 0, keyless = true)]
struct Wrong;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", version = -1, key)]
struct WrongToo {
    #[event(key = "order_id")]
    order_id: u64,
}

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", version = 4294967296, keyless)]
struct TooHigh;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders" type = "order.placed", "keyless")]
struct NoComma;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed")]
struct NoParentheses {
    #[event]
    order_id: u64,
}

fn main() {}
