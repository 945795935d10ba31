//! PostgreSQL and RabbitMQ together, with relays and inboxes in processes of their own, and everything done to them that happens to such things;
//! and a storm of faults on every pair.
//! What writers committed is held against what a consumer saw, or against the effects of an inbox.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod brokers;
mod databases;
mod inboxes;
mod process;
mod relays;
mod storm;
mod world;
