//! Diversions: everything that takes a message out of its key without delivering it, or changes the state of a failing key.

use std::time::Duration;

use crate::bucket::Bucket;
use crate::failure::Failure;
use crate::fetch::RowId;
use crate::id::{Epoch, RelayId};
use crate::name::{KeyId, Route};

/// One step of the state machine of a failing key.
///
/// ```text
///             Fail                      Fail (again)
/// flowing ───────────> failing ─────────────────────> failing, later
///    ^                  │  │  └── Fail with Hold ───> held ── operator ──> failing, now
///    │   Resume, when   │  └───── Bury: the first message becomes a dead letter, the next one is first
///    └── none is parked ┘
/// ```
///
/// `Fail` moves the failing message from the hot table to the parked ones and opens the key's row; `Park` moves what is behind it.
/// Parked messages go out in order; `Resume` removes what was delivered of them and closes the row when none is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diversion {
    /// The route.
    pub route: Route,
    /// Who asks.
    pub relay: RelayId,
    /// The bucket of the key.
    pub bucket: Bucket,
    /// The ownership under which it is asked. Any other, or an expired lease: refused.
    pub epoch: Epoch,
    /// The key.
    pub key: KeyId,
    /// The state of the key's row that this step starts from. None: the row may or may not be there, in any state (the
    /// messages concerned are in the hot table). Some other state: refused.
    pub version: Option<i64>,
    /// What to do.
    pub step: Step,
}

/// What a diversion does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The key's first message failed. It is moved to the parked ones if it is not there yet, with `behind` behind it, and the
    /// key's row is opened or brought up to date. A key that an operator holds stays held.
    Fail {
        /// The message.
        row: RowId,
        /// How often it was tried, this time included. Set, not added.
        attempts: u32,
        /// How it failed the first time.
        first: Failure,
        /// How it failed now.
        last: Failure,
        /// When it is tried again.
        then: Then,
        /// Messages behind it that are known already, in order. Rows that are not there are passed over.
        behind: Vec<RowId>,
    },
    /// These messages of a failing key are moved behind those parked. Rows that are not there are passed over. A key that has no row (it
    /// flows again) is [`Stale`](Diverted::Stale): nobody would ever look at what was parked there. Keeps the version: what is being done
    /// with the messages in front goes on.
    Park {
        /// The messages, in order.
        rows: Vec<RowId>,
    },
    /// The message becomes a dead letter, whether it is hot or parked; the attempts of the key start again at 0, and it is due at
    /// once. A key without a row gets none.
    Bury {
        /// The message.
        row: RowId,
        /// Why, in a word that stands in the dead letter: `exhausted`, `rejected`, `malformed`.
        reason: &'static str,
        /// How often it was tried.
        attempts: u32,
        /// How it failed the first time.
        first: Failure,
        /// How it failed last.
        last: Failure,
    },
    /// These parked messages were delivered and are removed (to the history where one is kept). When none is left the key's row is
    /// removed too, and the key flows again; else it is due at once. A key that an operator holds stays held, with or without messages.
    /// Always names a version.
    Resume {
        /// The messages.
        delivered: Vec<RowId>,
    },
}

/// What becomes of a key whose first message failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It is tried again after this long, by the database's clock.
    RetryAfter(Duration),
    /// It waits for an operator.
    Hold,
}

/// The answer to one diversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diverted {
    /// Done, durably. The key's row is in this state now; None: it has no row, the key flows.
    Done(Option<i64>),
    /// Not done: the relay holds no such lease any more. It must forget the bucket.
    LeaseLost,
    /// Not done: the key's row is in another state (an operator changed it), or the message is no longer where it was. The relay must forget
    /// the key and read it again.
    Stale,
}
