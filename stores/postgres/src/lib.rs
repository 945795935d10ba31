#![doc = include_str!("../README.md")]

mod admin;
mod append;
mod below;
mod blame;
mod channel;
mod check;
mod config;
mod connect;
mod deduplicate;
mod diagnose;
mod diagnose_history;
#[cfg(test)]
mod diagnose_tests;
mod due;
mod error;
mod fetch;
mod figures;
mod handled;
mod identity;
mod lease;
mod line;
mod lines;
mod maintain;
mod migrate;
mod notifier;
mod pooler;
mod repeat;
mod row;
mod settings;
mod settle;
mod sql;
mod store;
mod transactions;
mod transition;
mod unserved;
mod visible;
mod wakeups;
mod weed;
mod writers;

pub use config::PostgresOptions;
pub use outbox_store_sql::Migration;
pub use store::PostgresStore;
