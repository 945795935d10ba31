//! Ownership of the buckets of a route: decided without a call and without a clock;
//! [`lease`](crate::lease) carries it out.
//!
//! All of a route is one document, so that a heartbeat sees and changes one state of it. A relay
//! writes only over the version that it has read: a decision is still true when it is written.

use std::collections::BTreeMap;
use std::time::Duration;

use mongodb::bson::DateTime;
use outbox_contract::backend::rules::leases::{self, BucketRow, Heartbeat, RelayRow};
use outbox_contract::backend::rules::micros;
use outbox_contract::backend::{
    BUCKETS, Bucket, BucketSet, Epoch, Lease, LeaseRequest, Leased, LowWater, Paused, Position, RelayId,
};
use outbox_contract::{Route, Timestamp, Topic, admin};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A route: its relays, its buckets, and what operators have paused. Instants and spans are
/// microseconds of the database's clock.
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
    /// Of each bucket, the start of its last ownership.
    pub(crate) sinces: Vec<i64>,
    /// Of each bucket, the position at or below which nothing stands any more.
    pub(crate) low_waters: Vec<i64>,
    /// Topics; an empty one stands for the whole route.
    pub(crate) paused: Vec<String>,
    /// Time at which the document was read; not a part of it.
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
    /// Returns the relay as the rule takes it.
    fn row(&self) -> RelayRow {
        RelayRow {
            relay: self.relay.parse().unwrap_or(RelayId::from_uuid(Uuid::nil())),
            expires_at: Timestamp::from_micros(self.expires_at),
            lasts: Duration::from_micros(u64::try_from(self.lasts).unwrap_or_default()),
            unavailable_since: self.unavailable_since.map(Timestamp::from_micros),
            fingerprint: self.fingerprint,
        }
    }

    fn ends_at(&self, bucket: i32) -> Option<i64> {
        self.yields.iter().find(|yielded| yielded.bucket == bucket).map(|yielded| yielded.until)
    }

    fn loses(&mut self, bucket: i32) {
        self.buckets.retain(|owned| *owned != bucket);
        self.yields.retain(|yielded| yielded.bucket != bucket);
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
            sinces: vec![0; BUCKETS],
            low_waters: vec![0; BUCKETS],
            paused: Vec::new(),
            now: None,
        }
    }

    /// The database's clock when this was read.
    pub(crate) fn now(&self) -> i64 {
        self.now.map_or(0, |now| now.timestamp_millis().saturating_mul(1_000))
    }

    /// Returns true if this is what the store writes: an epoch, its beginning and a low-water mark
    /// for each bucket.
    pub(crate) fn is_whole(&self) -> bool {
        [&self.epochs, &self.sinces, &self.low_waters].iter().all(|marks| marks.len() == BUCKETS)
    }

    /// Returns the buckets as the rule takes them.
    fn rows(&self) -> Vec<BucketRow> {
        let marks = self.epochs.iter().zip(&self.sinces).zip(&self.low_waters);
        let mut rows: Vec<BucketRow> = (0..=u8::MAX)
            .zip(marks)
            .map(|(bucket, ((epoch, since), low_water))| BucketRow {
                epoch: Epoch(*epoch),
                since: Timestamp::from_micros(*since),
                low_water: Position(*low_water),
                ..BucketRow::new(Bucket(bucket))
            })
            .collect();
        for member in &self.relays {
            for bucket in &member.buckets {
                if let Some(row) = usize::try_from(*bucket).ok().and_then(|at| rows.get_mut(at)) {
                    row.owner = member.relay.parse().ok();
                    row.ends_at = member.ends_at(*bucket).map(Timestamp::from_micros);
                }
            }
        }
        rows
    }

    /// Takes over buckets that changed.
    fn put(&mut self, changed: &[BucketRow]) {
        for row in changed {
            let (bucket, index) = (i32::from(row.bucket.0), usize::from(row.bucket.0));
            (self.epochs[index], self.low_waters[index]) = (row.epoch.0, row.low_water.0);
            self.sinces[index] = row.since.as_micros();
            self.relays.iter_mut().for_each(|member| member.loses(bucket));
            let owner = row.owner.map(|owner| owner.to_string());
            if let Some(member) = self.relays.iter_mut().find(|member| Some(&member.relay) == owner.as_ref())
            {
                member.buckets.push(bucket);
                member.buckets.sort_unstable();
                let until = row.ends_at.map(|until| Yielded { bucket, until: until.as_micros() });
                member.yields.extend(until);
            }
        }
    }

    /// Returns the buckets that some of these relays own now.
    fn owned_by(&self, is_asked_for: impl Fn(RelayId) -> bool) -> BucketSet {
        let now = Timestamp::from_micros(self.now());
        let relays: BTreeMap<RelayId, RelayRow> =
            self.relays.iter().map(Member::row).map(|row| (row.relay, row)).collect();
        let owner = |row: &BucketRow| row.owner(|id| relays.get(&id), now);
        self.rows().iter().filter(|row| owner(row).is_some_and(&is_asked_for)).map(|row| row.bucket).collect()
    }

    /// Returns the buckets that a relay owns now.
    pub(crate) fn owned(&self, relay: RelayId) -> BucketSet {
        self.owned_by(|owner| owner == relay)
    }

    /// Returns the buckets that some live relay owns now.
    pub(crate) fn owned_by_anybody(&self) -> BucketSet {
        self.owned_by(|_| true)
    }

    /// Returns true if a relay owns a bucket now, under this epoch.
    pub(crate) fn holds(&self, relay: RelayId, bucket: Bucket, epoch: Epoch) -> bool {
        self.owned(relay).contains(bucket) && self.epochs.get(usize::from(bucket.0)) == Some(&epoch.0)
    }

    /// Performs a relay's heartbeat. The life stays 0: where there are stripes no mark passes
    /// anything.
    pub(crate) fn beat(&mut self, request: &LeaseRequest) -> Leased {
        let now = Timestamp::from_micros(self.now());
        let relays = self.relays.iter().map(Member::row);
        let Heartbeat { relay, changed, mut leased, .. } =
            leases::heartbeat(relays, self.rows(), request, now);
        let id = request.relay.to_string();
        let before = self.relays.iter().position(|member| member.relay == id);
        let before = before.map(|at| self.relays.remove(at));
        let (buckets, yields) =
            before.map_or_else(Default::default, |member| (member.buckets, member.yields));
        self.relays.push(Member {
            relay: id,
            label: request.label.clone(),
            expires_at: relay.expires_at.as_micros(),
            lasts: micros(relay.lasts),
            unavailable_since: relay.unavailable_since.map(Timestamp::as_micros),
            fingerprint: relay.fingerprint,
            buckets,
            yields,
        });
        self.put(&changed);
        leased.paused = self.paused();
        leased
    }

    /// Frees buckets that are still this relay's under these epochs.
    pub(crate) fn give_back(
        &mut self,
        relay: RelayId,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) {
        let (relays, now) = (self.relays.iter().map(Member::row), Timestamp::from_micros(self.now()));
        self.put(&leases::give_back(relays, self.rows(), relay, (leases, low_water), now));
        if leaving {
            self.relays.retain(|member| member.relay != relay.to_string());
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

    /// Returns the route as operators see it.
    pub(crate) fn view(&self) -> admin::Ownership {
        let relays = self.relays.iter().map(|member| (member.label.clone(), member.row()));
        let now = Timestamp::from_micros(self.now());
        leases::ownership(relays, self.rows(), self.paused(), now)
    }

    fn paused(&self) -> Paused {
        let mut topics: Vec<Topic> = self.paused.iter().filter_map(|topic| Topic::new(topic).ok()).collect();
        topics.sort();
        Paused::new(self.paused.iter().any(String::is_empty), topics)
    }
}

#[cfg(test)]
mod tests;
