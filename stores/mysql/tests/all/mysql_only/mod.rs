//! Tests of features and faults that only MySQL and MariaDB have: transactions that the server
//! rolls back behind the driver's back, gaps that are locked, stripes, isolation levels, other
//! languages, partitions, and what an operator gets wrong.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod altered;
mod autocommit;
mod below;
mod blame;
mod bounds;
mod browsing;
mod faults;
mod foreign;
mod gaps;
mod guard;
mod history;
mod idle;
mod leases;
mod packets;
mod requeue;
mod runs;
mod sessions;
mod settings;
mod stripes;
mod support;
mod switchover;
mod texts;
mod transactions;
mod turns;
mod watch;
