//! The store's own connections.

use crate::line::{Line, Way};

/// The store's own connections, one for each kind of work.
pub(crate) struct Lines {
    /// Fetches, and what is asked before them.
    pub(crate) fetching: Line,
    /// Whatever else is only read.
    pub(crate) looking: Line,
    /// Settlements.
    pub(crate) settling: Line,
    /// Heartbeats, and nothing else.
    pub(crate) leasing: Line,
    /// Transitions.
    pub(crate) transitioning: Line,
    /// Maintenance and the verbs of operators, which may wait for locks.
    pub(crate) operating: Line,
}

impl Lines {
    pub(crate) fn new(way: &Way) -> Self {
        let line = || Line::new(way.clone());
        Self {
            fetching: line(),
            looking: line(),
            settling: line(),
            leasing: line(),
            transitioning: line(),
            operating: line(),
        }
    }
}
