#![doc = include_str!("../README.md")]

mod acknowledgment;
mod append;
mod config;
mod connection;
mod consumption;
mod deliveries;
mod diagnose;
mod durability;
mod epochs;
mod error;
mod keeper;
mod lags;
mod lease;
mod nodes;
mod past;
mod problems;
mod publication;
mod read_size;
mod reader;
mod reader_by_script;
mod record;
mod routing;
mod scripts;
mod share;
mod slots;
mod stream_id;
mod topics;
mod transport;
mod trimming;

pub use config::{RedisTransportBuilder, Retention, Start};
pub use transport::RedisTransport;
