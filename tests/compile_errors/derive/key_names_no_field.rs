use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", key = "ordr_id")]
struct OrderPlaced {
    order_id: u64,
    total_cents: i64,
}

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", key = "orders.id")]
struct WrongHead(u64);

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", key = "order..id")]
struct WrongTail {
    order: u64,
}

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", key = "order. id")]
struct WrongSpace {
    order: u64,
}

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", key = "")]
struct Empty;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", key = "order_id")]
enum OrderEvent {
    #[event(type = "order.placed")]
    Placed { order_id: u64 },
    #[event(type = "order.moved")]
    Moved { id: u64, to: String },
    #[event(type = "orders.purged")]
    Purged,
}

#[derive(DomainEvent, serde::Serialize)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", key = "id")]
struct Ambiguous {
    id: u64,
    #[serde(rename = "id")]
    order_id: u64,
}

fn main() {}
