#![doc = include_str!("../README.md")]

mod admin;
mod append;
mod audit;
mod below;
mod blame;
mod browse;
mod config;
mod connect;
mod deduplicate;
mod diagnose;
#[cfg(test)]
mod diagnose_tests;
mod due;
mod error;
mod fetch;
mod figures;
mod handled;
mod identity;
mod key;
mod lease;
mod maintain;
mod migrate;
mod place;
mod pools;
mod requeue;
mod row;
mod settle;
mod sql;
mod store;
mod transactions;
mod transition;
mod watch;

pub use config::{Durability, SqliteOptions};
pub use outbox_store_sql::Migration;
pub use store::SqliteStore;
