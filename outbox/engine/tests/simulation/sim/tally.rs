//! Number of faults, by kind: a fault that never happens proves nothing.

use std::collections::BTreeMap;
use std::sync::Mutex;

use outbox_testkit::{FaultCounts, StoreFaultCounts};

/// Counts by name.
#[derive(Default)]
pub(crate) struct Tally(Mutex<BTreeMap<&'static str, u64>>);

/// Everything that must have happened in some world.
#[allow(dead_code, reason = "one run alone need not have all of it")]
pub(crate) const ALL: [&str; 26] = [
    "worlds of one writer",
    "worlds of several writers",
    "worlds of stripes",
    "worlds in which nothing fails",
    "leases taken over",
    "late writes",
    "late publishes",
    "panics of the store",
    "dead letters",
    "dead letters by operators",
    "dead letters requeued",
    "calls that failed before",
    "calls that failed after",
    "calls that hung",
    "commits that failed before",
    "commits that failed after",
    "commits that came later",
    "messages failed",
    "messages rejected",
    "messages unknown and not sent",
    "messages unknown and sent",
    "messages unavailable",
    "messages blocked",
    "messages hung",
    "panics of the transport",
    "relays that stood still",
];

impl Tally {
    pub(crate) fn add(&self, what: &'static str, count: u64) {
        debug_assert!(ALL.contains(&what), "{what}");
        *self.0.lock().unwrap().entry(what).or_default() += count;
    }

    pub(crate) fn of_store(&self, counts: StoreFaultCounts) {
        self.add("calls that failed before", counts.before);
        self.add("calls that failed after", counts.after);
        self.add("calls that hung", counts.hung);
    }

    pub(crate) fn of_writing(&self, counts: StoreFaultCounts) {
        self.add("commits that failed before", counts.before);
        self.add("commits that failed after", counts.after);
        self.add("commits that came later", counts.late);
    }

    pub(crate) fn of_transport(&self, counts: FaultCounts) {
        self.add("messages failed", counts.failed);
        self.add("messages rejected", counts.rejected);
        self.add("messages unknown and not sent", counts.unknown_without_effect);
        self.add("messages unknown and sent", counts.unknown_with_effect);
        self.add("messages unavailable", counts.unavailable);
        self.add("messages blocked", counts.blocked);
        self.add("messages hung", counts.hung);
        self.add("panics of the transport", counts.panics);
    }

    pub(crate) fn take(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}
