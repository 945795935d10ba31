#![doc = include_str!("../README.md")]

mod config;
mod context;
mod deliveries;
mod dispatch;
mod flight;
mod gapless;
mod member;
mod murmur2;
mod offsets;
mod pool;
mod publication;
mod record;
mod topics;
mod transport;
mod verdict;

pub use config::{GroupProtocol, KafkaTransportBuilder};
pub use transport::KafkaTransport;
