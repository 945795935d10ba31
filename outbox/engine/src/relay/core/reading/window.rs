//! Read window: how far it has read, and where it must read again.

use std::collections::BTreeSet;
use std::sync::Arc;

use outbox_contract::backend::{Ordering, Position, Writers};

use super::horizon::Claim;
use super::marks::Marks;

/// Range of the store that is read in order.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) cursor: Position,
    pub(super) horizon: Position,
    /// Claim above cursor and horizon. Everything at or below its position was seen, except what
    /// its transactions commit. While all of them are open, that range need not be read again,
    /// provided that this is checked after each fetch.
    pub(super) base: Option<Claim>,
    /// Number of bases lost recently. A loss makes the next base dearer, a base that holds makes it
    /// cheaper.
    pub(super) losses: u32,
    /// True if there may be something to read.
    pub(super) more: bool,
    /// True if it stopped at rows to be parked or buried. It continues when there is room for such
    /// rows.
    pub(super) waits: bool,
    /// Rows between start and cursor that are read through narrower gaps. The next fetch excludes
    /// them. Otherwise, a fetch full of them would return them again, and nothing behind them, for
    /// as long as a transaction holds the horizon back.
    pub(super) passed: BTreeSet<Position>,
    /// Committed marks before the last fetch. Later commits may be anywhere above those; everything
    /// else at or below the cursor was seen.
    pub(super) seen: Marks,
}

/// Result of a fetch through a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    /// Position of the last row.
    pub(super) last: Option<Position>,
    /// True if a limit cut the fetch short.
    pub(super) full: bool,
    /// Rows that it passed over.
    pub(super) muted: &'a [Position],
    /// Visibility horizon when it began.
    pub(super) horizon: Position,
    /// Claim when it began.
    pub(super) claim: Option<&'a Claim>,
    /// Committed marks before it began.
    pub(super) marks: &'a Marks,
}

/// Maximum number of rows of narrower gaps that a window excludes by position. Beyond it, the
/// window waits for the horizon.
const MAX_PASSED: usize = 10_000;
/// Number of losses after which a base gets no dearer.
const MAX_LOSSES: u32 = 20;

impl Window {
    pub(super) fn at(position: Position) -> Self {
        Self {
            cursor: position,
            horizon: position,
            base: None,
            losses: 0,
            more: true,
            waits: false,
            passed: BTreeSet::new(),
            seen: Marks::default(),
        }
    }

    /// Returns the position at or below which nothing of this window can appear any more.
    pub(super) fn floor(&self, ordering: Ordering) -> Position {
        if ordering == Ordering::Writers { self.cursor.min(self.horizon) } else { self.cursor }
    }

    /// Returns where the next fetch begins.
    pub(super) fn start(&self, ordering: Ordering) -> Position {
        self.base.as_ref().map_or_else(|| self.floor(ordering), |base| base.last)
    }

    /// Returns a window for a part of this one that has seen nothing behind `after`.
    pub(super) fn narrowed(&self, after: Position) -> Self {
        let mut window = Self { losses: 0, waits: false, passed: BTreeSet::new(), ..self.clone() };
        window.lower(after);
        window
    }

    pub(super) fn lower(&mut self, position: Position) {
        self.cursor = self.cursor.min(position);
        self.horizon = self.horizon.min(position);
        if let Some(base) = &mut self.base {
            // Positions seen below the base stay seen.
            base.last = base.last.min(position);
        }
        self.drop_useless_base();
        self.more = true;
        // Some of these rows may belong to this window from now on.
        self.passed.clear();
    }

    /// Keeps the cursor below a row that does not count yet. There need be nothing more to read
    /// now.
    pub(super) fn stay_below(&mut self, position: Position) {
        self.cursor = self.cursor.min(position.before());
    }

    /// Takes over the keys of another window: only what both have seen counts as seen.
    pub(super) fn join(&mut self, other: &Self, ordering: Ordering) {
        self.lower(other.floor(ordering));
        self.seen = self.seen.earlier(&other.seen);
    }

    /// Drops the base if one of its transactions has ended, because that one may have committed
    /// rows below it.
    pub(super) fn hear(&mut self, writers: &Writers) {
        if self.base.as_ref().is_some_and(|base| !base.open.is_subset(&writers.open)) {
            self.base = None;
            self.losses = (self.losses + 1).min(MAX_LOSSES);
            self.more = true;
        }
    }

    /// Processes the result of a fetch that began at this window's start. `walk`: number of
    /// positions that may be scanned again before a base pays.
    pub(super) fn advance(&mut self, shown: Shown<'_>, ordering: Ordering, walk: i64) {
        let Shown { last, full, muted, horizon, claim, marks } = shown;
        if ordering == Ordering::Stripes {
            // The fetch may have begun below the cursor. If it was cut short, it says nothing about
            // what is behind its last row.
            self.cursor = last.map_or(self.cursor, |last| if full { last } else { self.cursor.max(last) });
            self.seen = marks.clone();
            self.more = full;
            return;
        }
        if let Some(last) = last {
            self.cursor = self.cursor.max(last);
        }
        // A fetch that was cut short has seen nothing behind its last row, though an earlier one
        // may have.
        let shown_to =
            |position: Position| if full { last.unwrap_or_default().min(position) } else { position };
        self.horizon = self.horizon.max(shown_to(horizon));
        if !full {
            // Everything below the horizon was returned, and nothing can be added: missing rows
            // were rolled back or removed.
            self.cursor = self.cursor.max(horizon);
        }
        if self.base.is_some() {
            self.losses = self.losses.saturating_sub(1);
        }
        self.drop_useless_base();
        if let Some(claim) = claim {
            let last = shown_to(claim.last);
            if last.0.saturating_sub(self.start(ordering).0) > walk.saturating_mul(1 << self.losses) {
                self.base = Some(Claim { last, open: Arc::clone(&claim.open) });
            }
        }
        self.passed.extend(muted);
        let behind_the_start = Position(self.cursor.min(self.start(ordering)).0.saturating_add(1));
        self.passed = self.passed.split_off(&behind_the_start);
        self.more = full && self.passed.len() < MAX_PASSED;
    }

    fn drop_useless_base(&mut self) {
        if self.base.as_ref().is_some_and(|base| base.last <= self.cursor.min(self.horizon)) {
            self.base = None;
        }
    }
}
