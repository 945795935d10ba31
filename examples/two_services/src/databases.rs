//! Database operations of both services. Each database has its own statements for them; the outbox
//! and the inbox are the same on all.

#[cfg(feature = "mongodb")]
mod mongodb;
mod sql;

use std::future::Future;

use examples_shared::transports::Failed;
use outbox::prelude::*;

/// State of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Waits = 0,
    Confirmed = 1,
    Refused = 2,
}

/// A store with tables for the orders or for the stock.
pub(crate) trait Database: Transactional + Clone {
    /// Creates the table of the orders. It must not exist.
    fn make_orders(&self) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Creates the tables of the stock, with `each` pieces of each of `items` items. They must not
    /// exist.
    fn make_stock(&self, items: i64, each: i64) -> impl Future<Output = Result<(), Failed>> + Send;

    /// Writes a waiting order.
    fn write_order(
        tx: &mut Self::Connection,
        order: i64,
        item: i64,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Stores the answer for a waiting order. Returns true if the order was waiting.
    fn answer(
        tx: &mut Self::Connection,
        order: i64,
        state: State,
    ) -> impl Future<Output = Result<bool, HandlerError>> + Send;

    /// Takes one piece of an item out of the free stock. Returns true if there was one.
    fn take(tx: &mut Self::Connection, item: i64) -> impl Future<Output = Result<bool, HandlerError>> + Send;

    /// Writes the reservation of an item for an order.
    fn reserve(
        tx: &mut Self::Connection,
        order: i64,
        item: i64,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Returns the number of confirmed orders, and of refused ones.
    fn answered(&self) -> impl Future<Output = Result<(i64, i64), Failed>> + Send;

    /// Returns the total stock, free and reserved.
    fn stock(&self) -> impl Future<Output = Result<(i64, i64), Failed>> + Send;

    /// Returns the number of reservations, and of the orders that have one.
    fn reservations(&self) -> impl Future<Output = Result<(i64, i64), Failed>> + Send;
}
