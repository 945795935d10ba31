//! Maintenance: periodic work of one elected relay on behalf of all.

use std::time::Duration;

/// Result of one round of maintenance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Maintained {
    /// Number of scheduled messages that were due and joined their keys.
    pub promoted: u64,
    /// Number of messages removed from the history at the end of their retention. An estimate if
    /// the store drops whole partitions.
    pub history_removed: u64,
    /// Number of handled ids removed at the end of their retention.
    pub handled_ids_removed: u64,
    /// Number of entries of the audit removed at the end of their retention.
    pub audit_removed: u64,
    /// Number of relays removed because they have been gone for a long time.
    pub relays_removed: u64,
    /// True if a limit cut the round short: call again soon.
    pub more: bool,
    /// Time until the next scheduled message is due. `None`: none is scheduled.
    pub next_due: Option<Duration>,
}
