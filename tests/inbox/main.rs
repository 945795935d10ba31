//! The inbox in processes that are killed: right behind each step between receiving and acknowledging, on SQLite and a broker that is two
//! files. Each effect must be there once, in the order of its key, and so must what was emitted with it.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod constraint;
mod consumer;
mod file_broker;
mod kill;
