//! The service that takes orders. It knows of the stock only from events.

use std::sync::Arc;

use examples_shared::transports::Failed;
use outbox::prelude::*;
use serde::{Deserialize, Serialize};

use crate::databases::{Database, State};
use crate::inventory::{StockRanOut, StockReserved};

/// Event of a placed order.
#[derive(Debug, Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
pub(crate) struct OrderPlaced {
    #[event(key)]
    pub(crate) order_id: i64,
    pub(crate) item: i64,
}

/// Starts the service, which hears of the stock's answers.
pub(crate) async fn start<D: Database>(
    store: D,
    transport: Arc<dyn Transport>,
) -> Result<ServiceHandle<D>, Failed> {
    store.migrate().await?;
    store.make_orders().await?;
    let service = Service::builder("orders", store, transport);
    Ok(service.inbox("orders", |inbox| inbox.on(confirm::<D>).on(refuse::<D>)).start().await?)
}

/// Places an order: the row and its event, both or neither.
pub(crate) async fn place<D: Database>(
    mediator: &Mediator<D>,
    order_id: i64,
    item: i64,
) -> Result<(), WorkError> {
    mediator
        .run(async |work| {
            D::write_order(work.tx(), order_id, item).await?;
            work.publish(OrderPlaced { order_id, item })?;
            Ok(())
        })
        .await
}

async fn confirm<D: Database>(
    stock: StockReserved,
    context: &mut HandlerContext<'_, D>,
) -> Result<(), HandlerError> {
    note_answer::<D>(context.tx(), stock.order_id, State::Confirmed).await
}

async fn refuse<D: Database>(
    stock: StockRanOut,
    context: &mut HandlerContext<'_, D>,
) -> Result<(), HandlerError> {
    note_answer::<D>(context.tx(), stock.order_id, State::Refused).await
}

/// Stores the answer for a waiting order. An order that already has one would be a bug in this
/// program, and fails.
async fn note_answer<D: Database>(
    tx: &mut D::Connection,
    order_id: i64,
    state: State,
) -> Result<(), HandlerError> {
    if !D::answer(tx, order_id, state).await? {
        return Err(format!("order {order_id} does not wait for an answer").into());
    }
    Ok(())
}
