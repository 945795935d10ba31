//! A stand-in for MongoDB in tests: its wire protocol in front of PostgreSQL with the DocumentDB
//! extension.
#![doc = include_str!("../README.md")]

mod access;
mod clock;
mod commands;
mod connection;
mod cursors;
mod engine;
mod fault;
mod front;
mod hello;
mod options;
mod refusal;
mod replies;
mod scram;
mod server;
mod sessions;
mod transaction;
mod wire;

pub use fault::{Fault, Happens};
pub use front::{Front, FrontError};
pub use options::Options;
