//! The inbox on the memory store: each file has the name of what it is about, each test says what
//! must hold.
//!
//! All in paused time on one thread.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod acknowledging;
mod at_broker;
mod batches;
mod chaos;
mod conflicts;
mod direct;
mod environment;
mod failing;
mod giving_way;
mod life;
mod making_room;
mod metrics;
mod panics;
mod problems;
mod refused;
mod retry_rules;
mod stored;
mod support;
mod turns;
mod typed;
mod undecodable;
