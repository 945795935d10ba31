//! Maintenance: what one elected relay does for all.

use std::time::Duration;

/// What one round of maintenance did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Scheduled messages that were due and joined their keys.
    pub promoted: u64,
    /// Messages of the history that were removed because their time was over. Where whole partitions are dropped, an estimate.
    pub history_removed: u64,
    /// Admitted ids that were removed because their time was over.
    pub admissions_removed: u64,
    /// Relays that were removed because they are long gone.
    pub relays_removed: u64,
    /// Whether a limit cut the round short: call again soon.
    pub more: bool,
    /// In how long the next scheduled message is due. None: none is scheduled.
    pub next_due: Option<Duration>,
}
