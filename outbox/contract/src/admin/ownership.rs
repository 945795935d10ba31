//! Owners of buckets, and the relays and routes of an outbox, as operators see them.

use std::time::Duration;

use crate::backend::{Bucket, Epoch, Paused, Position, RelayId};
use crate::clock::Timestamp;
use crate::name::Route;

/// Relays of a route, the owner of each bucket, and the pauses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ownership {
    /// Relays that were seen recently, alive or not, by their ids.
    pub relays: Vec<RelayStatus>,
    /// All buckets, lowest first.
    pub buckets: Vec<BucketOwner>,
    /// Pauses set by operators.
    pub paused: Paused,
    /// Time of this view, by the database's clock.
    pub now: Timestamp,
}

/// A relay of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayStatus {
    /// Id of this life of the relay.
    pub relay: RelayId,
    /// Its name for people.
    pub label: String,
    /// True if its last heartbeat is still valid.
    pub live: bool,
    /// End of its life, unless another heartbeat extends it.
    pub expires_at: Timestamp,
    /// Duration of its leases.
    pub lasts: Duration,
    /// Time since when its transport has been unreachable. A member of a consumer gives way since
    /// then (its program is too old for a message that waits), or its handlers are unavailable.
    pub unavailable_since: Option<Timestamp>,
    /// Fingerprint of its routes and policies: relays of a route should have the same.
    pub fingerprint: i64,
    /// Number of buckets that it owns now.
    pub buckets: usize,
}

/// A bucket of a route, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BucketOwner {
    /// The bucket.
    pub bucket: Bucket,
    /// The live relay that owns it.
    pub owner: Option<RelayId>,
    /// Epoch of the last ownership; 0 before the first.
    pub epoch: Epoch,
    /// Start of the last ownership; `None` before the first.
    pub since: Option<Timestamp>,
    /// End of the lease, unless a heartbeat extends it; `None` without an owner.
    pub until: Option<Timestamp>,
    /// True if the owner is giving the bucket up.
    pub yielding: bool,
    /// Position at or below which the bucket has no message, as far as an owner has saved it.
    pub low_water: Position,
}

impl Ownership {
    /// Returns the owner of a bucket.
    #[must_use]
    pub fn owner(&self, bucket: Bucket) -> Option<&BucketOwner> {
        self.buckets.iter().find(|owner| owner.bucket == bucket)
    }

    /// Returns a relay by its id.
    #[must_use]
    pub fn relay(&self, relay: RelayId) -> Option<&RelayStatus> {
        self.relays.iter().find(|status| status.relay == relay)
    }
}

/// A route of an outbox: one that has messages, relays or pauses, or had them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteStatus {
    /// The route.
    pub route: Route,
    /// Pauses set by operators.
    pub paused: Paused,
    /// Number of live relays.
    pub relays: usize,
}

impl RouteStatus {
    /// Maximum number of routes in one answer.
    pub const MAX: usize = 1_000;

    /// Creates a route without pauses and relays.
    #[must_use]
    pub fn new(route: Route) -> Self {
        Self { route, paused: Paused::default(), relays: 0 }
    }
}
