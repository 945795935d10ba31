//! Units of work: what commits together, what rolls back, who is told, and what happens when others are in the way.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod attempts;
mod handling;
mod support;
