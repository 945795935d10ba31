//! The store of the model: the hot table with its writers, leases, and how far shards are
//! committed, as the contract says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::MessageId;
use outbox_contract::backend::{
    BucketSet, FetchRequest, Fetched, FetchedRow, Ordering, Position, RelayId, RowId, Stored, Stripe,
    StripeMark, Waiting, Writers,
};

use super::Sabotage;
use super::cast::{KEYS, SHARDS, SLOTS, id_of, shard_of, slot_of, slots_in, stored, stripe_of, the_key};
use super::failing::KeyRow;
use super::judge::Ledger;
use super::leases::LeaseRow;

/// A transaction that is open.
#[derive(Debug)]
pub(super) struct Transaction {
    name: u64,
    pub(super) rows: Vec<(Position, usize)>,
    /// Number of rows of its last append to each shard.
    appended: [usize; SHARDS],
}

/// Content of a backup.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub(super) hot: BTreeMap<Position, (usize, Arc<Stored>)>,
    pub(super) keys: BTreeMap<usize, KeyRow>,
    pub(super) dead: Vec<(usize, Arc<Stored>)>,
    pub(super) low_water: [Position; SLOTS],
    last: i64,
    marks: [Option<StripeMark>; SHARDS],
    numbers: [i64; SHARDS],
}

#[derive(Debug)]
pub(super) struct Store {
    pub(super) ordering: Ordering,
    pub(super) sabotage: Option<Sabotage>,
    pub(super) tables: Tables,
    pub(super) ledger: Ledger,
    pub(super) open: Vec<Transaction>,
    pub(super) leases: [LeaseRow; SLOTS],
    pub(super) relays: BTreeMap<RelayId, Duration>,
    /// Relays that give way to the others.
    pub(super) giving_way: BTreeSet<RelayId>,
    /// Versions of keys that were given out.
    pub(super) version: i64,
    pub(super) life: i64,
    /// Rows that were removed, the last ones.
    pub(super) removed: Vec<(usize, Arc<Stored>)>,
    /// Rows that stand below marks since somebody put them there.
    pub(super) misplaced: BTreeSet<Position>,
    begun: u64,
    /// Lead of the positions of each shard, if there are shards.
    ahead: [i64; SHARDS],
}

/// Number of removed rows that are remembered.
const REMEMBERED: usize = 12;

impl Store {
    pub(super) fn new(ordering: Ordering, sabotage: Option<Sabotage>, random: &mut fastrand::Rng) -> Self {
        Self {
            ordering,
            sabotage,
            tables: Tables::default(),
            ledger: Ledger::default(),
            open: Vec::new(),
            leases: [LeaseRow::default(); SLOTS],
            relays: BTreeMap::new(),
            giving_way: BTreeSet::new(),
            version: 0,
            life: 0,
            removed: Vec::new(),
            misplaced: BTreeSet::new(),
            begun: 0,
            ahead: std::array::from_fn(|_| random.i64(0..20) * random.i64(0..3)),
        }
    }

    pub(super) fn begin(&mut self) {
        self.begun += 1;
        self.open.push(Transaction { name: self.begun, rows: Vec::new(), appended: [0; SHARDS] });
    }

    /// The lock of the key, of its shard or of the database is held from append to commit, and the
    /// position is taken under it.
    pub(super) fn append(&mut self, transaction: usize, of: usize, rows: usize) -> bool {
        if self.is_locked(of, Some(transaction)) {
            return false;
        }
        for _ in 0..rows {
            let position = self.next_position(of);
            self.open[transaction].rows.push((position, of));
        }
        self.open[transaction].appended[shard_of(of)] = rows;
        true
    }

    /// Returns true if another open transaction has written rows that this key is in order with.
    fn is_locked(&self, of: usize, but: Option<usize>) -> bool {
        let locks = |open: &Transaction| match self.ordering {
            Ordering::Single => !open.rows.is_empty(),
            Ordering::Stripes => open.rows.iter().any(|(_, other)| shard_of(*other) == shard_of(of)),
            _ => open.rows.iter().any(|(_, other)| *other == of),
        };
        (0..self.open.len()).any(|other| Some(other) != but && locks(&self.open[other]))
    }

    fn next_position(&mut self, of: usize) -> Position {
        let Tables { last, marks, .. } = &mut self.tables;
        *last += 1;
        if self.ordering != Ordering::Stripes {
            return Position(*last);
        }
        // No two shards have one in common. It is above the last one of the shard, whatever the
        // clock shows.
        let (shard, shards) = (shard_of(of), SHARDS as i64);
        let at = |turn: i64| Position(turn * shards + shard as i64);
        let clock = at(*last + self.ahead[shard]);
        let open = self.open.iter().flat_map(|open| &open.rows);
        let taken = open.filter(|(_, other)| shard_of(*other) == shard).map(|(position, _)| *position);
        let last = taken.max().max(marks[shard].map(|mark| mark.position)).unwrap_or_default();
        clock.max(at(last.0 / shards + 1))
    }

    /// Commits a transaction; says which messages are there now.
    pub(super) fn commit(&mut self, transaction: usize) -> Vec<MessageId> {
        let Transaction { rows, appended, .. } = self.open.swap_remove(transaction);
        let mut ids = Vec::with_capacity(rows.len());
        let mut counts = [0; SHARDS];
        rows.iter().for_each(|(_, of)| counts[shard_of(*of)] += 1);
        let mut seen = [0; SHARDS];
        let mut firsts = [None; SHARDS];
        for (position, of) in rows {
            let id = id_of(self.ledger.commit(of));
            let mut row = stored(position, of, id);
            if self.ordering == Ordering::Stripes {
                let shard = shard_of(of);
                let starts_last_append = seen[shard] + appended[shard] == counts[shard];
                seen[shard] += 1;
                self.number(&mut row, of, starts_last_append, &mut firsts[shard]);
            }
            self.tables.hot.insert(position, (of, row));
            ids.push(id);
        }
        ids
    }

    /// Numbers are taken under a lock that is held to commit: they count what was committed.
    fn number(
        &mut self,
        row: &mut Arc<Stored>,
        of: usize,
        starts_last_append: bool,
        first: &mut Option<(i64, Position, Position)>,
    ) {
        let shard = shard_of(of);
        self.tables.numbers[shard] += 1;
        let last = Stripe { stripe: stripe_of(of), number: self.tables.numbers[shard] };
        let position = row.position;
        Arc::make_mut(row).stripe = Some(last);
        let previous = self.tables.marks[shard].map_or(Position::START, |mark| mark.position);
        let start = (last.number, position, previous);
        if starts_last_append {
            *first = Some(start);
        }
        let (first_number, first_position, previous_position) = first.unwrap_or(start);
        let mark = StripeMark { last, position, first_number, first_position, previous_position };
        self.tables.marks[shard] = Some(mark);
    }

    /// An operator appends the dead letters of a key again, each at its end. Returns them.
    pub(super) fn requeue(&mut self, of: usize) -> Vec<MessageId> {
        if self.is_locked(of, None) {
            return Vec::new();
        }
        let ids = self.take_dead(of);
        for id in &ids {
            let position = self.next_position(of);
            self.ledger.requeue(*id);
            let mut row = stored(position, of, *id);
            if self.ordering == Ordering::Stripes {
                self.number(&mut row, of, true, &mut None);
            }
            self.tables.hot.insert(position, (of, row));
        }
        ids
    }

    pub(super) fn roll_back(&mut self, transaction: usize) {
        self.open.swap_remove(transaction);
    }

    pub(super) fn marks(&self, buckets: &BucketSet) -> Vec<StripeMark> {
        let of_buckets = |mark: &StripeMark| buckets.contains(mark.last.stripe.bucket());
        self.tables.marks.iter().flatten().copied().filter(of_buckets).collect()
    }

    pub(super) fn fetch(&self, request: &FetchRequest, now: Duration) -> Fetched {
        let asked: Vec<usize> =
            slots_in(request.buckets).filter(|slot| self.owns(request.relay, *slot, now)).collect();
        let lapsed = asked.len() < slots_in(request.buckets).count();
        let is_muted: [bool; KEYS] =
            std::array::from_fn(|of| request.muted.iter().any(|muted| muted.covers(the_key(of))));
        let is_asked: [bool; KEYS] =
            std::array::from_fn(|of| asked.contains(&slot_of(of)) && request.scope.covers(the_key(of)));
        let mut rows = Vec::new();
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let until = if request.until > request.after { Included(request.until) } else { Unbounded };
        for (position, (of, stored)) in self.tables.hot.range((Excluded(request.after), until)) {
            if *position > request.until || !is_asked[*of] || request.except.contains(position) {
                continue;
            }
            let waiting = || Waiting::new(stored.row(), the_key(*of).clone(), stored.bucket, stored.stripe);
            rows.push(if is_muted[*of] {
                FetchedRow::Muted(*position)
            } else if self.ledger.fate(stored.message.id).malformed {
                FetchedRow::Malformed(waiting(), "nonsense".to_owned())
            } else if self.tables.keys.contains_key(of) {
                FetchedRow::Failing(waiting())
            } else {
                FetchedRow::Message(Arc::clone(stored))
            });
            if rows.len() == request.limit {
                return Fetched::new(rows, true, Position::START, lapsed);
            }
        }
        let last = self.tables.hot.keys().next_back().copied().filter(|_| !lapsed).unwrap_or_default();
        Fetched::new(rows, false, last.min(request.until), lapsed)
    }

    /// The highest position that was given out.
    pub(super) fn last(&self) -> Position {
        Position(self.tables.last)
    }

    /// Those that have taken a position; some stores also count those that are about to. `last` was
    /// read before.
    pub(super) fn writers(&self, all: bool, last: Position) -> Writers {
        let writing = self.open.iter().filter(|open| all || !open.rows.is_empty());
        Writers::new(writing.map(|open| open.name.to_string()).collect(), last)
    }

    /// Removes what was delivered. Returns each row that is gone, with the id that was asked for.
    pub(super) fn settle(&mut self, rows: &[RowId]) -> Vec<(MessageId, usize, Arc<Stored>)> {
        let without_id = self.sabotage == Some(Sabotage::SettlesWithoutId);
        let mut gone = Vec::new();
        for row in rows {
            let is_it =
                self.tables.hot.get(&row.position).is_some_and(|(_, stored)| stored.message.id == row.id);
            if (is_it || without_id)
                && let Some((of, stored)) = self.take_hot(row.position)
            {
                self.removed.push((of, Arc::clone(&stored)));
                gone.push((row.id, of, stored));
            }
        }
        let over = self.removed.len().saturating_sub(REMEMBERED);
        self.removed.drain(..over);
        gone
    }

    pub(super) fn take_hot(&mut self, position: Position) -> Option<(usize, Arc<Stored>)> {
        self.misplaced.remove(&position);
        self.tables.hot.remove(&position)
    }

    /// A row that a saved mark passes, or that may still be committed there.
    pub(super) fn passed_by_a_mark(&self) -> Option<(usize, Position, Position)> {
        let highest = self.leases.iter().map(|lease| lease.low_water).max().unwrap_or_default();
        let hot = self.tables.hot.range(..=highest).map(|(position, (of, _))| (*position, *of));
        let hot = hot.filter(|(position, _)| !self.misplaced.contains(position));
        let open = self.open.iter().flat_map(|open| open.rows.iter().copied());
        hot.chain(open).find_map(|(position, of)| {
            let mark = self.leases[slot_of(of)].low_water;
            (position <= mark).then_some((of, position, mark))
        })
    }

    /// A backup of everything that is committed.
    pub(super) fn back_up(&self) -> Tables {
        let low_water = std::array::from_fn(|slot| self.leases[slot].low_water);
        Tables { low_water, ..self.tables.clone() }
    }

    /// The database is restored: what was committed since the backup is lost, and its positions
    /// come back for other messages.
    pub(super) fn restore(&mut self, backup: &Tables) {
        self.life += 1;
        self.tables = backup.clone();
        self.open.clear();
        self.removed.clear();
        for (lease, low_water) in self.leases.iter_mut().zip(backup.low_water) {
            lease.low_water = low_water;
        }
        // Rows that were there before are there again.
        let marks: [Position; SLOTS] = std::array::from_fn(|slot| self.leases[slot].low_water);
        let hot = self.tables.hot.iter().filter(|(position, (of, _))| **position <= marks[slot_of(*of)]);
        self.misplaced = hot.map(|(position, _)| *position).collect();
        let mut there = vec![false; self.ledger.messages() + 1];
        let parked = self.tables.keys.values().flat_map(|key| key.parked.values());
        for stored in self.tables.hot.values().map(|(_, stored)| stored).chain(parked) {
            there[super::cast::serial_of(stored.message.id)] = true;
        }
        self.ledger.restore(|serial| there[serial]);
    }

    /// The counters of shards alone go back to those of a backup, or to nothing, except to these.
    pub(super) fn age_counters(&mut self, backup: Option<&Tables>, except: &[StripeMark]) {
        let backup = backup.cloned().unwrap_or_default();
        for (shard, mark) in backup.marks.into_iter().enumerate() {
            if mark.is_none_or(|mark| !except.contains(&mark)) {
                (self.tables.marks[shard], self.tables.numbers[shard]) = (mark, backup.numbers[shard]);
            }
        }
    }

    /// Rows that were removed are put back by themselves, as by somebody who restores one table.
    /// Says which.
    pub(super) fn put_back(&mut self, count: usize) -> Vec<String> {
        let mut back = Vec::new();
        for (of, stored) in self.removed.drain(..).rev().take(count).collect::<Vec<_>>() {
            let position = stored.position;
            let is_free = !self.tables.hot.contains_key(&position);
            if is_free && self.ledger.fate(stored.message.id).arrived {
                back.push(format!("m{}/k{of}@{position}", super::cast::serial_of(stored.message.id)));
                self.tables.hot.insert(position, (of, stored));
                self.misplaced.insert(position);
            }
        }
        back
    }
}
