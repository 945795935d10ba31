//! Services whose driver is not the store's: each writes an order and its event in a transaction of
//! its driver. The relay publishes the events that were committed, and no others, in the order of
//! each key; an inbox decodes them.
//!
//! The functions `append` are the listings of `book/src/other_drivers.md`.

mod pooler;
mod shop;
mod with_diesel;
mod with_diesel_async;
mod with_mysql_async;
mod with_rusqlite;
mod with_sea_orm;
mod with_sqlx;
mod with_tokio_postgres;
