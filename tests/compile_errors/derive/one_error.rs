use outbox_contract::DomainEvent as _;
use outbox_derive::DomainEvent;

#[derive(DomainEvent)]
#[event(crate = outbox_contract, topic = "orders", type = "order.placed")]
struct OrderPlaced<T: Clone>
where
    T: Send,
{
    #[event(kye)]
    order_id: T,
}

fn is_event<E: outbox_contract::DomainEvent>(_: &E) {}

fn main() {
    let event = OrderPlaced { order_id: 7 };
    is_event(&event);
    let _ = event.event_type();
    let _ = event.key();
}
