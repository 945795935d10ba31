//! The service that has the stock. It receives orders, reserves once for each, and answers.

use std::sync::Arc;
use std::time::Duration;

use examples_shared::transports::Failed;
use outbox::prelude::*;
use outbox::{HandlerContext, Transport};
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

/// The service: a database of its own, a relay out of it, and an inbox into it.
pub(crate) struct Inventory<D: Database> {
    store: D,
    relay: RelayHandle,
    inbox: InboxHandle,
}

impl<D: Database> Inventory<D> {
    /// Starts with `each` pieces of each item in stock.
    pub(crate) async fn start(
        store: D,
        transport: Arc<dyn Transport>,
        items: i64,
        each: i64,
    ) -> Result<Self, Failed> {
        store.migrate().await?;
        store.make_stock(items, each).await?;
        let relay = Relay::builder(store.clone(), Arc::clone(&transport)).start().await?;
        let inbox = Inbox::builder(store.clone(), transport).consumer("inventory");
        let inbox = inbox.on::<OrderPlaced, _>(reserve::<D>).start().await?;
        Ok(Self { store, relay, inbox })
    }

    /// Returns its database.
    pub(crate) fn database(&self) -> &D {
        &self.store
    }

    /// Returns the number of duplicate deliveries, which changed nothing.
    pub(crate) fn repeats(&self) -> u64 {
        self.inbox.stats().duplicates
    }

    pub(crate) async fn stop(self, within: Duration) -> bool {
        // The inbox first: the relay still sends what its handlers emitted.
        self.inbox.stop(within).await & self.relay.stop(within).await
    }
}

// ANCHOR: reserve
/// Reserves for an order, or answers that none is left. The reservation, the answer, and the record
/// that this order was handled commit together.
async fn reserve<D: Database>(
    tx: &mut D::Tx<'static>,
    order: OrderPlaced,
    context: HandlerContext<'_>,
) -> Result<(), HandlerError> {
    let OrderPlaced { order_id, item } = order;
    if !D::take(tx, item).await? {
        context.emit(&StockRanOut { order_id, item })?;
        return Ok(());
    }
    D::reserve(tx, order_id, item).await?;
    context.emit(&StockReserved { order_id, item })?;
    Ok(())
}
// ANCHOR_END: reserve
