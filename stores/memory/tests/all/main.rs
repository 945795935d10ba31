//! Every test of the store.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod concurrent_writers;
mod conformance;
mod failing_keys;
mod inbox;
mod leases;
mod support;
mod transactions;
