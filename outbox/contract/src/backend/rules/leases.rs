//! The rule of leases: the changes that a heartbeat makes to the relays and buckets of a route.
//!
//! A lease expires with its relay: the relay's row has the end of its life. Only a bucket that is
//! being given up has an end of its own, so that later heartbeats do not extend it.
//!
//! A store does a heartbeat in one transaction that no other heartbeat, release or key transition
//! of the route can interleave with: it reads the database's clock and the rows, asks
//! [`heartbeat`], and writes the relay and the changed buckets.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{later, micros};
use crate::admin::{BucketOwner, Ownership, RelayStatus};
use crate::backend::{BUCKETS, Bucket, Lease, LeaseRequest, Leased, LowWater, Paused};
use crate::clock::Timestamp;
use crate::id::{Epoch, Position, RelayId};

/// A relay, as its last heartbeat left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayRow {
    /// The relay.
    pub relay: RelayId,
    /// End of its life.
    pub expires_at: Timestamp,
    /// Duration of its leases.
    pub lasts: Duration,
    /// Time since when its transport has been unreachable, or since when it gives way.
    pub unavailable_since: Option<Timestamp>,
    /// Fingerprint of its routes and policies.
    pub fingerprint: i64,
}

impl RelayRow {
    /// Returns true if the relay is alive. A life that ends later than twice its length from now
    /// was given by another clock, before a failover to a slower one, and is over.
    #[must_use]
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at > now && self.expires_at.since(now) <= self.lasts.saturating_mul(2)
    }

    /// Returns true if the relay counts while another one's transport is reachable: its own has not
    /// been unreachable for longer than a lease.
    fn is_of_use(&self, now: Timestamp) -> bool {
        self.unavailable_since.is_none_or(|since| now.since(since) <= self.lasts)
    }
}

/// A bucket of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketRow {
    /// The bucket.
    pub bucket: Bucket,
    /// The relay that owns it, while that relay is alive.
    pub owner: Option<RelayId>,
    /// Epoch of the last ownership; 0 before the first.
    pub epoch: Epoch,
    /// Start of the last ownership.
    pub since: Timestamp,
    /// Position at or below which the bucket has no row.
    pub low_water: Position,
    /// End of the lease of a bucket that is being given up.
    pub ends_at: Option<Timestamp>,
}

impl BucketRow {
    /// Returns a bucket without an owner so far.
    #[must_use]
    pub const fn new(bucket: Bucket) -> Self {
        Self {
            bucket,
            owner: None,
            epoch: Epoch(0),
            since: Timestamp::from_micros(0),
            low_water: Position(0),
            ends_at: None,
        }
    }

    /// Returns the owner of the bucket now. `relay` finds the row of a relay.
    #[must_use]
    pub fn owner<'r>(
        &self,
        relay: impl FnOnce(RelayId) -> Option<&'r RelayRow>,
        now: Timestamp,
    ) -> Option<RelayId> {
        let owner = self.owner.filter(|_| self.ends_at.is_none_or(|ends_at| ends_at > now))?;
        relay(owner).is_some_and(|row| row.is_live(now)).then_some(owner)
    }

    /// Saves the mark for the next owner, if it covers this lease.
    fn reach(&mut self, low_water: &LowWater) {
        self.low_water = low_water.of(self.bucket, self.epoch).unwrap_or(self.low_water);
    }
}

/// The result of a heartbeat.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Heartbeat {
    /// The relay's row, to be written.
    pub relay: RelayRow,
    /// The buckets to be written: those that changed, and those that had no row yet. Each is owned
    /// by this relay or has no owner.
    pub changed: Vec<BucketRow>,
    /// The answer, without [`paused`](Leased::paused) and [`life`](Leased::life).
    pub leased: Leased,
}

/// Performs a relay's heartbeat: extends its life and its leases, frees what it has lost, and
/// acquires free buckets, the lowest ones, up to its fair share. `relays` are all relays of the
/// route, alive or not. A bucket may have no row yet.
#[must_use]
pub fn heartbeat(
    relays: impl IntoIterator<Item = RelayRow>,
    buckets: impl IntoIterator<Item = BucketRow>,
    request: &LeaseRequest,
    now: Timestamp,
) -> Heartbeat {
    let mut relays: BTreeMap<RelayId, RelayRow> = relays.into_iter().map(|row| (row.relay, row)).collect();
    let before: BTreeMap<Bucket, BucketRow> = buckets.into_iter().map(|row| (row.bucket, row)).collect();
    let mut rows: Vec<BucketRow> = (0..=u8::MAX)
        .map(Bucket)
        .map(|bucket| before.get(&bucket).copied().unwrap_or(BucketRow::new(bucket)))
        .collect();

    let kept_until = relays.get(&request.relay).map(|row| row.expires_at);
    for row in rows.iter_mut().filter(|row| row.owner == Some(request.relay)) {
        if row.owner(|id| relays.get(&id), now).is_none() {
            // An expired lease comes back, if at all, under another epoch.
            (row.owner, row.ends_at) = (None, None);
            continue;
        }
        row.reach(&request.low_water);
        row.ends_at = row.ends_at.or(kept_until).filter(|_| request.yielding.contains(row.bucket));
    }
    let relay = renewed(relays.get(&request.relay), request, now);
    relays.insert(request.relay, relay);

    let fair_share = fair_share(relays.values(), request.relay, now);
    let owned = rows.iter().filter(|row| row.owner == Some(request.relay)).count();
    let is_free = |row: &&mut BucketRow| {
        row.owner(|id| relays.get(&id), now).is_none() && !request.yielding.contains(row.bucket)
    };
    for row in rows.iter_mut().filter(is_free).take(fair_share.saturating_sub(owned)) {
        (row.owner, row.ends_at) = (Some(request.relay), None);
        (row.epoch, row.since) = (Epoch(row.epoch.0 + 1), now);
    }

    let live = relays.values().filter(|row| row.is_live(now));
    let fingerprints: BTreeSet<i64> = live.clone().map(|row| row.fingerprint).collect();
    let mine = rows.iter().filter(|row| row.owner == Some(request.relay));
    let leased = Leased {
        leases: mine
            .map(|row| Lease { bucket: row.bucket, epoch: row.epoch, low_water: row.low_water })
            .collect(),
        fair_share,
        relays: live.count(),
        paused: Paused::default(),
        fingerprints_agree: fingerprints.len() <= 1,
        now,
        life: 0,
        recheck: None,
    };
    rows.retain(|row| before.get(&row.bucket) != Some(row));
    Heartbeat { relay, changed: rows, leased }
}

/// Returns the relay's row after this heartbeat.
fn renewed(before: Option<&RelayRow>, request: &LeaseRequest, now: Timestamp) -> RelayRow {
    let unavailable_since = before.and_then(|row| row.unavailable_since).unwrap_or(now);
    RelayRow {
        relay: request.relay,
        expires_at: later(now, request.lasts),
        lasts: Duration::from_micros(u64::try_from(micros(request.lasts)).unwrap_or_default()),
        unavailable_since: (!request.transport_available).then_some(unavailable_since),
        fingerprint: request.fingerprint,
    }
}

/// Returns the number of buckets that are a relay's share: all of them divided by the relays that
/// count, rounded up; 0 if it does not count itself. A relay that has been without its transport
/// for longer than a lease does not count while another has one.
fn fair_share<'r>(relays: impl Iterator<Item = &'r RelayRow>, relay: RelayId, now: Timestamp) -> usize {
    let live: Vec<&RelayRow> = relays.filter(|row| row.is_live(now)).collect();
    let another_has = live.iter().any(|row| row.unavailable_since.is_none());
    let counted: Vec<&&RelayRow> = live.iter().filter(|row| !another_has || row.is_of_use(now)).collect();
    if counted.iter().any(|row| row.relay == relay) { BUCKETS.div_ceil(counted.len()) } else { 0 }
}

/// Frees buckets that are still this relay's under these epochs, and saves the marks of those whose
/// leases have not expired. `relays` are all relays of the route, or this one alone. Returns the
/// buckets to be written.
#[must_use]
pub fn give_back(
    relays: impl IntoIterator<Item = RelayRow>,
    buckets: impl IntoIterator<Item = BucketRow>,
    relay: RelayId,
    (leases, low_water): (&[Lease], &LowWater),
    now: Timestamp,
) -> Vec<BucketRow> {
    let giver = relays.into_iter().find(|row| row.relay == relay);
    let given: BTreeMap<Bucket, Epoch> = leases.iter().map(|lease| (lease.bucket, lease.epoch)).collect();
    let mut changed: Vec<BucketRow> = buckets
        .into_iter()
        .filter(|row| row.owner == Some(relay) && given.get(&row.bucket) == Some(&row.epoch))
        .collect();
    for row in &mut changed {
        if row.owner(|_| giver.as_ref(), now).is_some() {
            row.reach(low_water);
        }
        (row.owner, row.ends_at) = (None, None);
    }
    changed
}

/// Returns what operators see of the rows of a route. A bucket may have no row yet.
#[must_use]
pub fn ownership(
    relays: impl IntoIterator<Item = (String, RelayRow)>,
    buckets: impl IntoIterator<Item = BucketRow>,
    paused: Paused,
    now: Timestamp,
) -> Ownership {
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
    Ownership { relays, buckets, paused, now }
}

#[cfg(test)]
mod tests;
