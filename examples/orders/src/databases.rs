//! Database operations of the shop and the ledger. Each database has its own statements for them;
//! the outbox is the same on all.

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

/// An order, as stored by the shop.
pub(crate) struct OrderRow<'o> {
    pub(crate) id: &'o str,
    pub(crate) customer: &'o str,
    pub(crate) state: &'o str,
    /// Money that this step moves, added to what the order has moved before.
    pub(crate) cents: i64,
}

/// A customer's account in the ledger.
pub(crate) struct Account {
    pub(crate) customer: String,
    pub(crate) cents: i64,
    /// Number of booked events.
    pub(crate) events: u32,
}

/// A store with tables for the shop and for the ledger.
pub(crate) trait Database: Transactional + Clone {
    /// Creates the missing tables of the shop.
    fn make_shop(&self) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Creates the table of the ledger, if it is missing.
    fn make_ledger(&self) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Counts an event of a customer, and returns its number, from 1.
    fn count_event(
        tx: &mut Self::Connection,
        customer: &str,
    ) -> impl Future<Output = Result<u32, HandlerError>> + Send;

    /// Writes the current state of an order.
    fn write_order(
        tx: &mut Self::Connection,
        order: &OrderRow<'_>,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Books an event of a customer.
    fn book(
        tx: &mut Self::Connection,
        customer: &str,
        cents: i64,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Returns the number of events of each customer.
    fn customers(&self) -> impl Future<Output = Result<Vec<(String, u32)>, Failed>> + Send;

    /// Returns the money that all orders have moved.
    fn cents(&self) -> impl Future<Output = Result<i64, Failed>> + Send;

    /// Returns every account.
    fn accounts(&self) -> impl Future<Output = Result<Vec<Account>, Failed>> + Send;
}

/// Returns true if an error reports a conflict with another transaction: retry everything from the
/// beginning.
pub(crate) fn is_conflict<D: Database>(store: &D, error: &(dyn Error + 'static)) -> bool {
    let of_append =
        error.downcast_ref::<AppendError>().is_some_and(|error| matches!(error, AppendError::Conflict(_)));
    let of_store =
        error.downcast_ref::<StoreError>().is_some_and(|error| error.kind() == StoreErrorKind::Conflict);
    of_append || of_store || store.is_conflict(error)
}
