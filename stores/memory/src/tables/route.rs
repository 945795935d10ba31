//! The tables of one route: what is to be published, which keys fail, and who relays it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use outbox_contract::backend::rules::leases::BucketRow;
use outbox_contract::backend::{
    BUCKETS, Backlog, Bucket, Position, RelayId, RowId, Stored, StripeId, StripeMark,
};
use outbox_contract::{KeyId, MessageId, Timestamp, Topic};

use super::keys::FailingKeys;
use super::lease::Relay;

/// The tables of one route.
#[derive(Debug, Default)]
pub(super) struct RouteTables {
    /// Messages to be published. A row that is here has not been confirmed.
    pub(super) hot: BTreeMap<Position, Arc<Stored>>,
    /// Number of hot rows of each bucket.
    waiting: PerBucket,
    /// Positions of the hot rows of each key. Kept from the first question on: only a consumer's
    /// inbox asks, and no other route pays.
    by_key: Option<HashMap<KeyId, BTreeSet<Position>>>,
    /// Mark of each stripe, where there are stripes.
    pub(super) stripes: BTreeMap<StripeId, StripeMark>,
    pub(super) keys: FailingKeys,
    pub(super) relays: BTreeMap<RelayId, Relay>,
    pub(super) owners: BTreeMap<Bucket, BucketRow>,
    pub(super) paused: bool,
    pub(super) paused_topics: BTreeSet<Topic>,
}

#[derive(Debug)]
struct PerBucket([u64; BUCKETS]);

impl Default for PerBucket {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl RouteTables {
    pub(super) fn insert_hot(&mut self, stored: Arc<Stored>) {
        self.waiting.0[usize::from(stored.bucket.0)] += 1;
        if let Some(by_key) = &mut self.by_key {
            by_key.entry(stored.message.key_id()).or_default().insert(stored.position);
        }
        self.hot.insert(stored.position, stored);
    }

    /// Removes a row, if exactly it is there.
    pub(super) fn remove_hot(&mut self, row: RowId) -> Option<Arc<Stored>> {
        self.hot.get(&row.position).filter(|stored| stored.message.id == row.id)?;
        let stored = self.hot.remove(&row.position)?;
        self.waiting.0[usize::from(stored.bucket.0)] -= 1;
        if let Some(by_key) = &mut self.by_key {
            let key = stored.message.key_id();
            if let Some(positions) = by_key.get_mut(&key) {
                positions.remove(&row.position);
                if positions.is_empty() {
                    by_key.remove(&key);
                }
            }
        }
        Some(stored)
    }

    /// The messages of a key that wait, in the order in which they will go out.
    pub(super) fn waiting_of(&mut self, key: &KeyId) -> impl Iterator<Item = MessageId> {
        let hot = &self.hot;
        let by_key = self.by_key.get_or_insert_with(|| {
            let mut by_key: HashMap<KeyId, BTreeSet<Position>> = HashMap::new();
            for (position, stored) in hot {
                by_key.entry(stored.message.key_id()).or_default().insert(*position);
            }
            by_key
        });
        let parked = self.keys.get(key).into_iter().flat_map(|row| row.parked.values());
        let behind = by_key.get(key).into_iter().flatten().filter_map(|position| hot.get(position));
        parked.map(|parked| parked.stored.message.id).chain(behind.map(|stored| stored.message.id))
    }

    /// Counts the waiting messages. Dead letters and scheduled messages are counted elsewhere.
    pub(super) fn backlog(&self, now: Timestamp) -> Backlog {
        let live =
            |bucket: Bucket| self.owners.get(&bucket).is_some_and(|owned| self.owner(owned, now).is_some());
        let mut waiting: BTreeSet<Bucket> =
            (0..=u8::MAX).filter(|bucket| self.waiting.0[usize::from(*bucket)] > 0).map(Bucket).collect();
        let mut backlog = Backlog::default();
        // In stripes, what stands first need not be the oldest.
        let first = if self.stripes.is_empty() { 1 } else { usize::MAX };
        let mut oldest = self.hot.values().take(first).map(|stored| stored.appended_at).min();
        backlog.oldest_pending_age = oldest.map(|oldest| now.since(oldest));
        for row in self.keys.rows().values() {
            backlog.held_keys += u64::from(row.state.held);
            backlog.retrying_keys += u64::from(!row.state.held);
            backlog.parked += row.parked.len() as u64;
            if let Some(first) = row.parked.values().next() {
                waiting.insert(first.stored.bucket);
                let appended_at = first.stored.appended_at;
                oldest = Some(oldest.map_or(appended_at, |oldest| oldest.min(appended_at)));
            }
        }
        backlog.pending = self.hot.len() as u64;
        backlog.oldest_age = oldest.map(|oldest| now.since(oldest));
        backlog.unowned_buckets = waiting.into_iter().filter(|bucket| !live(*bucket)).count() as u64;
        backlog
    }

    /// Returns the time of appending of the oldest of so many hot messages, or parked ones.
    pub(super) fn oldest_of(&self, many: usize) -> Option<Timestamp> {
        let hot = self.hot.values();
        let parked =
            self.keys.rows().values().flat_map(|row| row.parked.values().map(|parked| &parked.stored));
        hot.take(many).chain(parked.take(many)).map(|stored| stored.appended_at).min()
    }
}
