#![doc = include_str!("../README.md")]

mod admin;
mod append;
mod clock;
mod config;
mod locks;
mod store;
mod tables;
mod transaction;

pub use config::MemoryStoreBuilder;
pub use store::MemoryStore;
pub use tables::Snapshot;
pub use transaction::{MemoryTx, SessionTerminated};
