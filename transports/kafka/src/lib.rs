#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
mod begun;
mod builder;
mod config;
mod connection_error;
mod consumer_error;
mod context;
mod deliveries;
mod diagnose;
mod dispatch;
mod flight;
mod gapless;
#[cfg(test)]
mod gapless_tests;
mod lags;
mod limits;
mod member;
mod murmur2;
mod pool;
mod pools;
mod positions;
mod problems;
mod produce_error;
mod publication;
mod publish_timeout;
mod record;
mod repeats;
mod retired;
mod security;
mod send_queue;
mod subscribed;
mod topics;
mod transport;
mod under_way;
mod watch;

pub use builder::KafkaTransportBuilder;
pub use config::GroupProtocol;
pub use security::Mechanism;
pub use transport::KafkaTransport;
