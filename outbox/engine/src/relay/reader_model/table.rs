//! The store of the model: the hot table and its writers, as the contract says.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_contract::fetch::{FetchRequest, Fetched, FetchedRow, Waiting, Writers};
use outbox_contract::{BucketSet, Position, Stored, Stripe, StripeId, StripeMark};

use crate::relay::model_cast::{KEYS, bucket, stored, the_key};

pub(super) struct Transaction {
    name: u64,
    pub(super) rows: Vec<(Position, usize)>,
    /// How many rows its last append to each key has.
    appended: [usize; KEYS],
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
    /// Where there are stripes: each key is in one of its own, whose positions run ahead by this much. And the mark of each.
    pub(super) ahead: Option<[i64; KEYS]>,
    pub(super) marks: [Option<StripeMark>; KEYS],
}

impl Table {
    /// The key's lock is held from append to commit, and the position is taken under it.
    pub(super) fn append(&mut self, transaction: usize, of: usize) {
        self.append_rows(transaction, of, 1);
    }

    pub(super) fn append_rows(&mut self, transaction: usize, of: usize, rows: usize) {
        let locks = |open: &Transaction| open.rows.iter().any(|(_, locked)| *locked == of);
        if (0..self.open.len()).any(|other| other != transaction && locks(&self.open[other])) {
            return;
        }
        for _ in 0..rows {
            self.last += 1;
            let position = self.ahead.map_or(self.last, |ahead| {
                // No two stripes have one in common.
                (self.last + ahead[of]) * i64::try_from(KEYS).unwrap() + i64::try_from(of).unwrap()
            });
            self.open[transaction].rows.push((Position(position), of));
        }
        self.open[transaction].appended[of] = rows;
    }

    pub(super) fn begin(&mut self) {
        self.begun += 1;
        self.open.push(Transaction { name: self.begun, rows: Vec::new(), appended: [0; KEYS] });
    }

    pub(super) fn commit(&mut self, transaction: usize) {
        let Transaction { rows, appended, .. } = self.open.swap_remove(transaction);
        for (position, of) in rows {
            self.committed[of].push(position);
            let mut row = stored(position, of);
            if self.ahead.is_some() {
                let last = self.number(of, self.committed[of].len());
                Arc::make_mut(&mut row).stripe = Some(last);
                let first = self.committed[of].len().saturating_sub(appended[of]);
                self.marks[of] = Some(StripeMark {
                    last,
                    position,
                    first_number: self.number(of, first + 1).number,
                    first_position: self.committed[of][first],
                });
            }
            self.hot.insert(position, (of, row));
        }
    }

    /// Numbers are taken under a lock that is held to commit: they count what was committed.
    fn number(&self, of: usize, row: usize) -> Stripe {
        let key = the_key(of);
        let stripe = StripeId::of(key.topic.as_str(), key.key.as_str());
        Stripe { stripe, number: i64::try_from(row).unwrap() }
    }

    pub(super) fn marks(&self, buckets: &BucketSet) -> Vec<StripeMark> {
        let of_buckets = |mark: &StripeMark| buckets.contains(mark.last.stripe.bucket());
        self.marks.iter().flatten().copied().filter(of_buckets).collect()
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
                    stripe: stored.stripe,
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

    /// The lowest position at which a row of these buckets can be seen.
    pub(super) fn lowest_seen(&self, buckets: &BucketSet) -> Position {
        let seen = self.hot.iter().find(|(_, (_, stored))| buckets.contains(stored.bucket));
        seen.map_or(Position::START, |(position, _)| *position)
    }

    /// The lowest position at which a row of these buckets stands or may still be committed.
    pub(super) fn lowest(&self, buckets: &BucketSet) -> Position {
        let open = self.open.iter().flat_map(|open| &open.rows).map(|(position, key)| (*position, *key));
        let hot = self.hot.iter().map(|(position, (key, _))| (*position, *key));
        let of_buckets = open.chain(hot).filter(|(_, key)| buckets.contains(bucket(*key)));
        of_buckets.map(|(position, _)| position).min().unwrap_or(Position(self.last + 1))
    }
}
