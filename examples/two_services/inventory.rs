//! The service that has the stock. It hears of orders, reserves once for each, and answers.

use std::time::Duration;

use outbox::HandlerContext;
use outbox::prelude::*;
use serde::{Deserialize, Serialize};

use crate::database::{Database, look};
use crate::orders::OrderPlaced;

/// What others hear of the stock.
#[derive(Debug, Serialize, Deserialize, DomainEvent)]
#[event(topic = "stock", key = "order_id")]
pub(crate) enum StockEvent {
    #[event(type = "stock.reserved")]
    Reserved { order_id: i64, item: i64 },
    #[event(type = "stock.ran_out")]
    RanOut { order_id: i64, item: i64 },
}

/// The service: a database of its own, a relay out of it, and an inbox into it.
pub(crate) struct Inventory<D: Database> {
    store: D,
    relay: RelayHandle,
    inbox: InboxHandle,
}

impl<D: Database> Inventory<D> {
    /// Starts with so much of each item in stock.
    pub(crate) async fn start(
        store: D,
        transport: impl Transport + Clone,
        items: i64,
        each: i64,
    ) -> Result<Self, HandlerError> {
        store.migrate().await?;
        let mut tx = store.begin().await?;
        for table in [
            "create table stock (item bigint primary key, free bigint not null, reserved bigint not null)",
            // No key on the order: that each is reserved once is what is being shown.
            "create table reservations (order_id bigint not null, item bigint not null)",
        ] {
            D::execute(&mut tx, table, &[]).await?;
        }
        for item in 0..items {
            D::execute(&mut tx, "insert into stock values ($1, $2, 0)", &[item, each]).await?;
        }
        store.commit(tx).await.into_result()?;
        let relay = Relay::builder(store.clone(), transport.clone()).start().await?;
        let inbox = Inbox::builder(store.clone(), transport).consumer("inventory");
        let inbox = inbox.on::<OrderPlaced, _>(reserve::<D>).start().await?;
        Ok(Self { store, relay, inbox })
    }

    /// What is in stock in all, free and reserved.
    pub(crate) async fn stock(&self) -> Result<(i64, i64), HandlerError> {
        let sums = "select cast(sum(free) as bigint), cast(sum(reserved) as bigint) from stock";
        let sums = look(&self.store, sums).await?;
        Ok((sums[0], sums[1]))
    }

    /// How many reservations there are, and of how many orders.
    pub(crate) async fn reservations(&self) -> Result<(i64, i64), HandlerError> {
        let counts = look(&self.store, "select count(*), count(distinct order_id) from reservations").await?;
        Ok((counts[0], counts[1]))
    }

    /// How many deliveries were repeats, and changed nothing.
    pub(crate) fn repeats(&self) -> u64 {
        self.inbox.stats().duplicates
    }

    pub(crate) async fn stop(self, within: Duration) -> bool {
        // The inbox first: what its handlers emit is still sent.
        self.inbox.stop(within).await & self.relay.stop(within).await
    }
}

// ANCHOR: reserve
/// Reserves for an order, or says that there is none left. The reservation, the answer, and the note that this order was handled commit together.
async fn reserve<D: Database>(
    tx: &mut D::Tx<'static>,
    order: OrderPlaced,
    context: HandlerContext<'_>,
) -> Result<(), HandlerError> {
    let OrderPlaced { order_id, item } = order;
    let take = "update stock set free = free - 1, reserved = reserved + 1 where item = $1 and free > 0";
    if D::execute(tx, take, &[item]).await? == 0 {
        context.emit(&StockEvent::RanOut { order_id, item })?;
        return Ok(());
    }
    D::execute(tx, "insert into reservations values ($1, $2)", &[order_id, item]).await?;
    context.emit(&StockEvent::Reserved { order_id, item })?;
    Ok(())
}
// ANCHOR_END: reserve
