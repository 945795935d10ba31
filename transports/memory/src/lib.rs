#![doc = include_str!("../README.md")]

mod broker;
mod config;
mod deliveries;
mod group;
mod partition;
mod publication;
mod transport;

pub use config::MemoryTransportBuilder;
pub use transport::MemoryTransport;
