//! Rows that were read and are not gone from the store yet.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher, Hash, Hasher};

use outbox_contract::{Bucket, BucketSet, KeyId, Position};

/// What is in memory, by position, and how much of each key.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    rows: BTreeMap<Position, Row>,
    by_key: HashMap<u64, OfKey, BuildHasherDefault<Hashed>>,
    waiting: usize,
}

/// What is in memory of a key.
#[derive(Clone, Copy, Debug, Default)]
struct OfKey {
    rows: usize,
    /// Whether rows of it have left while others were here: it does not hang.
    moves: bool,
}

/// The hash of what is one already.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        // Not used for a number, but there has to be one.
        self.0 = bytes.iter().fold(self.0, |hash, byte| hash.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// A row in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Its own, whatever its key's name says.
    pub(super) bucket: Bucket,
    key: Option<u64>,
    waits: bool,
}

impl Row {
    /// Whether a window of its key would show it.
    pub(super) fn is_named(&self) -> bool {
        self.key.is_some()
    }
}

impl InFlight {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn contains(&self, position: Position) -> bool {
        self.rows.contains_key(&position)
    }

    pub(super) fn lowest(&self) -> Option<Position> {
        self.rows.keys().next().copied()
    }

    /// In ascending order.
    pub(super) fn behind(&self, position: Position) -> impl Iterator<Item = Position> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.rows.range((Excluded(position), Unbounded)).map(|(at, _)| *at)
    }

    /// How many rows of the key there are.
    pub(super) fn of_key(&self, key: &KeyId) -> usize {
        self.by_key.get(&fingerprint(key)).map_or(0, |of_key| of_key.rows)
    }

    /// How many rows of the key there may be, of so many at the most. One of which nothing has left yet may hang: it gets a small part, so that many such
    /// fit.
    pub(super) fn allowed(&self, key: &KeyId, most: usize) -> usize {
        let moves = self.by_key.get(&fingerprint(key)).is_some_and(|of_key| of_key.moves);
        if moves { most } else { (most / FRESH).max(1) }
    }

    /// Whether a key that had too many rows has room for more, of so many at the most.
    pub(super) fn has_cooled(&self, key: &KeyId, most: usize) -> bool {
        self.by_key.get(&fingerprint(key)).is_none_or(|of_key| of_key.moves && of_key.rows <= most / 2)
    }

    /// How many rows wait to be parked or buried.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes a row that is not there yet. `key`: none where its name may be a stand-in. `waits`: to be parked or buried.
    pub(super) fn insert(&mut self, position: Position, key: Option<&KeyId>, bucket: Bucket, waits: bool) {
        let key = key.map(fingerprint);
        self.rows.insert(position, Row { bucket, key, waits });
        if let Some(key) = key {
            self.by_key.entry(key).or_default().rows += 1;
        }
        self.waiting += usize::from(waits);
    }

    /// What was there.
    pub(super) fn remove(&mut self, position: Position) -> Option<Row> {
        let row = self.rows.remove(&position)?;
        self.waiting -= usize::from(row.waits);
        if let Some(key) = row.key
            && let Some(count) = self.by_key.get_mut(&key)
        {
            count.rows -= 1;
            if count.rows == 0 {
                self.by_key.remove(&key);
            }
        }
        Some(row)
    }

    /// Takes a row out that is gone from the store.
    pub(super) fn leave(&mut self, position: Position) {
        if let Some(Row { key: Some(key), .. }) = self.remove(position)
            && let Some(of_key) = self.by_key.get_mut(&key)
        {
            of_key.moves = true;
        }
    }

    pub(super) fn remove_buckets(&mut self, buckets: BucketSet) {
        let of_buckets = self.rows.iter().filter(|(_, row)| buckets.contains(row.bucket));
        for position in of_buckets.map(|(at, _)| *at).collect::<Vec<_>>() {
            self.remove(position);
        }
    }
}

/// Which part of its rows a key gets before anything of it has left.
const FRESH: usize = 8;

/// A number that stands for a key where only counting depends on it: two keys that share one are counted together.
fn fingerprint(key: &KeyId) -> u64 {
    // Fixed keys: a run must be the same again.
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}
