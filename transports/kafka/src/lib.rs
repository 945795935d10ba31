#![doc = include_str!("../README.md")]

mod complaint;
mod config;
mod context;
mod deliveries;
mod dispatch;
mod flight;
mod gapless;
#[cfg(test)]
mod gapless_tests;
mod member;
mod murmur2;
mod offsets;
mod pool;
mod publication;
mod record;
mod security;
mod topics;
mod transport;
mod trouble;
mod turns;
mod verdict;

pub use config::{GroupProtocol, KafkaTransportBuilder};
pub use security::Mechanism;
pub use transport::KafkaTransport;
