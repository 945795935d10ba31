//! Tests of features and faults that only MongoDB has.

#![allow(clippy::unwrap_used)]

mod altered;
mod below;
mod blame;
mod bounds;
mod causal;
mod commands;
mod faults;
mod fence;
mod foreign;
mod halting;
mod handled_ids;
mod requeue;
mod schedule;
mod support;
mod transactions;
mod turns;
