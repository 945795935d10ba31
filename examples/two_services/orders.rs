//! The service that takes orders. It knows of the stock what it is told.

use std::time::Duration;

use outbox::HandlerContext;
use outbox::prelude::*;
use serde::{Deserialize, Serialize};

use crate::database::{Database, look};
use crate::inventory::StockEvent;

/// What others hear of an order.
#[derive(Debug, Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
pub(crate) struct OrderPlaced {
    #[event(key)]
    pub(crate) order_id: i64,
    pub(crate) item: i64,
}

/// What an order is, in the database.
const WAITS: i64 = 0;
const CONFIRMED: i64 = 1;
const REFUSED: i64 = 2;

/// The service: a database, a relay out of it, and an inbox into it.
pub(crate) struct Orders<D: Database> {
    store: D,
    mediator: Mediator<D>,
    relay: RelayHandle,
    inbox: InboxHandle,
}

impl<D: Database> Orders<D> {
    pub(crate) async fn start(store: D, transport: impl Transport + Clone) -> Result<Self, HandlerError> {
        store.migrate().await?;
        let mut tx = store.begin().await?;
        let create =
            "create table orders (id bigint primary key, item bigint not null, state bigint not null)";
        D::execute(&mut tx, create, &[]).await?;
        store.commit(tx).await.into_result()?;
        let relay = Relay::builder(store.clone(), transport.clone()).start().await?;
        let inbox = Inbox::builder(store.clone(), transport).consumer("orders");
        let inbox = inbox.on::<StockEvent, _>(note_answer::<D>).start().await?;
        let mediator = Mediator::new(Outbox::new(store.clone()));
        Ok(Self { store, mediator, relay, inbox })
    }

    /// Places an order: the row and its event, both or neither.
    pub(crate) async fn place(&self, order_id: i64, item: i64) -> Result<(), WorkError> {
        self.mediator
            .run(async |work| {
                let insert = "insert into orders values ($1, $2, $3)";
                D::execute(work.tx(), insert, &[order_id, item, WAITS]).await?;
                work.record(OrderPlaced { order_id, item })?;
                Ok(())
            })
            .await
    }

    /// How many orders are confirmed, and how many are refused.
    pub(crate) async fn answered(&self) -> Result<(i64, i64), HandlerError> {
        let count =
            "select count(case when state = 1 then 1 end), count(case when state = 2 then 1 end) from orders";
        let counts = look(&self.store, count).await?;
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

/// An order that waits gets its answer. One that has it already would be a mistake of ours, and fails.
async fn note_answer<D: Database>(
    tx: &mut D::Tx<'static>,
    event: StockEvent,
    _: HandlerContext<'_>,
) -> Result<(), HandlerError> {
    let (order_id, state) = match event {
        StockEvent::Reserved { order_id, .. } => (order_id, CONFIRMED),
        StockEvent::RanOut { order_id, .. } => (order_id, REFUSED),
    };
    let update = "update orders set state = $1 where id = $2 and state = $3";
    match D::execute(tx, update, &[state, order_id, WAITS]).await? {
        1 => Ok(()),
        _ => Err(format!("order {order_id} does not wait for an answer").into()),
    }
}
