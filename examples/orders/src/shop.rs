//! The shop: writes each step of an order, and its event, in one transaction.

use std::sync::Arc;

use examples_shared::transports::Failed;
use outbox::prelude::*;
use serde::{Deserialize, Serialize};

use crate::databases::{Database, OrderRow, is_conflict};
use crate::input::{Step, total};
use crate::progress::Seen;

/// Events of the shop, under stable names, so that the variants can be renamed. The customer is the
/// key, so a customer's events keep their order.
// ANCHOR: events
#[derive(Debug, Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", key = "customer")]
pub(crate) enum OrderEvent {
    /// A customer ordered.
    #[serde(rename = "order.placed")]
    Placed { customer: String, order_id: String, cents: u64, number: u32 },
    /// The customer paid.
    #[serde(rename = "order.paid")]
    Paid { customer: String, order_id: String, cents: u64, number: u32 },
    /// The goods left.
    #[serde(rename = "order.shipped")]
    Shipped { customer: String, order_id: String, parcel: String, number: u32 },
    /// The order was canceled.
    #[serde(rename = "order.cancelled")]
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

    /// Returns the customer, and the number of the event among that customer's events, from 1.
    pub(crate) fn place_in_order(&self) -> (&str, u32) {
        match self {
            Self::Placed { customer, number, .. }
            | Self::Paid { customer, number, .. }
            | Self::Shipped { customer, number, .. }
            | Self::Cancelled { customer, number, .. } => (customer, *number),
        }
    }

    /// Returns the money that it moves.
    pub(crate) fn cents(&self) -> u64 {
        match self {
            Self::Placed { cents, .. } | Self::Paid { cents, .. } => *cents,
            Self::Shipped { .. } | Self::Cancelled { .. } => 0,
        }
    }
}

/// The shop, in its database.
pub(crate) struct Shop<D: Database> {
    store: D,
    outbox: Outbox<D>,
    seen: Arc<Seen>,
    committed: u64,
    committed_before: u64,
    /// Number of rejected lines.
    pub(crate) refused: u64,
}

impl<D: Database> Shop<D> {
    /// Creates the missing tables, and reads what earlier runs left.
    pub(crate) async fn open(store: D, seen: Arc<Seen>) -> Result<Self, Failed> {
        store.migrate().await?;
        store.make_shop().await?;
        let mut committed_before = 0;
        for (_, events) in store.customers().await? {
            committed_before += u64::from(events);
        }
        let outbox = Outbox::new(store.clone());
        Ok(Self { store, outbox, seen, committed: 0, committed_before, refused: 0 })
    }

    /// Returns the number of events committed in this run.
    pub(crate) fn committed(&self) -> u64 {
        self.committed
    }

    /// Returns the number of events committed in total, earlier runs over the same database
    /// included.
    pub(crate) fn committed_in_all(&self) -> u64 {
        self.committed_before + self.committed
    }

    /// Writes one step and its event: both or neither. Restarts on a conflict with another
    /// transaction.
    pub(crate) async fn write(&mut self, step: &Step) -> Result<(), Failed> {
        loop {
            match self.try_to_write(step).await {
                Err(error) if is_conflict(&self.store, &*error) => {}
                written => break written?,
            }
        }
        self.committed += 1;
        self.seen.committed();
        Ok(())
    }

    async fn try_to_write(&self, step: &Step) -> Result<(), Failed> {
        let mut tx = self.store.begin().await?;
        let connection = D::connection(&mut tx);
        let number = D::count_event(connection, step.customer()).await?;
        let event = OrderEvent::new(step, number);
        let cents = i64::try_from(event.cents())?;
        let order =
            OrderRow { id: step.order_id(), customer: step.customer(), state: state_after(step), cents };
        D::write_order(connection, &order).await?;
        self.outbox.append(&mut tx, &event).await?;
        Ok(self.store.commit(tx).await.into_result()?)
    }

    /// Returns the number of committed events of each customer.
    pub(crate) async fn customers(&self) -> Result<Vec<(String, u32)>, Failed> {
        self.store.customers().await
    }

    /// Returns the money that all committed events moved.
    pub(crate) async fn cents(&self) -> Result<i64, Failed> {
        self.store.cents().await
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
