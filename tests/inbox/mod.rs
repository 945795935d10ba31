//! The inbox in processes that are killed: right behind each step between receiving and
//! acknowledging, on SQLite and a broker that is two files. Each effect must happen once, in the
//! order of its key, and so must its emitted messages.
//!
//! And on PostgreSQL with real brokers: a key that fails beside ten thousand messages of others,
//! and emitted messages of handlers, from one inbox to the next.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod away;
mod broken_key;
mod connections;
mod constraint;
mod consumer;
mod emitted;
mod file_broker;
mod kill;
mod limits;
pub(crate) mod real;
