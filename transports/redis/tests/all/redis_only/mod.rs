//! Behavior that only Redis has.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic in a test is a failed test")]

mod acknowledgements;
mod cluster;
mod diagnose;
mod foreign;
mod members;
mod outages;
mod positions;
mod reading;
mod refusals;
mod streams;
mod support;
mod transactions;
