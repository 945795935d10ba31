//! The tables: plain data and plain methods, without locks, time or waiting of their own.
//!
//! Every method is one transaction: it is called under the store's mutex, told what time it is, and
//! leaves the tables whole. Whatever can be seen from outside comes from ordered maps, so that a
//! run can be replayed.

mod archive;
mod audit;
mod fetch;
mod figures;
mod handled_ids;
mod keys;
mod lease;
mod maintain;
mod operate;
mod route;
mod scheduled;
mod snapshot;
mod stripes;
mod transition;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::rules::options::StoreOptions;
use outbox_contract::backend::{Ordering, Position, RelayId, RowId, Stored, Writers};
use outbox_contract::{Message, Route, Timestamp};

use crate::locks::{LockName, TxId};
use crate::transaction::Written;
use archive::Archive;
use audit::Audit;
use handled_ids::HandledIds;
pub(crate) use operate::Flowing;
use route::RouteTables;
use scheduled::Scheduled;
pub use snapshot::Snapshot;

/// All tables of a store.
#[derive(Debug)]
pub(crate) struct Tables {
    ordering: Ordering,
    routes: BTreeMap<Route, RouteTables>,
    scheduled: Scheduled,
    archive: Archive,
    audit: Audit,
    handled_ids: HandledIds,
    roles: BTreeMap<String, (RelayId, Timestamp)>,
    /// The last position given out; where there are stripes, how many were. Never goes back.
    position: Position,
    /// The last version of any key's row. One count for all of them: a row that was removed and
    /// opened again never repeats a version.
    version: i64,
    /// The first position of each transaction that has taken one and is not over.
    writers: BTreeMap<TxId, Position>,
}

/// Messages that an operation may append: those whose locks it holds.
pub(crate) enum Appendable {
    /// All: one transaction writes at a time, and this is its turn.
    All,
    /// Messages that are appended under these locks.
    Locked(Ordering, BTreeSet<LockName>),
}

impl Appendable {
    fn covers(&self, route: &Route, message: &Message) -> bool {
        match self {
            Self::All => true,
            Self::Locked(ordering, names) => names.contains(&LockName::to_append(*ordering, route, message)),
        }
    }
}

impl Tables {
    pub(crate) fn new(ordering: Ordering, options: &StoreOptions) -> Self {
        Self {
            ordering,
            routes: BTreeMap::new(),
            scheduled: Scheduled::default(),
            archive: Archive::new(options.history),
            audit: Audit::new(options.audit_kept),
            handled_ids: HandledIds::new(options.handled_ids_kept, options.handled_ids_max_age),
            roles: BTreeMap::new(),
            position: Position::START,
            version: 0,
            writers: BTreeMap::new(),
        }
    }

    /// Gives positions to rows that are not committed yet: their transaction is a writer from now
    /// on.
    pub(crate) fn take_positions(&mut self, tx: TxId, rows: &mut [(Route, Stored)]) {
        for (_, row) in rows {
            row.position = self.next_position();
            self.writers.entry(tx).or_insert(row.position);
        }
    }

    /// The transaction is over.
    pub(crate) fn forget_writer(&mut self, tx: TxId) {
        self.writers.remove(&tx);
    }

    /// The transactions that took a position and are not over, and the last position given out.
    pub(crate) fn writers(&self) -> Writers {
        Writers::new(self.writers.keys().map(TxId::to_string).collect(), self.position)
    }

    /// Makes everything that a transaction wrote visible at once. Rows without a position get one
    /// now: with one writer at a time that is the order of commits, whatever else is appended
    /// meanwhile.
    pub(crate) fn commit(&mut self, tx: TxId, written: Written, now: Timestamp) {
        for (route, mut stored) in written.rows {
            if stored.position == Position::START {
                stored.position = self.next_position();
            }
            self.route(&route).insert_hot(Arc::new(stored));
        }
        for ((route, stripe), mark) in written.marks {
            self.route(&route).stripes.insert(stripe, mark);
        }
        for (due_at, route, message) in written.scheduled {
            self.scheduled.add(due_at, route, message);
        }
        for (id, name) in written.handled {
            self.handled_ids.add(id, name, now);
        }
        self.forget_writer(tx);
    }

    /// Appends a message, visible at once. The caller holds the lock that it takes, where it takes
    /// one.
    fn append(&mut self, route: &Route, message: Message, now: Timestamp) {
        let mut stored = Stored::new(Position::START, now, message);
        if self.ordering == Ordering::Stripes {
            self.append_to_stripe(route, &mut stored);
        } else {
            stored.position = self.next_position();
        }
        self.route(route).insert_hot(Arc::new(stored));
    }

    /// Removes delivered rows by position and id.
    pub(crate) fn settle(&mut self, route: &Route, delivered: &[RowId], now: Timestamp) {
        let Some(tables) = self.routes.get_mut(route) else { return };
        for row in delivered {
            if let Some(stored) = tables.remove_hot(*row) {
                self.archive.add_delivered(route, stored, now);
            }
        }
    }

    /// Gives a role to a relay unless another relay has it.
    pub(crate) fn elect(&mut self, role: &str, relay: RelayId, lasts: Duration, now: Timestamp) -> bool {
        let free = self.roles.get(role).is_none_or(|(holder, until)| *holder == relay || *until <= now);
        if free {
            self.roles.insert(role.to_owned(), (relay, now.plus(lasts)));
        }
        free
    }

    fn route(&mut self, route: &Route) -> &mut RouteTables {
        if !self.routes.contains_key(route) {
            self.routes.insert(route.clone(), RouteTables::default());
        }
        self.routes.entry(route.clone()).or_default()
    }

    fn next_position(&mut self) -> Position {
        self.position = Position(self.position.0 + 1);
        self.position
    }
}
