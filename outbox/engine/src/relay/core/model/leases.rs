//! Leases in the store of the model.

use std::time::Duration;

use outbox_contract::backend::{BucketSet, Epoch, Lease, LowWater, Position, RelayId};

use super::Sabotage;
use super::cast::{SLOTS, bucket_at};
use super::store::Store;

/// Ownership of a bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseRow {
    pub(super) owner: Option<RelayId>,
    pub(super) epoch: Epoch,
    pub(super) until: Duration,
    pub(super) low_water: Position,
}

/// Time that leases last.
pub(super) const LEASE: Duration = Duration::from_secs(15);

/// Returns true if a lease holds: its end is ahead, and not implausibly far.
fn is_live(until: Duration, now: Duration) -> bool {
    now < until && until - now <= LEASE * 2
}

impl Store {
    pub(super) fn owns(&self, relay: RelayId, slot: usize, now: Duration) -> bool {
        let lease = &self.leases[slot];
        lease.owner == Some(relay) && is_live(lease.until, now)
    }

    /// A heartbeat: what the relay owns now, and how many buckets are its share.
    pub(super) fn lease(
        &mut self,
        relay: RelayId,
        low_water: &LowWater,
        yielding: &BucketSet,
        now: Duration,
    ) -> (Vec<Lease>, usize) {
        self.save(relay, low_water, now);
        self.relays.insert(relay, now + LEASE);
        self.relays.retain(|_, until| is_live(*until, now));
        let share = self.share(relay);
        for slot in 0..SLOTS {
            let owns = self.owns(relay, slot, now);
            let row = &mut self.leases[slot];
            if row.owner == Some(relay) && !owns {
                // It comes back, if at all, under another epoch.
                row.owner = None;
            } else if owns && !yielding.contains(bucket_at(slot)) {
                row.until = now + LEASE;
            }
        }
        for slot in 0..SLOTS {
            let owned = (0..SLOTS).filter(|slot| self.owns(relay, *slot, now)).count();
            let row = &mut self.leases[slot];
            let is_free = row.owner.is_none() || !is_live(row.until, now);
            if is_free && owned < share && !yielding.contains(bucket_at(slot)) {
                (row.owner, row.until, row.epoch) = (Some(relay), now + LEASE, Epoch(row.epoch.0 + 1));
            }
        }
        let owned = (0..SLOTS).filter(|slot| self.owns(relay, *slot, now));
        (owned.map(|slot| self.told(slot)).collect(), share)
    }

    /// Returns the share of a relay: none if it gives way to another one.
    fn share(&self, relay: RelayId) -> usize {
        let counted = self.relays.keys().filter(|id| !self.giving_way.contains(id)).count();
        match counted {
            0 => SLOTS.div_ceil(self.relays.len()),
            _ if self.giving_way.contains(&relay) => 0,
            counted => SLOTS.div_ceil(counted),
        }
    }

    fn told(&self, slot: usize) -> Lease {
        let LeaseRow { epoch, mut low_water, .. } = self.leases[slot];
        if self.sabotage == Some(Sabotage::TakeoverAtLowest) {
            let rows = self.tables.hot.iter().filter(|(_, (_, stored))| stored.bucket == bucket_at(slot));
            low_water = rows.map(|(position, _)| position.before()).next().unwrap_or(low_water);
        }
        Lease { bucket: bucket_at(slot), epoch, low_water }
    }

    fn save(&mut self, relay: RelayId, low_water: &LowWater, now: Duration) {
        let covers_all = self.sabotage == Some(Sabotage::MarkCoversAll) && !low_water.covered.is_empty();
        let is_of_this_life = low_water.life == self.life || self.sabotage == Some(Sabotage::LifeIgnored);
        for slot in 0..SLOTS {
            let owns = self.owns(relay, slot, now);
            let row = &mut self.leases[slot];
            let mark = low_water.of(bucket_at(slot), row.epoch);
            let mark = mark.or(covers_all.then_some(low_water.position));
            if owns
                && is_of_this_life
                && let Some(mark) = mark
            {
                row.low_water = mark;
            }
        }
    }

    /// Gives buckets back.
    pub(super) fn give_back(
        &mut self,
        relay: RelayId,
        leases: &[Lease],
        low_water: &LowWater,
        (leaving, now): (bool, Duration),
    ) {
        self.save(relay, low_water, now);
        for slot in 0..SLOTS {
            let row = &mut self.leases[slot];
            let is_given =
                leases.iter().any(|lease| lease.bucket == bucket_at(slot) && lease.epoch == row.epoch);
            if row.owner == Some(relay) && (is_given || leaving) {
                row.owner = None;
            }
        }
        if leaving {
            self.relays.remove(&relay);
        }
    }
}
