#![doc = include_str!("../README.md")]

mod admin;
mod again;
mod append;
mod audit;
mod below;
mod blame;
mod browse;
mod check;
mod cluster;
mod config;
mod connect;
mod deduplicate;
mod diagnose;
#[cfg(test)]
mod diagnose_tests;
mod due;
mod error;
mod fenced;
mod fetch;
mod figures;
mod handled;
mod history;
mod identity;
mod key;
mod lease;
mod line;
mod lines;
mod maintain;
mod migrate;
mod promote;
mod requeue;
mod row;
mod runs;
mod session;
mod settle;
mod sql;
mod store;
mod stripes;
mod transactions;
mod transition;
mod turns;
mod unserved;
mod watch;

pub use config::MySqlOptions;
pub use outbox_store_sql::Migration;
pub use store::MySqlStore;
