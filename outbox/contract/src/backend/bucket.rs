//! The bucket: the unit of ownership among relays, and the hash that maps a key to one.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Number of buckets. A constant of the wire format: rows in the database carry their bucket.
pub const BUCKETS: usize = 256;

/// A share of all keys that one relay owns at a time.
///
/// The bucket is the first byte of SHA-256 over the topic, a zero byte and the key. Every database
/// and every language has SHA-256. A program in any language can therefore append, and a database
/// can check what it wrote.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::backend::Bucket;
///
/// assert_eq!(Bucket::of("orders", "order-1"), Bucket(62));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bucket(pub u8);

impl Bucket {
    /// Returns the bucket of a topic and key. A message without a key uses its own identifier
    /// (hyphenated, lower case) as the key.
    #[must_use]
    pub fn of(topic: &str, key: &str) -> Self {
        Self(key_hash(topic, key)[0])
    }
}

/// Returns the hash of a topic and key, of which [`Bucket`] and
/// [`StripeId`](crate::backend::StripeId) are the first bits: SHA-256 over the topic, a zero byte
/// and the key.
#[must_use]
pub fn key_hash(topic: &str, key: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(topic.as_bytes());
    hash.update([0]);
    hash.update(key.as_bytes());
    hash.finalize().into()
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of buckets, as 256 bits.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::backend::{Bucket, BucketSet};
///
/// let mut set = BucketSet::EMPTY;
/// set.insert(Bucket(7));
/// assert!(set.contains(Bucket(7)) && set.len() == 1 && set != BucketSet::ALL);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BucketSet([u64; 4]);

impl BucketSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; 4]);
    /// All 256 buckets.
    pub const ALL: Self = Self([u64::MAX; 4]);

    /// Inserts a bucket. Returns true if it was new.
    pub fn insert(&mut self, bucket: Bucket) -> bool {
        let (word, bit) = Self::place(bucket);
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    /// Removes a bucket. Returns true if it was present.
    pub fn remove(&mut self, bucket: Bucket) -> bool {
        let (word, bit) = Self::place(bucket);
        let there = self.0[word] & bit != 0;
        self.0[word] &= !bit;
        there
    }

    /// Returns true if the bucket is in the set.
    #[must_use]
    pub fn contains(&self, bucket: Bucket) -> bool {
        let (word, bit) = Self::place(bucket);
        self.0[word] & bit != 0
    }

    /// Returns the number of buckets in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns true if the set contains no bucket.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 4]
    }

    /// Returns the buckets that are in this set and not in the other.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// Returns the buckets that are in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// Returns the buckets that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// Iterates over the buckets of the set, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = Bucket> + use<> {
        let set = *self;
        (0..=u8::MAX).map(Bucket).filter(move |bucket| set.contains(*bucket))
    }

    fn place(bucket: Bucket) -> (usize, u64) {
        (usize::from(bucket.0 >> 6), 1 << (bucket.0 & 63))
    }
}

impl FromIterator<Bucket> for BucketSet {
    fn from_iter<I: IntoIterator<Item = Bucket>>(buckets: I) -> Self {
        let mut set = Self::EMPTY;
        for bucket in buckets {
            set.insert(bucket);
        }
        set
    }
}

impl fmt::Debug for BucketSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|bucket| bucket.0)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash is wire format: these values were computed with another language's SHA-256 and
    /// never change.
    #[test]
    fn the_hash_gives_the_golden_values() {
        let golden = [
            ("orders", "order-1", 62),
            ("orders", "order-2", 135),
            ("customers", "c-1", 138),
            ("ünïcode", "ключ", 8),
            ("a", "0190b6a0-0000-7000-8000-000000000000", 119),
        ];
        for (topic, key, bucket) in golden {
            assert_eq!(Bucket::of(topic, key), Bucket(bucket), "{topic} {key}");
        }
    }

    #[test]
    fn a_topic_and_key_are_not_confused_with_others_that_read_the_same() {
        assert_ne!(Bucket::of("ab", "c"), Bucket::of("a", "bc"));
    }

    #[test]
    fn sets_count_and_combine() {
        let mut even: BucketSet = (0..=255).filter(|bucket| bucket % 2 == 0).map(Bucket).collect();
        assert_eq!(even.len(), BUCKETS / 2);
        assert_eq!(BucketSet::ALL.without(&even).union(&even), BucketSet::ALL);
        assert!(BucketSet::ALL.without(&even).intersection(&even).is_empty());
        assert!(even.remove(Bucket(4)) && !even.remove(Bucket(4)) && !even.insert(Bucket(6)));
    }
}
