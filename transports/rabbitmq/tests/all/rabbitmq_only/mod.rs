//! Behavior that only RabbitMQ has: on real servers, with networks that fail.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod consuming;
mod crowd;
mod diagnose;
mod foreign;
mod full_queues;
mod handover;
mod headers;
mod lags;
mod network;
mod outcomes;
mod refusals;
mod sharing;
mod support;
mod upkeep;
mod wiretap;
