//! Units of work: commit, rollback, wake-ups and conflicts.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod attempts;
mod handling;
mod support;
