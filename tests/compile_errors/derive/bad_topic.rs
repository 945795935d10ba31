use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "", type = "", keyless)]
struct Empty;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "or\nders", type = "order\u{7f}", keyless)]
struct ControlCharacters;

#[derive(DomainEvent)]
#[event(
    crate = outbox_contract,
    topic = "oooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo",
    type = "order.placed",
    keyless
)]
struct LongTopic;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, keyless)]
enum Variants {
    #[event(topic = "", type = "order.placed")]
    Placed,
}

fn main() {}
