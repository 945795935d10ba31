//! Behavior and faults of PostgreSQL alone: locks before positions, writers that stay open, other
//! languages, transactions that failed on the server, the fence, wake-ups between programs,
//! poolers, schemas, plans, partitions, and mistakes of operators.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod altered;
mod append_order;
mod below;
mod blame;
mod collation;
mod connections;
mod faults;
mod fence;
mod foreign;
mod granted;
mod hidden;
mod history;
mod limits;
mod looking;
mod other_drivers;
mod pgpool;
mod plans;
mod pooler;
mod requeue;
mod scheduled;
mod schemas;
mod sessions;
mod statements;
mod support;
mod transactions;
mod verbs;
mod wakeups;
mod writers;
