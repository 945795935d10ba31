//! Epochs that a stream is known to accept, so that most batches need not ask for each bucket. Pure.
//!
//! The hash of epochs carries a version, which changes with every epoch in it. While a version lasts,
//! what was accepted under it is accepted.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outbox_contract::backend::{Bucket, Epoch};
use tokio::time::Instant;

/// Part of the time for which a stream remembers an epoch. An epoch is named again after as long.
const RENEWALS: u32 = 8;

/// Hashes of epochs, by their keys, as far as they are known.
#[derive(Debug)]
pub(crate) struct KnownEpochs {
    /// Time for which a stream remembers an epoch after its last message.
    keep: Duration,
    // A plain mutex: held for one look or one store.
    hashes: Mutex<HashMap<String, Accepted>>,
}

/// Epochs that were accepted under a version.
#[derive(Debug, Default)]
struct Accepted {
    version: String,
    /// When each epoch was named.
    buckets: BTreeMap<Bucket, (Epoch, Instant)>,
}

impl KnownEpochs {
    pub(crate) fn new(keep: Duration) -> Self {
        Self { keep, hashes: Mutex::default() }
    }

    /// Time for which a stream counts an epoch that is not named again, in milliseconds: `keep`, and
    /// the time within which the messages that follow do not name it.
    pub(crate) fn counts_for(&self) -> u64 {
        let counts = self.keep.saturating_add(self.keep / RENEWALS);
        u64::try_from(counts.as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the version under which all of these are accepted, if there is one and none of them
    /// has to be named again.
    pub(crate) fn version(
        &self,
        key: &str,
        epochs: &BTreeMap<Bucket, Epoch>,
        now: Instant,
    ) -> Option<String> {
        let hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        let Accepted { version, buckets } = hashes.get(key)?;
        let is_accepted = |(bucket, epoch): (&Bucket, &Epoch)| {
            buckets.get(bucket).is_some_and(|(accepted, named)| {
                accepted == epoch && now.saturating_duration_since(*named) < self.keep / RENEWALS
            })
        };
        epochs.iter().all(is_accepted).then(|| version.clone())
    }

    /// Learns that a stream has accepted these, when the version `before` became the version `after`.
    pub(crate) fn learn(
        &self,
        key: &str,
        epochs: &BTreeMap<Bucket, Epoch>,
        before: &str,
        after: String,
        now: Instant,
    ) {
        let mut hashes = self.hashes.lock().unwrap_or_else(PoisonError::into_inner);
        let accepted = hashes.entry(key.to_owned()).or_default();
        if accepted.version != before {
            accepted.buckets.clear();
        }
        accepted.version = after;
        accepted.buckets.extend(epochs.iter().map(|(bucket, epoch)| (*bucket, (*epoch, now))));
    }

    /// Forgets what was accepted: all is named again.
    pub(crate) fn forget(&self, key: &str) {
        self.hashes.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(80);

    fn epochs(of: &[(u8, i64)]) -> BTreeMap<Bucket, Epoch> {
        of.iter().map(|(bucket, epoch)| (Bucket(*bucket), Epoch(*epoch))).collect()
    }

    #[test]
    fn what_was_accepted_under_a_version_is_known_until_it_has_to_be_named_again() {
        let (known, start) = (KnownEpochs::new(KEEP), Instant::now());
        let version = |of: &[(u8, i64)], after| {
            known.version("a", &epochs(of), start + Duration::from_secs(after)).unwrap_or_default()
        };
        known.learn("a", &epochs(&[(1, 5), (2, 6)]), "", "v1".to_owned(), start);
        assert_eq!(version(&[(1, 5), (2, 6)], 9), "v1");
        assert_eq!(version(&[(1, 4)], 0), "", "an older epoch");
        assert_eq!(version(&[(1, 6)], 0), "", "a newer epoch");
        assert_eq!(version(&[(1, 5), (3, 1)], 0), "", "another bucket");
        assert_eq!(version(&[(1, 5)], 10), "", "an eighth of the time is over");
        assert_eq!(known.counts_for(), 90_000, "and that is added to it");
        assert_eq!(known.version("b", &epochs(&[(1, 5)]), start), None, "another stream");
        known.forget("a");
        assert_eq!(version(&[(1, 5)], 0), "");
    }

    #[test]
    fn a_change_by_another_relay_ends_what_was_accepted_before_it() {
        let (known, now) = (KnownEpochs::new(KEEP), Instant::now());
        let version = |of: &[(u8, i64)]| known.version("a", &epochs(of), now).unwrap_or_default();
        known.learn("a", &epochs(&[(1, 5)]), "", "v1".to_owned(), now);
        known.learn("a", &epochs(&[(2, 6)]), "v1", "v2".to_owned(), now);
        assert_eq!(version(&[(1, 5), (2, 6)]), "v2", "its own change");
        known.learn("a", &epochs(&[(3, 7)]), "v3", "v3".to_owned(), now);
        assert_eq!((version(&[(1, 5)]), version(&[(3, 7)])), (String::new(), "v3".to_owned()));
    }

    /// Answers are learnt in any order. A version that is no longer that of the stream does no harm:
    /// the stream compares it.
    #[test]
    fn answers_out_of_order_never_join_a_version_with_what_came_before_it() {
        let (known, now) = (KnownEpochs::new(KEEP), Instant::now());
        let version = |of: &[(u8, i64)]| known.version("a", &epochs(of), now).unwrap_or_default();
        known.learn("a", &epochs(&[(2, 6)]), "v1", "v2".to_owned(), now);
        known.learn("a", &epochs(&[(1, 5)]), "", "v1".to_owned(), now);
        assert_eq!((version(&[(2, 6)]), version(&[(1, 5)])), (String::new(), "v1".to_owned()));
    }
}
