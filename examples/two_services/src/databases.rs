//! What both services ask of a database. Each has its own words for it; the outbox and the inbox are the same on all.

#[cfg(feature = "mongodb")]
mod mongodb;
mod sql;

use std::future::Future;

use examples_shared::transports::Failed;
use outbox::prelude::*;

/// What an order is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waits = 0,
    Confirmed = 1,
    Refused = 2,
}

/// A store with tables for the orders or for the stock.
pub(crate) trait Database: Transactional + Clone {
    /// Makes the table of the orders. It must not be there.
    fn make_orders(&self) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Makes the tables of the stock, with so much of each of so many items. They must not be there.
    fn make_stock(&self, items: i64, each: i64) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Writes an order, which waits.
    fn write_order(
        tx: &mut Self::Tx<'static>,
        order: i64,
        item: i64,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Gives an order that waits its answer. Whether it did wait.
    fn answer(
        tx: &mut Self::Tx<'static>,
        order: i64,
        state: State,
    ) -> impl Future<Output = Result<bool, HandlerError>> + Send;

    /// Takes one of an item out of what is free. Whether there was one.
    fn take(tx: &mut Self::Tx<'static>, item: i64)
    -> impl Future<Output = Result<bool, HandlerError>> + Send;

    /// Writes that an item is reserved for an order.
    fn reserve(
        tx: &mut Self::Tx<'static>,
        order: i64,
        item: i64,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// How many orders are confirmed, and how many are refused.
    fn answered(&self) -> impl Future<Output = Result<(i64, i64), Failed>> + Send;

    /// What is in stock in all, free and reserved.
    fn stock(&self) -> impl Future<Output = Result<(i64, i64), Failed>> + Send;

    /// How many reservations there are, and of how many orders.
    fn reservations(&self) -> impl Future<Output = Result<(i64, i64), Failed>> + Send;
}
