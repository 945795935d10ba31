#![doc = include_str!("../README.md")]

mod config;
mod connection;
mod debts;
mod deliveries;
mod durability;
mod error;
mod keeper;
mod nodes;
mod pace;
mod problems;
mod publication;
mod reader;
mod reader_by_script;
mod record;
mod routing;
mod scripts;
mod share;
mod slots;
mod state;
mod stream_id;
mod topics;
mod transport;
mod trimming;
mod unit;

pub use config::{RedisTransportBuilder, Retention, Start};
pub use transport::RedisTransport;
