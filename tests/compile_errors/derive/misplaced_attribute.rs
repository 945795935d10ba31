use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.event", version = 2)]
enum OrderEvent {
    #[event(crate = outbox_contract, type = "order.placed")]
    Placed {
        #[event(key, topic = "orders")]
        order_id: u64,
    },
}

fn main() {}
