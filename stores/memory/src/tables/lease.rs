//! Leases: who relays which buckets, until when, under which epoch.
//!
//! A lease runs out with its relay: the relay's row has the expiry. Only a bucket that is being given up has one of its own, so that later
//! heartbeats do not prolong it.

use std::time::Duration;

use outbox_contract::backend::{
    BUCKETS, Bucket, BucketSet, Epoch, Lease, LeaseRequest, Leased, LowWater, Paused, Position, RelayId,
};
use outbox_contract::{Route, Timestamp};

use super::Tables;
use super::route::RouteTables;

/// A relay, as its last heartbeat left it.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) label: String,
    pub(super) expires_at: Timestamp,
    lasts: Duration,
    /// Since when its transport has been away.
    unavailable_since: Option<Timestamp>,
    fingerprint: i64,
}

/// A bucket that is or was owned.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    owner: Option<RelayId>,
    epoch: Epoch,
    low_water: Position,
    /// When a bucket that is being given up is free, whatever its owner's heartbeats.
    until: Option<Timestamp>,
}

impl Relay {
    /// A lease that runs out later than twice its length from now was given by a clock that is not this one.
    pub(super) fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at > now && self.expires_at.since(now) <= self.lasts.saturating_mul(2)
    }

    /// Whether it has been dead for so long that nobody asks for it any more.
    pub(super) fn is_long_gone(&self, now: Timestamp) -> bool {
        !self.is_live(now) && now.since(self.expires_at) > self.lasts.saturating_mul(10)
    }

    /// Whether it is counted when the share is computed, while another's transport is to be had.
    fn is_of_use(&self, now: Timestamp) -> bool {
        self.unavailable_since.is_none_or(|since| now.since(since) <= self.lasts)
    }
}

impl Ownership {
    /// Takes over the mark, if it speaks of this lease.
    fn reach(&mut self, bucket: Bucket, low_water: &LowWater) {
        self.low_water = low_water.of(bucket, self.epoch).unwrap_or(self.low_water);
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
    ) {
        let Some(tables) = self.routes.get_mut(route) else { return };
        for lease in leases {
            if let Some(owned) = tables.owners.get_mut(&lease.bucket)
                && owned.owner == Some(relay)
                && owned.epoch == lease.epoch
            {
                owned.owner = None;
                owned.reach(lease.bucket, low_water);
            }
        }
        if leaving {
            tables.relays.remove(&relay);
        }
    }
}

impl RouteTables {
    /// The relay that owns a bucket now.
    pub(super) fn owner(&self, owned: &Ownership, now: Timestamp) -> Option<RelayId> {
        let relay = owned.owner.filter(|_| owned.until.is_none_or(|until| until > now))?;
        self.relays.get(&relay).is_some_and(|row| row.is_live(now)).then_some(relay)
    }

    /// Whether a relay of this route lives.
    pub(super) fn is_served(&self, now: Timestamp) -> bool {
        self.relays.values().any(|relay| relay.is_live(now))
    }

    /// The buckets that a relay owns now.
    pub(super) fn owned(&self, relay: RelayId, now: Timestamp) -> BucketSet {
        let owns = |owned: &Ownership| owned.owner == Some(relay) && self.owner(owned, now).is_some();
        self.owners.iter().filter(|(_, owned)| owns(owned)).map(|(bucket, _)| *bucket).collect()
    }

    /// Whether a relay owns a bucket now, under this epoch.
    pub(super) fn holds(&self, relay: RelayId, bucket: Bucket, epoch: Epoch, now: Timestamp) -> bool {
        let of_epoch = self.owners.get(&bucket).filter(|owned| owned.epoch == epoch);
        of_epoch.is_some_and(|owned| self.owner(owned, now) == Some(relay))
    }

    fn lease(&mut self, request: &LeaseRequest, now: Timestamp) -> Leased {
        let mut owned = self.owned(request.relay, now);
        let expired_at = self.heartbeat(request, now);
        for (bucket, lease) in &mut self.owners {
            if !owned.contains(*bucket) {
                // What ran out comes back, if at all, under another epoch.
                lease.owner = lease.owner.filter(|owner| *owner != request.relay);
                continue;
            }
            lease.reach(*bucket, &request.low_water);
            lease.until = match (request.yielding.contains(*bucket), lease.until) {
                (false, _) => None,
                (true, until) => until.or(expired_at),
            };
        }

        let (relays, fair_share) = self.fair_share(request.relay, now);
        for bucket in BucketSet::ALL.without(&owned).without(&request.yielding).iter() {
            if owned.len() >= fair_share {
                break;
            }
            let free = self.owners.get(&bucket).is_none_or(|lease| self.owner(lease, now).is_none());
            if free {
                let lease = self.owners.entry(bucket).or_default();
                lease.owner = Some(request.relay);
                lease.epoch = Epoch(lease.epoch.0 + 1);
                lease.until = None;
                owned.insert(bucket);
            }
        }

        let leases: Vec<Lease> = self
            .owners
            .iter()
            .filter(|(bucket, _)| owned.contains(**bucket))
            .map(|(bucket, lease)| Lease { bucket: *bucket, epoch: lease.epoch, low_water: lease.low_water })
            .collect();
        let mut fingerprints =
            self.relays.values().filter(|relay| relay.is_live(now)).map(|relay| relay.fingerprint);
        Leased {
            leases,
            fair_share,
            relays,
            paused: Paused { route: self.paused, topics: self.paused_topics.iter().cloned().collect() },
            fingerprints_agree: fingerprints.all(|fingerprint| fingerprint == request.fingerprint),
            life: 0,
        }
    }

    /// Prolongs a relay's life. Says until when it would have lasted, if it was alive.
    fn heartbeat(&mut self, request: &LeaseRequest, now: Timestamp) -> Option<Timestamp> {
        let before = self.relays.remove(&request.relay);
        let unavailable_since = before.as_ref().and_then(|relay| relay.unavailable_since).unwrap_or(now);
        let relay = Relay {
            label: request.label.clone(),
            expires_at: now.plus(request.lasts),
            lasts: request.lasts,
            unavailable_since: (!request.transport_available).then_some(unavailable_since),
            fingerprint: request.fingerprint,
        };
        self.relays.insert(request.relay, relay);
        before.filter(|relay| relay.is_live(now)).map(|relay| relay.expires_at)
    }

    /// How many live relays there are, and how many buckets are this one's share.
    fn fair_share(&self, relay: RelayId, now: Timestamp) -> (usize, usize) {
        let live: Vec<(&RelayId, &Relay)> =
            self.relays.iter().filter(|(_, relay)| relay.is_live(now)).collect();
        let any_available = live.iter().any(|(_, relay)| relay.unavailable_since.is_none());
        let counts = |relay: &Relay| !any_available || relay.is_of_use(now);
        let counted = live.iter().filter(|(_, relay)| counts(relay)).count();
        let is_counted = live.iter().any(|(id, row)| **id == relay && counts(row));
        (live.len(), if is_counted { BUCKETS.div_ceil(counted) } else { 0 })
    }
}
