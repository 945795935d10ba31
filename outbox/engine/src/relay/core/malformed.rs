//! Malformed rows: rows that can't be decoded as messages. Each becomes a dead letter by itself.
//! They are never sent, so no message of a key waits for them. Their key may be a placeholder for
//! an invalid one.

use std::collections::{BTreeMap, VecDeque};

use outbox_contract::Failure;
use outbox_contract::backend::{BucketSet, Epoch, KeyTransition, Step, Transitioned, Waiting};

use super::Core;
use super::event::{Command, Report};

/// Maximum number of malformed rows in transition at once, so that transitions of keys get through.
const AT_ONCE: usize = 200;

/// Malformed rows in memory, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct MalformedRows {
    line: VecDeque<Malformed>,
    /// Rows in transition, by the number of the transition.
    asked: BTreeMap<u64, Malformed>,
}

#[derive(Debug)]
struct Malformed {
    row: Waiting,
    epoch: Epoch,
    stay: u64,
    reason: String,
}

impl MalformedRows {
    pub(super) fn push(&mut self, row: Waiting, epoch: Epoch, stay: u64, reason: String) {
        self.line.push_back(Malformed { row, epoch, stay, reason });
    }

    pub(super) fn lose(&mut self, buckets: &BucketSet) {
        self.line.retain(|bad| !buckets.contains(bad.row.bucket));
        self.asked.retain(|_, bad| !buckets.contains(bad.row.bucket));
    }
}

impl Core {
    /// Starts transitions for the next malformed rows, if none are running.
    pub(super) fn bury_malformed(&mut self) {
        if !self.malformed.asked.is_empty() {
            return;
        }
        let count = self.malformed.line.len().min(AT_ONCE);
        for bad in self.malformed.line.drain(..count).collect::<Vec<_>>() {
            let number = self.next_number();
            let failure = Failure::new("malformed", bad.reason.clone());
            let step = Step::Bury {
                discard: false,
                row: bad.row.at,
                reason: "malformed",
                attempts: 0,
                first: failure.clone(),
                last: failure,
            };
            let transition = KeyTransition::new(
                self.route.clone(),
                self.relay,
                (bad.row.bucket, bad.epoch),
                bad.row.key.clone(),
                None,
                step,
            );
            self.commands.push(Command::Transition { number, transition });
            self.malformed.asked.insert(number, bad);
        }
    }

    /// Handles the store's answer if it concerns a malformed row. Returns whether it does.
    pub(super) fn malformed_transitioned(&mut self, number: u64, answer: Transitioned) -> bool {
        let Some(bad) = self.malformed.asked.remove(&number) else { return false };
        let (position, bucket) = (bad.row.at.position, bad.row.bucket);
        match answer {
            Transitioned::Done(_) => {
                self.counts.buried += 1;
                self.table.remove_row(position, bad.stay);
                let failure = Failure::new("malformed", bad.reason);
                self.report(Report::DeadLetter(bad.row.key.topic, bad.row.at.id, failure));
                self.has_room_to_wait();
            }
            Transitioned::LeaseLost => {
                self.counts.refused += 1;
                self.lose_lease([bucket].into_iter().collect());
            }
            Transitioned::Stale => {
                self.counts.refused += 1;
                self.table.remove_row(position, bad.stay);
                self.reading.read_row_again(&bad.row.key.topic, bucket, position.before());
                self.look_soon();
            }
        }
        true
    }
}
