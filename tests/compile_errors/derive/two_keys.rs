use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed")]
struct TwoFields {
    #[event(key)]
    order_id: u64,
    #[event(key)]
    customer_id: u64,
}

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", key = "order_id")]
struct FieldAndContainer {
    order_id: u64,
    #[event(key)]
    customer_id: u64,
}

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", keyless)]
struct FieldAndKeyless {
    #[event(key)]
    order_id: u64,
}

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed", key = "order_id", keyless)]
struct ContainerAndKeyless {
    order_id: u64,
}

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", keyless)]
enum KeyInAKeylessEnum {
    #[event(type = "order.placed")]
    Placed(#[event(key)] u64),
    #[event(type = "order.moved", key = "0")]
    Moved(u64),
}

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", keyless, key = "0")]
enum KeyAndKeylessEnum {
    #[event(type = "order.placed")]
    Placed(u64),
}

fn main() {}
