use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", keyless)]
enum OrderEvent {
    #[event(type = "order.placed")]
    Placed,
    #[event(type = "order.moved")]
    Moved,
    #[event(type = "order.placed", topic = "others")]
    PlacedAgain,
}

#[derive(DomainEvent, serde::Serialize)]
#[event(crate = outbox_contract, topic = "orders", keyless)]
#[serde(rename_all = "snake_case")]
enum ByRule {
    #[event(type = "order_moved")]
    Placed,
    OrderMoved,
}

fn main() {}
