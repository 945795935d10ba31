//! Owners of buckets, and the relays and routes of an outbox, as operators see them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::backend::rules::leases::{BucketRow, RelayRow};
use crate::backend::{Bucket, Epoch, Paused, Position, RelayId};
use crate::clock::Timestamp;
use crate::name::{Route, Topic};

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
    /// Returns this view of the rows of a route. A bucket may have no row yet. For authors of
    /// stores.
    #[must_use]
    pub fn of_rows(
        relays: impl IntoIterator<Item = (String, RelayRow)>,
        buckets: impl IntoIterator<Item = BucketRow>,
        paused: Paused,
        now: Timestamp,
    ) -> Self {
        let relays: BTreeMap<RelayId, (String, RelayRow)> =
            relays.into_iter().map(|(label, row)| (row.relay, (label, row))).collect();
        let rows: BTreeMap<Bucket, BucketRow> = buckets.into_iter().map(|row| (row.bucket, row)).collect();
        let row = |id| relays.get(&id).map(|(_, row)| row);
        let owner_of = |bucket: Bucket| {
            let bucket = rows.get(&bucket).copied().unwrap_or(BucketRow::new(bucket));
            let owner = bucket.owner(row, now);
            let until = owner.and_then(row).map(|row| row.expires_at);
            BucketOwner {
                bucket: bucket.bucket,
                owner,
                epoch: bucket.epoch,
                since: (bucket.epoch > Epoch(0)).then_some(bucket.since),
                until: until.map(|until| bucket.ends_at.map_or(until, |ends_at| ends_at.min(until))),
                yielding: owner.is_some() && bucket.ends_at.is_some(),
                low_water: bucket.low_water,
            }
        };
        let buckets: Vec<BucketOwner> = (0..=u8::MAX).map(Bucket).map(owner_of).collect();
        let status = |(label, row): &(String, RelayRow)| RelayStatus {
            relay: row.relay,
            label: label.clone(),
            live: row.is_live(now),
            expires_at: row.expires_at,
            lasts: row.lasts,
            unavailable_since: row.unavailable_since,
            fingerprint: row.fingerprint,
            buckets: buckets.iter().filter(|bucket| bucket.owner == Some(row.relay)).count(),
        };
        let relays = relays.values().map(status).collect();
        Self { relays, buckets, paused, now }
    }

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

/// Routes that a store has found in its tables, with their relays and pauses. For authors of
/// stores.
#[derive(Debug, Default)]
pub struct RouteTally(BTreeMap<Route, RouteStatus>);

impl RouteTally {
    /// Adds a route. Ignores a name that can be none; [`Store::unserved`](crate::Store::unserved)
    /// reports its messages.
    pub fn route(&mut self, name: &str) {
        self.status(name);
    }

    /// Adds a live relay of a route.
    pub fn relay(&mut self, route: &str) {
        if let Some(status) = self.status(route) {
            status.relays += 1;
        }
    }

    /// Adds a pause of a route; an empty topic means the whole route.
    pub fn pause(&mut self, route: &str, topic: &str) {
        let Some(status) = self.status(route) else { return };
        status.paused.route |= topic.is_empty();
        status.paused.topics.extend(Topic::new(topic));
        status.paused.topics.sort();
    }

    /// Returns the routes in the order of their names.
    #[must_use]
    pub fn finish(self) -> Vec<RouteStatus> {
        self.0.into_values().take(RouteStatus::MAX).collect()
    }

    fn status(&mut self, name: &str) -> Option<&mut RouteStatus> {
        let route = Route::new(name).ok()?;
        Some(self.0.entry(route.clone()).or_insert_with(|| RouteStatus::new(route)))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn relay(number: u128, expires_at: i64) -> (String, RelayRow) {
        let relay = RelayRow {
            relay: RelayId::from_uuid(Uuid::from_u128(number)),
            expires_at: Timestamp::from_micros(expires_at),
            lasts: S,
            unavailable_since: None,
            fingerprint: 7,
        };
        (format!("relay {number}"), relay)
    }

    #[test]
    fn a_bucket_belongs_to_a_live_relay_until_its_lease_ends() {
        let now = Timestamp::from_micros(1_000_000);
        let (live, dead) = (relay(1, 1_500_000), relay(2, 1_000_000));
        let row = |bucket, owner: &(String, RelayRow), ends_at: Option<i64>| BucketRow {
            owner: Some(owner.1.relay),
            epoch: Epoch(3),
            since: Timestamp::from_micros(9),
            ends_at: ends_at.map(Timestamp::from_micros),
            ..BucketRow::new(Bucket(bucket))
        };
        let rows = [
            row(0, &live, None),
            row(1, &live, Some(1_200_000)),
            row(2, &live, Some(1_000_000)),
            row(3, &dead, None),
        ];
        let view = Ownership::of_rows([live.clone(), dead], rows, Paused::default(), now);
        let told = |bucket| {
            let owner = view.owner(Bucket(bucket)).unwrap();
            (owner.owner.is_some(), owner.until.map(Timestamp::as_micros), owner.yielding, owner.epoch.0)
        };
        assert_eq!(told(0), (true, Some(1_500_000), false, 3));
        assert_eq!(told(1), (true, Some(1_200_000), true, 3), "what is given up ends earlier");
        assert_eq!(told(2), (false, None, false, 3), "its end is over");
        assert_eq!(told(3), (false, None, false, 3), "its relay is dead");
        assert_eq!(told(4), (false, None, false, 0), "it has no row");
        assert_eq!(view.owner(Bucket(4)).unwrap().since, None);
        assert_eq!(view.owner(Bucket(3)).unwrap().since, Some(Timestamp::from_micros(9)));
        assert_eq!(view.buckets.len(), 256);
        let relays: Vec<_> =
            view.relays.iter().map(|relay| (relay.label.as_str(), relay.live, relay.buckets)).collect();
        assert_eq!(relays, [("relay 1", true, 2), ("relay 2", false, 0)]);
        assert_eq!(view.relay(live.1.relay).unwrap().label, "relay 1");
    }

    #[test]
    fn routes_are_gathered_with_their_relays_and_pauses() {
        let mut tally = RouteTally::default();
        tally.route("b");
        tally.relay("a");
        tally.relay("a");
        tally.pause("a", "orders");
        tally.pause("a", "");
        tally.route("no\nroute");
        let told: Vec<_> = tally.finish().into_iter().map(|s| (s.route, s.relays, s.paused)).collect();
        let paused = Paused { route: true, topics: vec![Topic::new("orders").unwrap()] };
        let route = |name| Route::new(name).unwrap();
        assert_eq!(told, [(route("a"), 2, paused), (route("b"), 0, Paused::default())]);
    }
}
