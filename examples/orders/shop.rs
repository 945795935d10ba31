//! The shop: writes what happens to an order, and the event that tells of it, in one transaction.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use outbox::prelude::*;
use outbox::sqlite::SqliteStore;
use serde::{Deserialize, Serialize};
use sqlx::Row;

use crate::input::{Step, total};
use crate::progress::Seen;

/// What the shop tells others. A customer's events keep their order: the customer is the key.
// ANCHOR: events
#[derive(Debug, Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", key = "customer")]
pub(crate) enum OrderEvent {
    /// A customer ordered.
    #[event(type = "order.placed")]
    Placed { customer: String, order_id: String, cents: u64, number: u32 },
    /// The customer paid.
    #[event(type = "order.paid")]
    Paid { customer: String, order_id: String, cents: u64, number: u32 },
    /// The goods left.
    #[event(type = "order.shipped")]
    Shipped { customer: String, order_id: String, parcel: String, number: u32 },
    /// The order was called off.
    #[event(type = "order.cancelled")]
    Cancelled { customer: String, order_id: String, reason: String, number: u32 },
}
// ANCHOR_END: events

impl OrderEvent {
    fn new(step: &Step, number: u32) -> Self {
        let (customer, order_id) = (step.customer().to_owned(), step.order_id().to_owned());
        match step {
            Step::Place { items, .. } => Self::Placed { customer, order_id, cents: total(items), number },
            Step::Pay { cents, .. } => Self::Paid { customer, order_id, cents: *cents, number },
            Step::Ship { parcel, .. } => Self::Shipped { customer, order_id, parcel: parcel.clone(), number },
            Step::Cancel { reason, .. } => {
                Self::Cancelled { customer, order_id, reason: reason.clone(), number }
            }
        }
    }

    /// Whose order it is, and which of that customer's events this is, from 1.
    pub(crate) fn place_in_order(&self) -> (&str, u32) {
        match self {
            Self::Placed { customer, number, .. }
            | Self::Paid { customer, number, .. }
            | Self::Shipped { customer, number, .. }
            | Self::Cancelled { customer, number, .. } => (customer, *number),
        }
    }

    /// The money that it moves.
    pub(crate) fn cents(&self) -> u64 {
        match self {
            Self::Placed { cents, .. } | Self::Paid { cents, .. } => *cents,
            Self::Shipped { .. } | Self::Cancelled { .. } => 0,
        }
    }
}

/// The shop's database.
pub(crate) struct Shop {
    store: SqliteStore,
    outbox: Outbox<SqliteStore>,
    seen: Arc<Seen>,
    committed: u64,
    committed_before: u64,
    /// Lines that were no orders.
    pub(crate) refused: u64,
}

impl Shop {
    /// Opens the database, and makes the tables where they are missing.
    pub(crate) async fn open(file: &Path, seen: Arc<Seen>) -> Result<Self, Box<dyn Error>> {
        let store = SqliteStore::open(file).await?;
        store.migrate().await?;
        sqlx::query("create table if not exists customers (name text primary key, events integer not null) without rowid")
            .execute(store.pool())
            .await?;
        sqlx::query(
            "create table if not exists orders (id text primary key, customer text not null, state text not null, cents integer not null) without rowid",
        )
        .execute(store.pool())
        .await?;
        let customers: Vec<(String, u32)> =
            sqlx::query_as("select name, events from customers").fetch_all(store.pool()).await?;
        let mut committed_before = 0;
        for (customer, events) in &customers {
            seen.committed_before(customer, *events);
            committed_before += u64::from(*events);
        }
        Ok(Self {
            outbox: Outbox::new(store.clone()),
            store,
            seen,
            committed: 0,
            committed_before,
            refused: 0,
        })
    }

    /// The store, for the relays.
    pub(crate) fn store(&self) -> SqliteStore {
        self.store.clone()
    }

    /// How many events were committed in this run.
    pub(crate) fn committed(&self) -> u64 {
        self.committed
    }

    /// How many events were committed in all, by earlier runs over the same database too.
    pub(crate) fn committed_in_all(&self) -> u64 {
        self.committed_before + self.committed
    }

    /// Writes one step and its event: both or neither.
    pub(crate) async fn write(&mut self, step: &Step) -> Result<(), Box<dyn Error>> {
        // ANCHOR: write
        let mut tx = self.store.pool().begin_with("begin immediate").await?;
        let (customer, order) = (step.customer(), step.order_id());
        let number: u32 = sqlx::query_scalar(
            "insert into customers values (?, 1) on conflict do update set events = events + 1 returning events",
        )
        .bind(customer)
        .fetch_one(&mut *tx)
        .await?;
        let event = OrderEvent::new(step, number);
        let (state, cents) = (state_after(step), i64::try_from(event.cents())?);
        sqlx::query(
            "insert into orders values (?, ?, ?, ?) on conflict do update set state = excluded.state, cents = cents + excluded.cents",
        )
        .bind(order)
        .bind(customer)
        .bind(state)
        .bind(cents)
        .execute(&mut *tx)
        .await?;
        self.outbox.append(&mut tx, &event).await?;
        tx.commit().await?;
        // ANCHOR_END: write
        self.committed += 1;
        self.seen.committed(customer, number);
        Ok(())
    }

    /// The money that all committed events moved.
    pub(crate) async fn cents(&self) -> Result<i64, sqlx::Error> {
        let row =
            sqlx::query("select coalesce(sum(cents), 0) from orders").fetch_one(self.store.pool()).await?;
        row.try_get(0)
    }
}

fn state_after(step: &Step) -> &'static str {
    match step {
        Step::Place { .. } => "placed",
        Step::Pay { .. } => "paid",
        Step::Ship { .. } => "shipped",
        Step::Cancel { .. } => "cancelled",
    }
}
