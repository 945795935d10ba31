//! Failing keys that are being worked on: how many at once. Pure.

use std::collections::BTreeMap;

use outbox_contract::{Bucket, BucketSet, KeyId};

use super::config::RelayConfig;

/// Failing keys that were taken from the store and are not back. Each waits for a publisher, and some are waited for until their time is over; what
/// they hold of the credit meanwhile nobody else has. So there are never many of them, however many are due.
#[derive(Debug)]
pub(crate) struct Working {
    keys: BTreeMap<KeyId, Share>,
    bytes: usize,
    most_keys: usize,
    most_bytes: usize,
}

/// What a key holds while it waits.
#[derive(Clone, Copy, Debug)]
struct Share {
    bucket: Bucket,
    bytes: usize,
}

/// Which part of the credit failing keys may hold.
const PART: usize = 8;

/// Enough to keep all publishers at work, but never so many that nothing else could be fetched.
fn most_keys(config: &RelayConfig) -> usize {
    let busy = config.lanes.saturating_mul(config.depth).saturating_mul(2);
    (config.credit / PART).max(busy).min(config.credit / 2).max(1)
}

/// How many of them may wait in each lane of which nothing is heard: half of all, so that the others find room too.
pub(crate) fn most_silent(config: &RelayConfig) -> usize {
    (most_keys(config) / 2 / config.lanes).max(1)
}

impl Working {
    pub(crate) fn of(config: &RelayConfig) -> Self {
        Self {
            keys: BTreeMap::new(),
            bytes: 0,
            most_keys: most_keys(config),
            most_bytes: (config.credit_bytes / PART).max(1),
        }
    }

    /// How many more keys may be taken, and bytes of them. None: wait until some are back.
    pub(crate) fn room(&self) -> Option<(usize, usize)> {
        let keys = self.most_keys.saturating_sub(self.keys.len());
        let bytes = self.most_bytes.saturating_sub(self.bytes);
        (keys > 0 && bytes > 0).then_some((keys, bytes))
    }

    /// Takes a key, whose first message is waited for and has so many bytes.
    pub(crate) fn take(&mut self, key: KeyId, bucket: Bucket, bytes: usize) {
        self.back(&key);
        self.bytes = self.bytes.saturating_add(bytes);
        self.keys.insert(key, Share { bucket, bytes });
    }

    /// A key is back.
    pub(crate) fn back(&mut self, key: &KeyId) {
        if let Some(share) = self.keys.remove(key) {
            self.bytes = self.bytes.saturating_sub(share.bytes);
        }
    }

    /// These buckets belong to this relay no more.
    pub(crate) fn lose(&mut self, buckets: &BucketSet) {
        self.keys.retain(|_, share| !buckets.contains(share.bucket));
        self.bytes = self.keys.values().fold(0, |sum, share| sum.saturating_add(share.bytes));
    }

    /// All of them.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &KeyId> {
        self.keys.keys()
    }
}

#[cfg(test)]
mod tests {
    use outbox_contract::{Key, Topic};

    use super::*;

    fn key(number: usize) -> KeyId {
        KeyId { topic: Topic::new("t").unwrap(), key: Key::new(number.to_string()).unwrap() }
    }

    fn working(credit: usize, credit_bytes: usize) -> Working {
        Working::of(&RelayConfig { credit, credit_bytes, ..RelayConfig::default() })
    }

    #[test]
    fn most_of_the_credit_stays_free_however_many_keys_are_taken() {
        for (credit, most) in [(2_000, 250), (100, 16), (20, 10), (2, 1), (1, 1)] {
            let mut working = working(credit, 1 << 20);
            let mut taken = 0;
            while working.room().is_some() {
                working.take(key(taken), Bucket(1), 1);
                taken += 1;
            }
            assert_eq!(taken, most, "of a credit of {credit}");
        }
    }

    #[test]
    fn large_messages_are_few() {
        let mut working = working(2_000, 8_000);
        working.take(key(0), Bucket(1), 600);
        assert_eq!(working.room(), Some((249, 400)));
        working.take(key(1), Bucket(2), 600);
        assert_eq!(working.room(), None);
        working.back(&key(0));
        assert_eq!(working.room(), Some((249, 400)));
        working.lose(&[Bucket(2)].into_iter().collect());
        assert_eq!(working.room(), Some((250, 1_000)));
    }
}
