//! The store of the model: the hot table with its writers, failing keys with what is parked, leases, and the steps, as the contract says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::MessageId;
use outbox_contract::backend::{
    BucketSet, Epoch, FetchRequest, Fetched, FetchedRow, Lease, LowWater, Ordering, Position, RelayId, RowId,
    Stored, Stripe, StripeId, StripeMark, Waiting, Writers,
};

use super::cast::{KEYS, bucket, keys_in, stored, the_key};
use super::failing::KeyRow;

/// A transaction that is open.
pub(super) struct Transaction {
    name: u64,
    pub(super) rows: Vec<(Position, usize)>,
    /// Number of rows of its last append to each key.
    appended: [usize; KEYS],
}

/// Ownership of a bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseRow {
    pub(super) owner: Option<RelayId>,
    pub(super) epoch: Epoch,
    pub(super) until: Duration,
    pub(super) low_water: Position,
}

/// A message in the hot table.
pub(super) type Hot = (usize, Arc<Stored>);

pub(super) struct Store {
    pub(super) ordering: Ordering,
    pub(super) hot: BTreeMap<Position, Hot>,
    pub(super) keys: BTreeMap<usize, KeyRow>,
    pub(super) malformed: BTreeSet<MessageId>,
    /// All that was ever committed of each key, in the order of commits.
    pub(super) committed: [Vec<MessageId>; KEYS],
    /// What waits for nobody: dead letters, what an operator took, what a restore lost.
    pub(super) out: BTreeSet<MessageId>,
    pub(super) open: Vec<Transaction>,
    pub(super) leases: [LeaseRow; KEYS],
    pub(super) relays: BTreeMap<RelayId, Duration>,
    pub(super) version: i64,
    pub(super) life: i64,
    /// Whether rows are removed by position alone.
    pub(super) settles_without_id: bool,
    last: i64,
    begun: u64,
    serial: u64,
    /// Where there are shards: each key is in one of its own, whose positions run ahead by this much. And the mark of each.
    ahead: [i64; KEYS],
    marks: [Option<StripeMark>; KEYS],
    numbers: [i64; KEYS],
}

/// Time that leases last.
pub(super) const LEASE: Duration = Duration::from_secs(15);

impl Store {
    pub(super) fn new(ordering: Ordering, random: &mut fastrand::Rng) -> Self {
        Self {
            ordering,
            hot: BTreeMap::new(),
            keys: BTreeMap::new(),
            malformed: BTreeSet::new(),
            committed: Default::default(),
            out: BTreeSet::new(),
            open: Vec::new(),
            leases: [LeaseRow::default(); KEYS],
            relays: BTreeMap::new(),
            version: 0,
            life: 0,
            settles_without_id: false,
            last: 0,
            begun: 0,
            serial: 0,
            ahead: std::array::from_fn(|_| random.i64(0..20)),
            marks: [None; KEYS],
            numbers: [0; KEYS],
        }
    }

    pub(super) fn begin(&mut self) {
        self.begun += 1;
        self.open.push(Transaction { name: self.begun, rows: Vec::new(), appended: [0; KEYS] });
    }

    /// The key's lock is held from append to commit, and the position is taken under it.
    pub(super) fn append(&mut self, transaction: usize, of: usize, rows: usize) {
        let locks = |open: &Transaction| {
            self.ordering == Ordering::Single || open.rows.iter().any(|(_, locked)| *locked == of)
        };
        if (0..self.open.len()).any(|other| other != transaction && locks(&self.open[other])) {
            return;
        }
        for _ in 0..rows {
            self.last += 1;
            let position = if self.ordering == Ordering::Stripes {
                // No two shards have one in common.
                (self.last + self.ahead[of]) * i64::try_from(KEYS).unwrap() + i64::try_from(of).unwrap()
            } else {
                self.last
            };
            self.open[transaction].rows.push((Position(position), of));
        }
        self.open[transaction].appended[of] = rows;
    }

    /// Commits a transaction; says which messages are there now.
    pub(super) fn commit(&mut self, transaction: usize) -> Vec<MessageId> {
        let Transaction { rows, appended, .. } = self.open.swap_remove(transaction);
        let mut ids = Vec::new();
        let counts: [usize; KEYS] =
            std::array::from_fn(|of| rows.iter().filter(|(_, other)| *other == of).count());
        let mut seen = [0; KEYS];
        let mut firsts = [None; KEYS];
        for (position, of) in rows {
            self.serial += 1;
            let id = MessageId::from_uuid(uuid::Uuid::from_u128(self.serial.into()));
            let mut row = stored(position, of, id);
            if self.ordering == Ordering::Stripes {
                self.numbers[of] += 1;
                let last = self.number(of);
                Arc::make_mut(&mut row).stripe = Some(last);
                if seen[of] + appended[of] == counts[of] {
                    firsts[of] = Some((last.number, position));
                }
                seen[of] += 1;
                let (first_number, first_position) = firsts[of].unwrap_or((last.number, position));
                self.marks[of] = Some(StripeMark { last, position, first_number, first_position });
            }
            self.committed[of].push(id);
            self.hot.insert(position, (of, row));
            ids.push(id);
        }
        ids
    }

    pub(super) fn roll_back(&mut self, transaction: usize) {
        self.open.swap_remove(transaction);
    }

    /// Numbers are taken under a lock that is held to commit: they count what was committed.
    fn number(&self, of: usize) -> Stripe {
        let key = the_key(of);
        let stripe = StripeId::of(key.topic.as_str(), key.key.as_str());
        Stripe { stripe, number: self.numbers[of] }
    }

    pub(super) fn marks(&self, buckets: &BucketSet) -> Vec<StripeMark> {
        let of_buckets = |mark: &StripeMark| buckets.contains(mark.last.stripe.bucket());
        self.marks.iter().flatten().copied().filter(of_buckets).collect()
    }

    pub(super) fn owns(&self, relay: RelayId, of: usize, now: Duration) -> bool {
        let lease = &self.leases[of];
        lease.owner == Some(relay) && now < lease.until
    }

    pub(super) fn fetch(&self, request: &FetchRequest, now: Duration) -> Fetched {
        let mut rows = Vec::new();
        for (position, (of, stored)) in &self.hot {
            let name = the_key(*of);
            let asked = *position > request.after
                && *position <= request.until
                && !request.except.contains(position)
                && request.buckets.contains(stored.bucket)
                && self.owns(request.relay, *of, now)
                && request.scope.covers(name);
            if !asked {
                continue;
            }
            let waiting = || Waiting {
                at: stored.row(),
                key: name.clone(),
                bucket: stored.bucket,
                stripe: stored.stripe,
            };
            rows.push(if request.muted.iter().any(|muted| muted.covers(name)) {
                FetchedRow::Muted(*position)
            } else if self.malformed.contains(&stored.message.id) {
                FetchedRow::Malformed(waiting(), "nonsense".to_owned())
            } else if self.keys.contains_key(of) {
                FetchedRow::Failing(waiting())
            } else {
                FetchedRow::Message(Arc::clone(stored))
            });
            if rows.len() == request.limit {
                return Fetched { rows, full: true, reached: Position::START };
            }
        }
        let allowed = keys_in(request.buckets).all(|of| self.owns(request.relay, of, now));
        let last = self.hot.keys().next_back().copied().filter(|_| allowed).unwrap_or_default();
        Fetched { rows, full: false, reached: last.min(request.until) }
    }

    /// Those that have taken a position; some stores also count those that are about to.
    pub(super) fn writers(&self, all: bool) -> Writers {
        let writing = self.open.iter().filter(|open| all || !open.rows.is_empty());
        let last = Position(self.last);
        Writers { open: writing.map(|open| open.name.to_string()).collect(), last }
    }

    /// Removes what was delivered.
    pub(super) fn settle(&mut self, rows: &[RowId]) -> Vec<MessageId> {
        let mut removed = Vec::new();
        for row in rows {
            let is_it = self.hot.get(&row.position).is_some_and(|(_, stored)| stored.message.id == row.id);
            if (is_it || self.settles_without_id)
                && let Some((_, stored)) = self.hot.remove(&row.position)
            {
                removed.push(stored.message.id);
            }
        }
        removed
    }

    /// A heartbeat: what the relay owns now, and how many buckets are its share.
    pub(super) fn lease(
        &mut self,
        relay: RelayId,
        low_water: &LowWater,
        yielding: &BucketSet,
        now: Duration,
    ) -> (Vec<Lease>, usize) {
        self.relays.insert(relay, now + LEASE);
        self.relays.retain(|_, until| *until > now);
        let share = KEYS.div_ceil(self.relays.len());
        self.save(relay, low_water);
        for of in 0..KEYS {
            if self.owns(relay, of, now) && !yielding.contains(bucket(of)) {
                self.leases[of].until = now + LEASE;
            }
        }
        for of in 0..KEYS {
            let owned = (0..KEYS).filter(|of| self.owns(relay, *of, now)).count();
            let row = &mut self.leases[of];
            let is_free = row.owner.is_none() || row.until <= now;
            if is_free && owned < share && !yielding.contains(bucket(of)) {
                (row.owner, row.until, row.epoch) = (Some(relay), now + LEASE, Epoch(row.epoch.0 + 1));
            }
        }
        let owned = (0..KEYS).filter(|of| self.owns(relay, *of, now));
        let lease = |of: usize| {
            let LeaseRow { epoch, low_water, .. } = self.leases[of];
            Lease { bucket: bucket(of), epoch, low_water }
        };
        (owned.map(lease).collect(), share)
    }

    fn save(&mut self, relay: RelayId, low_water: &LowWater) {
        for of in 0..KEYS {
            let row = &mut self.leases[of];
            if row.owner == Some(relay)
                && low_water.life == self.life
                && let Some(mark) = low_water.of(bucket(of), row.epoch)
            {
                row.low_water = mark;
            }
        }
    }

    /// Gives buckets back.
    pub(super) fn give_back(
        &mut self,
        relay: RelayId,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) {
        self.save(relay, low_water);
        for of in 0..KEYS {
            let given =
                leases.iter().any(|lease| lease.bucket == bucket(of) && lease.epoch == self.leases[of].epoch);
            let row = &mut self.leases[of];
            if row.owner == Some(relay) && (given || leaving) {
                row.owner = None;
            }
        }
        if leaving {
            self.relays.remove(&relay);
        }
    }

    /// A row that a saved mark passes, or that may still be committed there.
    pub(super) fn passed_by_a_mark(&self) -> Option<(usize, Position, Position)> {
        let hot = self.hot.iter().map(|(position, (of, _))| (*position, *of));
        let open = self.open.iter().flat_map(|open| open.rows.iter().copied());
        let mut rows = hot.chain(open);
        rows.find_map(|(position, of)| {
            let mark = self.leases[of].low_water;
            (position <= mark).then_some((of, position, mark))
        })
    }

    /// The database is restored: what stood behind a position is lost, and positions come back for other messages.
    pub(super) fn restore(&mut self, lost: i64) {
        self.life += 1;
        self.last = (self.last - lost).max(0);
        for of in self.hot.split_off(&Position(self.last + 1)).into_values() {
            self.out.insert(of.1.message.id);
        }
        self.open.clear();
        for key in self.keys.values_mut() {
            let lost = key.parked.split_off(&Position(self.last + 1));
            self.out.extend(lost.values().map(|stored| stored.message.id));
        }
        self.keys.retain(|_, key| !key.parked.is_empty());
        for lease in &mut self.leases {
            lease.low_water = lease.low_water.min(Position(self.last));
        }
    }
}
