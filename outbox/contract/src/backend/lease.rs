//! Leases: a relay's time-limited ownership of buckets.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::backend::{Bucket, BucketSet, Epoch, Position, RelayId};
use crate::clock::Timestamp;
use crate::name::{Route, Topic};

/// One heartbeat of a relay.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LeaseRequest {
    /// The relay that asks: each life of a relay has a fresh id.
    pub relay: RelayId,
    /// Human-readable name of this relay. It affects no decision.
    pub label: String,
    /// The route whose buckets are asked for.
    pub route: Route,
    /// Duration of leases from this heartbeat on, by the database's clock.
    pub lasts: Duration,
    /// True if this relay's transport is reachable. A relay whose transport is unreachable for
    /// longer than a lease is excluded from the share computation, while another relay's transport
    /// is reachable. A member of a consumer also says false while it gives way to members whose
    /// programs are newer.
    pub transport_available: bool,
    /// Fingerprint of this relay's routes and policies; the relays of one route should agree.
    pub fingerprint: i64,
    /// Read progress of the relay, and the buckets that it covers. Saved for the next owner.
    pub low_water: LowWater,
    /// Buckets that the relay is giving up: the store neither extends their leases nor lets the
    /// relay acquire them again now.
    pub yielding: BucketSet,
}

impl LeaseRequest {
    /// Creates the heartbeat of a relay whose transport is reachable, and which has read nothing
    /// yet.
    #[must_use]
    pub fn new(relay: RelayId, route: Route, lasts: Duration) -> Self {
        Self {
            relay,
            label: String::new(),
            route,
            lasts,
            transport_available: true,
            fingerprint: 0,
            low_water: LowWater::default(),
            yielding: BucketSet::default(),
        }
    }
}

/// A low-water mark: in the leases that it covers, no row exists at or below it, and none can be
/// committed there.
///
/// The mark is valid for these leases only. A relay may own more than it knows: by a heartbeat
/// whose answer was lost, or has not been processed yet. For a lease that is not covered, the store
/// keeps and reports its existing mark. A relay that has read nothing yet covers nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LowWater {
    /// The mark.
    pub position: Position,
    /// The leases that the mark covers.
    pub covered: BTreeMap<Bucket, Epoch>,
    /// The life of the database in which the relay found the mark, as the heartbeat answers
    /// reported it. In another life, other messages may have reused the positions that the mark
    /// passes, so the store ignores the mark.
    pub life: i64,
}

impl LowWater {
    /// Creates a mark.
    #[must_use]
    pub const fn new(position: Position, covered: BTreeMap<Bucket, Epoch>, life: i64) -> Self {
        Self { position, covered, life }
    }

    /// Returns the mark for this lease, if the mark covers it.
    #[must_use]
    pub fn of(&self, bucket: Bucket, epoch: Epoch) -> Option<Position> {
        (self.covered.get(&bucket) == Some(&epoch)).then_some(self.position)
    }
}

/// Name of an ownership, and where it begins to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The bucket.
    pub bucket: Bucket,
    /// Epoch of the ownership.
    pub epoch: Epoch,
    /// Position at which to start reading: the bucket has no row at or below it.
    pub low_water: Position,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Leased {
    /// Every bucket that this relay now owns, lowest first. A missing bucket was lost.
    pub leases: Vec<Lease>,
    /// This relay's fair share of buckets: 256 divided by the live relays of the route, rounded up;
    /// 0 if the relay is excluded. It should finish and release the buckets that it owns beyond its
    /// share.
    pub fair_share: usize,
    /// Number of live relays of the route, this one included.
    pub relays: usize,
    /// Pauses set by operators.
    pub paused: Paused,
    /// True if every live relay of the route sent the same fingerprint.
    pub fingerprints_agree: bool,
    /// Time of the heartbeat, by the database's clock. A relay tells the age of messages by it, so
    /// that its own machine's clock may be wrong.
    pub now: Timestamp,
    /// Identifies the current life of the database. If it differs from the previous answer, commits
    /// in between may be lost, and all known positions are invalid. Always 0 on stores where a
    /// running relay can't experience this.
    pub life: i64,
    /// Time after which to ask again, if that is before the next heartbeat, on a store that sees
    /// when the sessions of other relays end: their buckets may be free then.
    pub recheck: Option<Duration>,
}

/// Pauses set by operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Paused {
    /// The whole route.
    pub route: bool,
    /// Single topics of it.
    pub topics: Vec<Topic>,
}

impl Paused {
    /// Creates the pauses of a route.
    #[must_use]
    pub const fn new(route: bool, topics: Vec<Topic>) -> Self {
        Self { route, topics }
    }

    /// Returns true if publishing of this topic is paused.
    #[must_use]
    pub fn covers(&self, topic: &Topic) -> bool {
        self.route || self.topics.contains(topic)
    }
}
