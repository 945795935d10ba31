#![doc = include_str!("../README.md")]

mod config;
mod deliveries;
mod group;
mod load;
mod partition;
mod publication;
mod state;
mod transport;

pub use config::MemoryTransportBuilder;
pub use transport::MemoryTransport;
