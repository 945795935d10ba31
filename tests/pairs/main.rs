//! PostgreSQL and RabbitMQ together, with relays and inboxes in processes of their own, under every
//! kind of fault; rolling deploys; and a storm of faults on every pair. The writers' commits are
//! compared with a consumer's deliveries, or with the effects of an inbox.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod brokers;
mod databases;
mod deploys;
mod inboxes;
mod process;
mod relays;
mod storm;
mod world;
