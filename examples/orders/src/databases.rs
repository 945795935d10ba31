//! What the shop and the ledger ask of a database. Each has its own words for it; the outbox is the same on all.

#[cfg(feature = "mongodb")]
mod mongodb;
#[cfg(feature = "mysql")]
mod mysql;
mod sql;

use std::error::Error;
use std::future::Future;

use examples_shared::transports::Failed;
use outbox::prelude::*;
use outbox::{AppendError, StoreError, StoreErrorKind};

/// One order, as the shop keeps it.
pub(crate) struct OrderRow<'o> {
    pub(crate) id: &'o str,
    pub(crate) customer: &'o str,
    pub(crate) state: &'o str,
    /// The money that this step moves: added to what the order has moved before.
    pub(crate) cents: i64,
}

/// A customer's account in the ledger.
pub(crate) struct Account {
    pub(crate) customer: String,
    pub(crate) cents: i64,
    /// How many events were booked.
    pub(crate) events: u32,
}

/// A store with tables for the shop and for the ledger.
pub(crate) trait Database: Transactional + Clone {
    /// Makes the tables of the shop, where they are missing.
    fn make_shop(&self) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Makes the table of the ledger, where it is missing.
    fn make_ledger(&self) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Counts an event of a customer, and says which it is, from 1.
    fn count_event(
        tx: &mut Self::Tx<'static>,
        customer: &str,
    ) -> impl Future<Output = Result<u32, HandlerError>> + Send;

    /// Writes what an order is now.
    fn write_order(
        tx: &mut Self::Tx<'static>,
        order: &OrderRow<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Books an event of a customer.
    fn book(
        tx: &mut Self::Tx<'static>,
        customer: &str,
        cents: i64,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// How many events each customer has.
    fn customers(&self) -> impl Future<Output = Result<Vec<(String, u32)>, Failed>> + Send;

    /// The money that all orders have moved.
    fn cents(&self) -> impl Future<Output = Result<i64, Failed>> + Send;

    /// Every account.
    fn accounts(&self) -> impl Future<Output = Result<Vec<Account>, Failed>> + Send;
}

/// Whether an error says that another transaction was in the way: everything can be done again from the beginning.
pub(crate) fn is_conflict<D: Database>(store: &D, error: &(dyn Error + 'static)) -> bool {
    let of_append =
        error.downcast_ref::<AppendError>().is_some_and(|error| matches!(error, AppendError::Conflict(_)));
    let of_store =
        error.downcast_ref::<StoreError>().is_some_and(|error| error.kind() == StoreErrorKind::Conflict);
    of_append || of_store || store.is_conflict(error)
}
