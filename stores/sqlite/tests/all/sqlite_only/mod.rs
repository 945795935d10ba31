//! What only a SQLite file can do or break: query plans, processes on one file, files that are not what they should be, programs in other
//! languages, a writer that does not let go.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod bad_files;
mod below;
mod blame;
mod foreign;
mod locks;
mod looking;
mod plans;
mod processes;
mod retention;
mod support;
