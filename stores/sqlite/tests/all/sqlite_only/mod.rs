//! Behavior and faults of SQLite files alone: query plans, processes on one file, faulty files,
//! programs in other languages, a writer that keeps its lock.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod bad_files;
mod below;
mod blame;
mod foreign;
mod identity;
mod locks;
mod looking;
mod plans;
mod processes;
mod requeue;
mod retention;
mod support;
mod watch;
