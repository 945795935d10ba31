//! Every test of the transport on real brokers. What looks at its whole process is a program of its
//! own.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod cluster;
mod compression;
mod conformance;
mod diagnose;
mod foreign;
mod groups;
mod injected_errors;
mod kafka_only;
mod logs;
mod positions;
mod quota;
mod rejecting_topics;
mod single_topics;
mod support;
