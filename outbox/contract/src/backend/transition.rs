//! Key transitions: every step that takes a message out of its key without delivering it, or
//! changes the state of a failing key.

use std::time::Duration;

use crate::backend::{Bucket, Epoch, RelayId, RowId};
use crate::failure::Failure;
use crate::name::{KeyId, Route};

/// One step of the state machine of a failing key.
///
/// ```text
///             Fail                      Fail (again)
/// flowing ───────────> failing ─────────────────────> failing, later
///    ^                  │  │  └── Fail with Hold ───> held ── operator ──> failing, now
///    │   Resume, when   │  └───── Bury: the first message becomes a dead letter, or is deleted; the next one is first
///    └── none is parked ┘
/// ```
///
/// `Fail` moves the failing message from the hot table to the parked messages and creates the key's
/// row. `Park` moves the messages behind it. The relay delivers parked messages in order. `Resume`
/// removes those that were delivered, and removes the key's row when none is left.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyTransition {
    /// The route.
    pub route: Route,
    /// The relay that requests the step.
    pub relay: RelayId,
    /// The bucket of the key.
    pub bucket: Bucket,
    /// Epoch of the relay's lease. The store rejects any other epoch, and an expired lease.
    pub epoch: Epoch,
    /// The key.
    pub key: KeyId,
    /// Version of the key's row from which this step starts; the store rejects a different version.
    /// `None`: the row may be absent or in any state (the messages concerned are in the hot table).
    pub version: Option<i64>,
    /// The step.
    pub step: Step,
}

impl KeyTransition {
    /// Creates a step under the lease of a bucket, from a version of the key's row.
    #[must_use]
    pub const fn new(
        route: Route,
        relay: RelayId,
        (bucket, epoch): (Bucket, Epoch),
        key: KeyId,
        version: Option<i64>,
        step: Step,
    ) -> Self {
        Self { route, relay, bucket, epoch, key, version, step }
    }
}

/// The kind of a key transition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The key's first message failed. The store parks it, if it is not parked yet, with `behind`
    /// behind it, and creates or updates the key's row. A key that an operator holds stays held.
    Fail {
        /// The message.
        row: RowId,
        /// Number of attempts, this one included. Set, not added.
        attempts: u32,
        /// First failure.
        first: Failure,
        /// Current failure.
        last: Failure,
        /// Time of the next attempt, or hold.
        then: Then,
        /// Messages known to be behind it, in order. Missing rows are skipped.
        behind: Vec<RowId>,
    },
    /// Parks these messages of a failing key behind those already parked. Missing rows are skipped.
    /// If the key has no row (it flows again), the answer is [`Stale`](Transitioned::Stale),
    /// because no relay would look at messages parked there. The version stays the same, so work on
    /// the messages in front continues.
    Park {
        /// The messages, in order.
        rows: Vec<RowId>,
    },
    /// The message, hot or parked, becomes a dead letter, or is deleted. The attempts of the key
    /// restart at 0, and the key is due immediately. A key without a row gets none.
    Bury {
        /// The message.
        row: RowId,
        /// True: the message is deleted, without a dead letter. The audit records it in the same
        /// transaction ([`AuditNote::discarded`](crate::backend::AuditNote::discarded)).
        discard: bool,
        /// The reason that the dead letter records: `exhausted`, `rejected`, `malformed`.
        reason: &'static str,
        /// Number of attempts.
        attempts: u32,
        /// First failure.
        first: Failure,
        /// Last failure.
        last: Failure,
    },
    /// Removes these delivered messages from the parked ones (to the history, if the store keeps
    /// one). If none is left, the store also removes the key's row, and the key flows again;
    /// otherwise it is due immediately. A key that an operator holds stays held, with or without
    /// messages. This step always names a version.
    Resume {
        /// The messages.
        delivered: Vec<RowId>,
    },
}

/// Next state of a key whose first message failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The relay retries it after this delay, by the database's clock.
    RetryAfter(Duration),
    /// It waits for an operator.
    Hold,
}

/// The answer to one key transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transitioned {
    /// Done, durably. Contains the new version of the key's row; `None`: the row is gone, and the
    /// key flows.
    Done(Option<i64>),
    /// Not done: the relay no longer holds this lease. It must forget the bucket.
    LeaseLost,
    /// Not done: the key's row has another version (an operator changed it), or the message has
    /// moved. The relay must forget the key and read it again.
    Stale,
}
