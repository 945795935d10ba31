//! Every test of the store.

mod concurrent_writers;
mod conformance;
mod failing_keys;
mod inbox;
mod leases;
mod support;
mod transactions;
