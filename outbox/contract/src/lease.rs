//! Leases: a relay's time-limited ownership of buckets.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bucket::{Bucket, BucketSet};
use crate::id::{Epoch, Position, RelayId};
use crate::name::{Route, Topic};

/// One heartbeat of a relay.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// Who asks: an id made fresh by each life of a relay.
    pub relay: RelayId,
    /// What people call this relay. It decides nothing.
    pub label: String,
    /// The route whose buckets are asked for.
    pub route: Route,
    /// How long leases last from this heartbeat on, by the database's clock.
    pub lasts: Duration,
    /// Whether this relay's transport is to be had. One that says no for longer than a lease is counted out when the share
    /// is computed, as long as another says yes.
    pub transport_available: bool,
    /// A fingerprint of this relay's routes and policies; relays of one route should agree.
    pub fingerprint: i64,
    /// How far the relay has come, and with which of its buckets. Saved for whoever takes them over.
    pub low_water: LowWater,
    /// Buckets that the relay is giving up: not to be renewed beyond what they have, not to be acquired again now.
    pub yielding: BucketSet,
}

/// A low-water mark: nothing stands at or below it any more, or can be committed there, in the leases that it covers.
///
/// It is believed of these alone. A relay may own more than it knows: by a heartbeat whose answer it never had, or did not look at yet. Of
/// whatever is not covered a store keeps and reports the mark that it has; a relay that has read nothing yet covers nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LowWater {
    /// The mark.
    pub position: Position,
    /// The leases that it speaks of.
    pub covered: BTreeMap<Bucket, Epoch>,
    /// In which life of the database it was found: what the answers to heartbeats said at the time. In another one, the positions that it
    /// passes may have come back for other messages, so it counts for nothing there.
    pub life: i64,
}

impl LowWater {
    /// The mark of this lease, if it speaks of that.
    #[must_use]
    pub fn of(&self, bucket: Bucket, epoch: Epoch) -> Option<Position> {
        (self.covered.get(&bucket) == Some(&epoch)).then_some(self.position)
    }
}

/// A bucket that is owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Which bucket.
    pub bucket: Bucket,
    /// Which ownership of it.
    pub epoch: Epoch,
    /// Where to start reading: nothing of the bucket stands at or below this position.
    pub low_water: Position,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, Default)]
pub struct Leased {
    /// Every bucket that this relay owns now, lowest first. What is missing from it was lost.
    pub leases: Vec<Lease>,
    /// How many buckets are this relay's fair share: 256 divided by the live relays of the route, rounded up; 0 when it is counted
    /// out. What it owns beyond that, it should finish and release.
    pub fair_share: usize,
    /// How many live relays the route has, this one included.
    pub relays: usize,
    /// What operators have paused.
    pub paused: Paused,
    /// Whether every live relay of the route sent the same fingerprint.
    pub fingerprints_agree: bool,
    /// Which life of the database this is. Another one than in the answer before: what was committed in between may be lost, and nothing that
    /// is known of positions is worth anything. Always 0 where that can't happen to a relay that goes on.
    pub life: i64,
}

/// What operators have paused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paused {
    /// The whole route.
    pub route: bool,
    /// Single topics of it.
    pub topics: Vec<Topic>,
}

impl Paused {
    /// Whether this topic is not to be published now.
    #[must_use]
    pub fn covers(&self, topic: &Topic) -> bool {
        self.route || self.topics.contains(topic)
    }
}
