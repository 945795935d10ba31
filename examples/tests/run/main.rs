//! Every example is run as a user runs it, and does what it says.

mod contacts;
mod modular_monolith;
mod orders;
mod program;
mod quick_start;
#[cfg(unix)]
mod service;
