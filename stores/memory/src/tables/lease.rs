//! Leases: the owner of each bucket, until when, under which epoch.

use outbox_contract::backend::rules::leases::{self, BucketRow, Heartbeat, RelayRow};
use outbox_contract::backend::{
    Bucket, BucketSet, Epoch, Lease, LeaseRequest, Leased, LowWater, Paused, RelayId,
};
use outbox_contract::{Route, Timestamp};

use super::Tables;
use super::route::RouteTables;

/// A relay, as its last heartbeat left it.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) label: String,
    pub(super) row: RelayRow,
}

impl Relay {
    /// Returns true if the relay is alive.
    pub(super) fn is_live(&self, now: Timestamp) -> bool {
        self.row.is_live(now)
    }

    /// Returns true if it has been dead for so long that it is of no more interest.
    pub(super) fn is_long_gone(&self, now: Timestamp) -> bool {
        !self.is_live(now) && now.since(self.row.expires_at) > self.row.lasts.saturating_mul(10)
    }
}

impl Tables {
    pub(crate) fn lease(&mut self, request: &LeaseRequest, now: Timestamp) -> Leased {
        self.route(&request.route).lease(request, now)
    }

    pub(crate) fn release_leases(
        &mut self,
        relay: RelayId,
        route: &Route,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
        now: Timestamp,
    ) {
        let Some(tables) = self.routes.get_mut(route) else { return };
        let (giver, owners) =
            (tables.relays.get(&relay).map(|relay| relay.row), tables.owners.values().copied());
        tables.put_buckets(leases::give_back(giver, owners, relay, (leases, low_water), now));
        if leaving {
            tables.relays.remove(&relay);
        }
    }
}

impl RouteTables {
    /// Returns the relay that owns a bucket now.
    pub(super) fn owner(&self, bucket: &BucketRow, now: Timestamp) -> Option<RelayId> {
        bucket.owner(|id| self.relays.get(&id).map(|relay| &relay.row), now)
    }

    /// Returns true if a relay of this route lives.
    pub(super) fn is_served(&self, now: Timestamp) -> bool {
        self.relays.values().any(|relay| relay.is_live(now))
    }

    /// Returns the buckets that a relay owns now.
    pub(super) fn owned(&self, relay: RelayId, now: Timestamp) -> BucketSet {
        let owned = self.owners.values().filter(|row| self.owner(row, now) == Some(relay));
        owned.map(|row| row.bucket).collect()
    }

    /// Returns true if a relay owns a bucket now, under this epoch.
    pub(super) fn holds(&self, relay: RelayId, bucket: Bucket, epoch: Epoch, now: Timestamp) -> bool {
        let of_epoch = self.owners.get(&bucket).filter(|row| row.epoch == epoch);
        of_epoch.is_some_and(|row| self.owner(row, now) == Some(relay))
    }

    fn lease(&mut self, request: &LeaseRequest, now: Timestamp) -> Leased {
        let relays = self.relays.values().map(|relay| relay.row);
        let Heartbeat { relay, changed, mut leased, .. } =
            leases::heartbeat(relays, self.owners.values().copied(), request, now);
        self.relays.insert(request.relay, Relay { label: request.label.clone(), row: relay });
        self.put_buckets(changed);
        leased.paused = self.pauses();
        leased
    }

    pub(super) fn pauses(&self) -> Paused {
        Paused::new(self.paused, self.paused_topics.iter().cloned().collect())
    }

    fn put_buckets(&mut self, rows: Vec<BucketRow>) {
        self.owners.extend(rows.into_iter().map(|row| (row.bucket, row)));
    }
}
