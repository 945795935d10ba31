#![doc = include_str!("../README.md")]

mod admin;
mod again;
mod append;
mod audit;
mod backlog;
mod below;
mod blame;
mod browse;
mod config;
mod database;
mod deduplicate;
mod diagnose;
mod due;
mod error;
mod fence;
mod fetch;
mod figures;
mod handled;
mod identity;
mod keys;
mod lease;
mod maintain;
mod migrate;
mod ownership;
mod row;
mod settle;
mod store;
mod stripes;
mod transaction;
mod transition;
mod turns;
mod unnamed;
mod unserved;
mod wakeups;

pub use config::MongoDbOptions;
pub use store::MongoDbStore;
