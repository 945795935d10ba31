//! PostgreSQL and RabbitMQ together, with relays in processes of their own, and everything done to them that happens to such things. What writers
//! committed is held against what a consumer saw.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod brokers;
mod databases;
mod relays;
mod world;
