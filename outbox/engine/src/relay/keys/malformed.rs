//! Rows that are no messages. They become dead letters, each by itself: they are never sent, so nothing of a key waits for them, and the key under which
//! they are shown may be a stand-in for what can't be one.

use std::collections::{BTreeMap, VecDeque};

use outbox_contract::divert::{Diverted, Step};
use outbox_contract::fetch::RowId;
use outbox_contract::{Bucket, BucketSet, Epoch, Failure, KeyId};

use super::super::effects::Effects;
use super::super::key::Ask;
use super::Keys;

/// How many are taken to the store at once: steps of keys go in between.
const AT_ONCE: usize = 200;

/// Those of a lane, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct MalformedRows {
    line: VecDeque<Malformed>,
    /// By generation: what comes back of others is of no use.
    asked: BTreeMap<u64, Malformed>,
}

#[derive(Debug)]
struct Malformed {
    key: KeyId,
    bucket: Bucket,
    epoch: Epoch,
    row: RowId,
    reason: String,
}

impl MalformedRows {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.line.is_empty() && self.asked.is_empty()
    }

    pub(super) fn lose(&mut self, buckets: &BucketSet) {
        self.retain(|row| !buckets.contains(row.bucket));
    }

    pub(super) fn lapse(&mut self, epochs: &BTreeMap<Bucket, Epoch>) {
        self.retain(|row| epochs.get(&row.bucket) != Some(&row.epoch));
    }

    fn retain(&mut self, which: impl Fn(&Malformed) -> bool) {
        self.line.retain(&which);
        self.asked.retain(|_, row| which(row));
    }
}

impl Keys {
    /// Takes a row that is no message, shown under this key.
    pub(crate) fn push_malformed(
        &mut self,
        key: KeyId,
        bucket: Bucket,
        epoch: Epoch,
        row: RowId,
        reason: String,
    ) {
        self.malformed.line.push_back(Malformed { key, bucket, epoch, row, reason });
    }

    /// Asks for dead letters, if none are being made.
    pub(super) fn bury_malformed(&mut self, effects: &mut Effects) {
        if !self.malformed.asked.is_empty() {
            return;
        }
        let count = self.malformed.line.len().min(AT_ONCE);
        for bad in self.malformed.line.drain(..count) {
            self.generations += 1;
            let failure = Failure::new("malformed", bad.reason.clone());
            effects.asks.push(Ask {
                key: bad.key.clone(),
                generation: self.generations,
                bucket: bad.bucket,
                epoch: bad.epoch,
                version: None,
                step: Step::Bury {
                    row: bad.row,
                    reason: "malformed",
                    attempts: 0,
                    first: failure.clone(),
                    last: failure,
                },
            });
            self.malformed.asked.insert(self.generations, bad);
        }
    }

    /// Takes the store's answer, if it is about one of these. Says whether it is.
    pub(super) fn malformed_diverted(
        &mut self,
        generation: u64,
        answer: Diverted,
        effects: &mut Effects,
    ) -> bool {
        let Some(bad) = self.malformed.asked.remove(&generation) else { return false };
        match answer {
            Diverted::Done(_) => {
                effects.counts.buried += 1;
                effects.left.push(bad.row.position);
            }
            Diverted::LeaseLost => {
                effects.counts.refused += 1;
                effects.lost.push(bad.bucket);
            }
            Diverted::Stale => {
                effects.counts.refused += 1;
                self.report_forgotten(&bad.key, vec![bad.row.position], effects);
            }
        }
        true
    }
}
