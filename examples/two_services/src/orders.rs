//! The service that takes orders. It knows of the stock only from events.

use std::sync::Arc;
use std::time::Duration;

use examples_shared::transports::Failed;
use outbox::prelude::*;
use outbox::{HandlerContext, Transport};
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

/// The service: a database, a relay out of it, and an inbox into it.
pub(crate) struct Orders<D: Database> {
    store: D,
    mediator: Mediator<D>,
    relay: RelayHandle,
    inbox: InboxHandle,
}

impl<D: Database> Orders<D> {
    pub(crate) async fn start(store: D, transport: Arc<dyn Transport>) -> Result<Self, Failed> {
        store.migrate().await?;
        store.make_orders().await?;
        let relay = Relay::builder(store.clone(), Arc::clone(&transport)).start().await?;
        let inbox = Inbox::builder(store.clone(), transport).consumer("orders");
        let inbox = inbox.on::<StockReserved, _>(confirm::<D>).on::<StockRanOut, _>(refuse::<D>);
        let inbox = inbox.start().await?;
        let mediator = Mediator::new(Outbox::new(store.clone()));
        Ok(Self { store, mediator, relay, inbox })
    }

    /// Places an order: the row and its event, both or neither.
    pub(crate) async fn place(&self, order_id: i64, item: i64) -> Result<(), WorkError> {
        self.mediator
            .run(async |work| {
                D::write_order(work.tx(), order_id, item).await?;
                work.record(OrderPlaced { order_id, item })?;
                Ok(())
            })
            .await
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

async fn confirm<D: Database>(
    tx: &mut D::Tx<'static>,
    stock: StockReserved,
    _: HandlerContext<'_>,
) -> Result<(), HandlerError> {
    note_answer::<D>(tx, stock.order_id, State::Confirmed).await
}

async fn refuse<D: Database>(
    tx: &mut D::Tx<'static>,
    stock: StockRanOut,
    _: HandlerContext<'_>,
) -> Result<(), HandlerError> {
    note_answer::<D>(tx, stock.order_id, State::Refused).await
}

/// Stores the answer for a waiting order. An order that already has one would be a bug in this
/// program, and fails.
async fn note_answer<D: Database>(
    tx: &mut D::Tx<'static>,
    order_id: i64,
    state: State,
) -> Result<(), HandlerError> {
    if !D::answer(tx, order_id, state).await? {
        return Err(format!("order {order_id} does not wait for an answer").into());
    }
    Ok(())
}
