//! The service that has the stock. It receives orders, reserves once for each, and answers.

use std::sync::Arc;

use examples_shared::transports::Failed;
use outbox::prelude::*;
use serde::{Deserialize, Serialize};

use crate::databases::Database;
use crate::orders::OrderPlaced;

/// Event for an order that gets its item. One struct per event is easy to read in any language.
#[derive(Debug, Serialize, Deserialize, DomainEvent)]
#[event(topic = "stock", type = "stock.reserved")]
pub(crate) struct StockReserved {
    #[event(key)]
    pub(crate) order_id: i64,
    pub(crate) item: i64,
}

/// Event for an order that does not.
#[derive(Debug, Serialize, Deserialize, DomainEvent)]
#[event(topic = "stock", type = "stock.ran_out")]
pub(crate) struct StockRanOut {
    #[event(key)]
    pub(crate) order_id: i64,
    pub(crate) item: i64,
}

/// Starts the service, with `each` pieces of each item in stock.
pub(crate) async fn start<D: Database>(
    store: D,
    transport: Arc<dyn Transport>,
    items: i64,
    each: i64,
) -> Result<ServiceHandle<D>, Failed> {
    store.migrate().await?;
    store.make_stock(items, each).await?;
    let service = Service::builder("inventory", store, transport);
    Ok(service.inbox("inventory", |inbox| inbox.on(reserve::<D>)).start().await?)
}

// ANCHOR: reserve
/// Reserves for an order, or answers that none is left. The reservation, the answer, and the record
/// that this order was handled commit together.
async fn reserve<D: Database>(
    order: OrderPlaced,
    context: &mut HandlerContext<'_, D>,
) -> Result<(), HandlerError> {
    let OrderPlaced { order_id, item } = order;
    if !D::take(context.tx(), item).await? {
        context.publish(&StockRanOut { order_id, item })?;
        return Ok(());
    }
    D::reserve(context.tx(), order_id, item).await?;
    context.publish(&StockReserved { order_id, item })?;
    Ok(())
}
// ANCHOR_END: reserve
