use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", keyless)]
struct OrderPlaced;

#[derive(DomainEvent, serde::Deserialize)]
#[event(crate = outbox_contract, topic = "orders", keyless)]
#[serde(rename_all(deserialize = "snake_case"))]
enum OrderEvent {
    #[serde(rename(deserialize = "order.placed"))]
    Placed,
}

fn main() {}
