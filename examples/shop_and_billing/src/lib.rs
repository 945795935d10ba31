//! The event that both programs know. Two services of different teams each declare it: they share
//! its names, not a crate.

// ANCHOR: all
use outbox::prelude::*;
use serde::{Deserialize, Serialize};

/// An order was placed.
#[derive(Debug, Serialize, Deserialize, DomainEvent)]
#[event(topic = "orders", type = "order.placed")]
pub struct OrderPlaced {
    /// Id of the order: events of one order keep their sequence.
    #[event(key)]
    pub order_id: i64,
    /// Customer who pays.
    pub customer: String,
    /// Price.
    pub cents: i64,
}

/// Returns a setting from the environment.
#[must_use]
pub fn setting(name: &str, default: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| default.to_owned())
}
// ANCHOR_END: all
