//! Every example is run as a user runs it, and does what it says.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod contacts;
mod inbox;
mod modular_monolith;
mod orders;
mod program;
mod quick_start;
mod recipes;
#[cfg(unix)]
mod service;
mod two_services;
