#![doc = include_str!("../README.md")]

mod address;
mod arguments;
mod broker;
mod builder;
mod channel;
mod channel_state;
mod config;
mod connection;
mod consumption;
mod deliveries;
mod error;
mod frames;
mod gates;
mod inequivalent;
mod lags;
mod login;
mod member;
mod multiplexer;
mod pauses;
mod pool;
mod priorities;
mod publication;
mod publishing;
mod record;
mod refusals;
mod routing;
mod session;
mod socket;
mod tags;
mod topology;
mod transport;
mod upkeep;
mod wire;

pub use builder::RabbitMqTransportBuilder;
pub use config::{ConfigError, Topology};
pub use transport::RabbitMqTransport;
