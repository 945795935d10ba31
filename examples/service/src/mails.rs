//! The handler that sends a mail for each order.

use outbox::prelude::*;
use serde::{Deserialize, Serialize};

use crate::database::Database;
use crate::say;

// ANCHOR: event
#[derive(Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
pub(crate) struct OrderPlaced {
    #[event(key)]
    pub(crate) order_id: i64,
    pub(crate) customer: String,
    pub(crate) cents: i64,
}
// ANCHOR_END: event

// ANCHOR: handler
/// Sends a mail, and notes it. The note is committed once. The mail itself is outside the
/// transaction: after a failure it is sent again, which is better than never.
pub(crate) async fn send_mail<D: Database>(
    order: OrderPlaced,
    context: &mut HandlerContext<'_, D>,
) -> Result<(), HandlerError> {
    D::insert_mail(context.tx(), order.order_id).await?;
    say(format_args!("mail to {}: order {}, {} cents", order.customer, order.order_id, order.cents));
    Ok(())
}
// ANCHOR_END: handler
