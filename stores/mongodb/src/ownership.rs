//! Who owns which bucket of a route: decided here, without a call and without a clock; [`lease`](crate::lease) carries it out.
//!
//! All of a route is one document, so that a heartbeat sees and changes one state of it. Whoever changes it does so from the version that was
//! read, and only if nobody was faster: what was decided is true when it is written.

use std::collections::BTreeSet;
use std::time::Duration;

use mongodb::bson::DateTime;
use outbox_contract::backend::{
    BUCKETS, Bucket, BucketSet, Epoch, Lease, LeaseRequest, Leased, LowWater, Paused, Position, RelayId,
};
use outbox_contract::{Route, Topic};
use serde::{Deserialize, Serialize};

/// A route: its relays, its buckets, and what operators have paused. Instants and spans are microseconds of the database's clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ownership {
    #[serde(rename = "_id")]
    route: String,
    /// Counts the changes of who owns what.
    pub(crate) version: i64,
    /// Counts the steps of failing keys; whoever takes one changes the document by it.
    pub(crate) steps: i64,
    pub(crate) relays: Vec<Member>,
    /// Of each bucket, how many owners it has had.
    pub(crate) epochs: Vec<i64>,
    /// Of each bucket, the position at or below which nothing stands any more.
    pub(crate) low_waters: Vec<i64>,
    /// Topics; an empty one stands for the whole route.
    pub(crate) paused: Vec<String>,
    /// When the document was read; not a part of it.
    #[serde(default, skip_serializing)]
    now: Option<DateTime>,
}

/// A relay, alive while `expires_at` is ahead, and not implausibly far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Member {
    relay: String,
    label: String,
    expires_at: i64,
    lasts: i64,
    unavailable_since: Option<i64>,
    fingerprint: i64,
    buckets: Vec<i32>,
    /// Buckets that it gives up, and until when it keeps them.
    yields: Vec<Yielded>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Yielded {
    bucket: i32,
    until: i64,
}

impl Member {
    fn new(relay: String) -> Self {
        Self {
            relay,
            label: String::new(),
            expires_at: 0,
            lasts: 0,
            unavailable_since: None,
            fingerprint: 0,
            buckets: Vec::new(),
            yields: Vec::new(),
        }
    }

    /// Alive, and not so far ahead that the clock must have been set back: a failover to a slow one.
    fn lives(&self, now: i64) -> bool {
        self.expires_at > now && self.expires_at <= now.saturating_add(self.lasts.saturating_mul(2))
    }

    fn keeps(&self, bucket: i32, now: i64) -> bool {
        self.buckets.contains(&bucket)
            && self.yields.iter().all(|yielded| yielded.bucket != bucket || yielded.until > now)
    }

    fn owned(&self, now: i64) -> BucketSet {
        let owned = self.buckets.iter().filter(|bucket| self.lives(now) && self.keeps(**bucket, now));
        owned.filter_map(|bucket| u8::try_from(*bucket).ok()).map(Bucket).collect()
    }

    fn loses(&mut self, bucket: Bucket) {
        let bucket = i32::from(bucket.0);
        self.buckets.retain(|owned| *owned != bucket);
        self.yields.retain(|yielded| yielded.bucket != bucket);
    }

    /// A heartbeat: its life is extended, and what it owns with it. One whose life was over owns nothing any more.
    fn beat(&mut self, request: &LeaseRequest, now: i64) {
        let (was_over, kept_until) = (!self.lives(now), self.expires_at);
        let kept: Vec<i32> =
            self.buckets.iter().copied().filter(|bucket| !was_over && self.keeps(*bucket, now)).collect();
        let yields = kept.iter().filter(|bucket| {
            u8::try_from(**bucket).is_ok_and(|bucket| request.yielding.contains(Bucket(bucket)))
        });
        self.yields = yields
            .map(|bucket| {
                let before = self.yields.iter().find(|yielded| yielded.bucket == *bucket);
                Yielded { bucket: *bucket, until: before.map_or(kept_until, |yielded| yielded.until) }
            })
            .collect();
        self.buckets = kept;
        self.label.clone_from(&request.label);
        self.lasts = micros(request.lasts);
        self.expires_at = now.saturating_add(self.lasts);
        self.fingerprint = request.fingerprint;
        self.unavailable_since =
            if request.transport_available { None } else { self.unavailable_since.or(Some(now)) };
    }
}

impl Ownership {
    /// A route that no relay has been seen on.
    pub(crate) fn new(route: &Route) -> Self {
        Self {
            route: route.as_str().to_owned(),
            version: 0,
            steps: 0,
            relays: Vec::new(),
            epochs: vec![0; BUCKETS],
            low_waters: vec![0; BUCKETS],
            paused: Vec::new(),
            now: None,
        }
    }

    /// The database's clock when this was read.
    pub(crate) fn now(&self) -> i64 {
        self.now.map_or(0, |now| now.timestamp_millis().saturating_mul(1_000))
    }

    /// Whether this is what the store writes: an epoch and a low-water mark for each bucket.
    pub(crate) fn is_whole(&self) -> bool {
        self.epochs.len() == BUCKETS && self.low_waters.len() == BUCKETS
    }

    fn member(&self, relay: RelayId) -> Option<&Member> {
        let relay = relay.to_string();
        self.relays.iter().find(|member| member.relay == relay)
    }

    /// The buckets that a relay owns now.
    pub(crate) fn owned(&self, relay: RelayId) -> BucketSet {
        self.member(relay).map_or(BucketSet::EMPTY, |member| member.owned(self.now()))
    }

    /// The buckets that some live relay owns now.
    pub(crate) fn owned_by_anybody(&self) -> BucketSet {
        let owned = self.relays.iter().map(|member| member.owned(self.now()));
        owned.fold(BucketSet::EMPTY, |all, owned| all.union(&owned))
    }

    /// Whether a relay owns a bucket now, under this epoch.
    pub(crate) fn holds(&self, relay: RelayId, bucket: Bucket, epoch: Epoch) -> bool {
        self.owned(relay).contains(bucket) && self.epochs.get(usize::from(bucket.0)) == Some(&epoch.0)
    }

    /// A relay's heartbeat, and what it owns afterwards.
    pub(crate) fn beat(&mut self, request: &LeaseRequest) -> Leased {
        let now = self.now();
        let id = request.relay.to_string();
        let at = self.relays.iter().position(|member| member.relay == id).unwrap_or_else(|| {
            self.relays.push(Member::new(id));
            self.relays.len() - 1
        });
        self.relays[at].beat(request, now);
        for bucket in self.relays[at].owned(now).iter() {
            self.reach(bucket, &request.low_water);
        }

        let fair_share = self.fair_share(at, now);
        for bucket in self.to_acquire(at, fair_share, &request.yielding).iter() {
            self.relays.iter_mut().for_each(|member| member.loses(bucket));
            self.relays[at].buckets.push(i32::from(bucket.0));
            self.epochs[usize::from(bucket.0)] += 1;
        }
        self.relays[at].buckets.sort_unstable();
        let leases = self.relays[at].owned(now).iter().map(|bucket| Lease {
            bucket,
            epoch: Epoch(self.epochs[usize::from(bucket.0)]),
            low_water: Position(self.low_waters[usize::from(bucket.0)]),
        });
        let live = self.relays.iter().filter(|member| member.lives(now));
        let fingerprints: BTreeSet<i64> = live.clone().map(|member| member.fingerprint).collect();
        Leased {
            leases: leases.collect(),
            fair_share,
            relays: live.count(),
            paused: self.paused(),
            fingerprints_agree: fingerprints.len() <= 1,
            // Where there are stripes no mark passes anything.
            life: 0,
        }
    }

    /// Takes over the mark of a bucket, if it speaks of that lease.
    fn reach(&mut self, bucket: Bucket, low_water: &LowWater) {
        let index = usize::from(bucket.0);
        if let Some(position) = low_water.of(bucket, Epoch(self.epochs[index])) {
            self.low_waters[index] = position.0;
        }
    }

    /// How many buckets are a relay's: all of them divided by the relays that count, rounded up. A relay that has been without its transport
    /// for longer than a lease does not count while another has one.
    fn fair_share(&self, at: usize, now: i64) -> usize {
        let live: Vec<&Member> = self.relays.iter().filter(|member| member.lives(now)).collect();
        let another_has = live.iter().any(|member| member.unavailable_since.is_none());
        let counts = |member: &&&Member| {
            let cut_off = |since: i64| now.saturating_sub(since) > member.lasts;
            !another_has || !member.unavailable_since.is_some_and(cut_off)
        };
        let counted: Vec<&&Member> = live.iter().filter(counts).collect();
        let me = &self.relays[at].relay;
        if counted.iter().any(|member| member.relay == *me) { BUCKETS.div_ceil(counted.len()) } else { 0 }
    }

    /// Free buckets that a relay may take: the lowest ones, up to its share, but none that it is giving up.
    fn to_acquire(&self, at: usize, fair_share: usize, yielding: &BucketSet) -> BucketSet {
        let owned = self.relays[at].owned(self.now()).len();
        let free = BucketSet::ALL.without(&self.owned_by_anybody()).without(yielding);
        free.iter().take(fair_share.saturating_sub(owned)).collect()
    }

    /// Frees buckets that are still this relay's under these epochs.
    pub(crate) fn give_back(
        &mut self,
        relay: RelayId,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) {
        let id = relay.to_string();
        let Some(at) = self.relays.iter().position(|member| member.relay == id) else { return };
        for lease in leases {
            let index = usize::from(lease.bucket.0);
            let is_its_own = self.relays[at].buckets.contains(&i32::from(lease.bucket.0));
            if is_its_own && self.epochs[index] == lease.epoch.0 {
                self.relays[at].loses(lease.bucket);
                self.reach(lease.bucket, low_water);
            }
        }
        if leaving {
            self.relays.remove(at);
        }
    }

    /// Removes relays whose life has been over for so long. Says how many.
    pub(crate) fn bury_relays(&mut self, kept: Duration) -> u64 {
        let (now, kept) = (self.now(), micros(kept));
        let before = self.relays.len();
        self.relays.retain(|member| {
            member.expires_at >= now.saturating_sub(kept)
                && member.expires_at
                    <= now.saturating_add(member.lasts.saturating_mul(2)).saturating_add(kept)
        });
        u64::try_from(before - self.relays.len()).unwrap_or_default()
    }

    fn paused(&self) -> Paused {
        let mut topics: Vec<Topic> = self.paused.iter().filter_map(|topic| Topic::new(topic).ok()).collect();
        topics.sort();
        Paused { route: self.paused.iter().any(String::is_empty), topics }
    }
}

/// A span as the collections have it.
pub(crate) fn micros(span: Duration) -> i64 {
    // An eighth of the range: several can be added to an instant.
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX).min(i64::MAX / 8)
}

#[cfg(test)]
mod tests;
