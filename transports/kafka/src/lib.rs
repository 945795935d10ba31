#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
mod builder;
mod complaint;
mod config;
mod context;
mod deliveries;
mod dispatch;
mod flight;
mod gapless;
#[cfg(test)]
mod gapless_tests;
mod limits;
mod member;
mod murmur2;
mod offsets;
mod patience;
mod pool;
mod pools;
mod problems;
mod publication;
mod record;
mod security;
mod topics;
mod transport;
mod trouble;
mod turns;
mod under_way;
mod verdict;
mod watch;

pub use builder::KafkaTransportBuilder;
pub use config::GroupProtocol;
pub use security::Mechanism;
pub use transport::KafkaTransport;
