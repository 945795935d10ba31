//! The store of the model: the hot table and its writers, as the contract says.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_contract::fetch::{FetchRequest, Fetched, FetchedRow, Waiting, Writers};
use outbox_contract::{BucketSet, Position, Stored};

use crate::relay::model_cast::{KEYS, bucket, stored, the_key};

pub(super) struct Transaction {
    name: u64,
    pub(super) rows: Vec<(Position, usize)>,
}

/// The hot table, with its writers.
#[derive(Default)]
pub(super) struct Table {
    pub(super) hot: BTreeMap<Position, (usize, Arc<Stored>)>,
    /// All that was ever committed of each key, in the order of commits.
    pub(super) committed: [Vec<Position>; KEYS],
    pub(super) last: i64,
    pub(super) begun: u64,
    pub(super) open: Vec<Transaction>,
    pub(super) failing: [bool; KEYS],
    pub(super) leased: BucketSet,
}

impl Table {
    /// The key's lock is held from append to commit, and the position is taken under it.
    pub(super) fn append(&mut self, transaction: usize, of: usize) {
        let locks = |open: &Transaction| open.rows.iter().any(|(_, locked)| *locked == of);
        if (0..self.open.len()).any(|other| other != transaction && locks(&self.open[other])) {
            return;
        }
        self.last += 1;
        self.open[transaction].rows.push((Position(self.last), of));
    }

    pub(super) fn begin(&mut self) {
        self.begun += 1;
        self.open.push(Transaction { name: self.begun, rows: Vec::new() });
    }

    pub(super) fn commit(&mut self, transaction: usize) {
        for (position, of) in self.open.swap_remove(transaction).rows {
            self.hot.insert(position, (of, stored(position, of)));
            self.committed[of].push(position);
        }
    }

    pub(super) fn fetch(&self, request: &FetchRequest) -> Fetched {
        let mut rows = Vec::new();
        for (position, (of, stored)) in &self.hot {
            let name = the_key(*of);
            let asked = *position > request.after
                && *position <= request.until
                && !request.except.contains(position)
                && request.buckets.contains(stored.bucket)
                && self.leased.contains(stored.bucket)
                && request.scope.covers(name);
            if !asked {
                continue;
            }
            rows.push(if request.muted.iter().any(|muted| muted.covers(name)) {
                FetchedRow::Muted(*position)
            } else if self.failing[*of] {
                FetchedRow::Failing(Waiting {
                    at: stored.row(),
                    key: name.clone(),
                    bucket: stored.bucket,
                    stripe: None,
                })
            } else {
                FetchedRow::Message(Arc::clone(stored))
            });
            if rows.len() == request.limit {
                return Fetched { rows, full: true, reached: Position::START };
            }
        }
        let allowed = request.buckets.without(&self.leased).is_empty();
        let last = self.hot.keys().next_back().copied().filter(|_| allowed).unwrap_or_default();
        Fetched { rows, full: false, reached: last.min(request.until) }
    }

    /// Those that have taken a position; some stores also count those that are about to.
    pub(super) fn writers(&self, all: bool, last: Position) -> Writers {
        let writing = self.open.iter().filter(|open| all || !open.rows.is_empty());
        Writers { open: writing.map(|open| open.name.to_string()).collect(), last }
    }

    /// The lowest position at which a row of these buckets stands or may still be committed.
    pub(super) fn lowest(&self, buckets: &BucketSet) -> Position {
        let open = self.open.iter().flat_map(|open| &open.rows).map(|(position, key)| (*position, *key));
        let hot = self.hot.iter().map(|(position, (key, _))| (*position, *key));
        let of_buckets = open.chain(hot).filter(|(_, key)| buckets.contains(bucket(*key)));
        of_buckets.map(|(position, _)| position).min().unwrap_or(Position(self.last + 1))
    }
}
