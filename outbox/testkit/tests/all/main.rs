//! Every test of the kit.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

extern crate outbox_contract as outbox;

mod broken_store;
mod chaos_store;
mod chaos_transport;
mod forwarding;
mod history;
#[cfg(feature = "inbox")]
mod inbox;
mod scenario;
mod suite_catches;
mod time;
mod toy;
