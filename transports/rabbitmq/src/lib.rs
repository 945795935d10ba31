#![doc = include_str!("../README.md")]

mod address;
mod arguments;
mod config;
mod confirms;
mod connection;
mod consumption;
mod deliveries;
mod error;
mod inequivalent;
mod member;
mod pauses;
mod pool;
mod publication;
mod record;
mod routing;
mod topology;
mod transport;

pub use config::{ConfigError, RabbitMqTransportBuilder, Topology};
pub use transport::RabbitMqTransport;
