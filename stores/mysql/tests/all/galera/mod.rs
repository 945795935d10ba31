//! A cluster of Galera whose nodes all take writes: transactions that another node's commit aborts,
//! nodes that lag, nodes without a quorum.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod aborted;
mod inbox;
mod lagging;
mod leases;
mod quorum;
mod support;
mod writers;
