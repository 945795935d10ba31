//! A read window: how far it has looked, and from where it must look again.

use std::collections::BTreeSet;
use std::sync::Arc;

use outbox_contract::backend::{Ordering, Position, Writers};

use super::horizon::Claim;
use super::marks::Marks;

/// A stretch of the store that is read in order.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) cursor: Position,
    pub(super) horizon: Position,
    /// Above cursor and horizon: all at or below it was seen but what these transactions commit. While all of them are open it need
    /// not be read again, as long as that is looked at after each fetch.
    pub(super) base: Option<Claim>,
    /// How many bases were lost of late. Each makes the next one dearer, each that holds makes it cheaper.
    pub(super) losses: u32,
    /// Whether there may be something to read.
    pub(super) more: bool,
    /// Whether it stopped at rows that are to be parked or buried, and is read on when there is room for such.
    pub(super) waits: bool,
    /// Rows between start and cursor that are read through narrower gaps. They are left out of the next fetch: else a fetch that
    /// they fill would bring them again, and nothing behind them, for as long as a writer holds the horizon back.
    pub(super) passed: BTreeSet<Position>,
    /// How far each stripe was committed before the last fetch. What was committed since may be anywhere above that; all else at or below the
    /// cursor was seen.
    pub(super) seen: Marks,
}

/// What a fetch has shown of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    /// The last position that it returned.
    pub(super) last: Option<Position>,
    /// Whether a limit cut it short.
    pub(super) full: bool,
    /// Rows that it passed.
    pub(super) muted: &'a [Position],
    /// What was established when it began.
    pub(super) horizon: Position,
    /// What was claimed when it began.
    pub(super) claim: Option<&'a Claim>,
    /// How far stripes were committed before it began.
    pub(super) marks: &'a Marks,
}

/// The most rows of narrower gaps that a window leaves out by position. Beyond that it waits for the horizon.
const MAX_PASSED: usize = 10_000;
/// From so many losses on a base gets no dearer.
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

    /// Nothing of this window can come at or below it any more.
    pub(super) fn floor(&self, ordering: Ordering) -> Position {
        if ordering == Ordering::Writers { self.cursor.min(self.horizon) } else { self.cursor }
    }

    /// Where the next fetch begins.
    pub(super) fn start(&self, ordering: Ordering) -> Position {
        self.base.as_ref().map_or_else(|| self.floor(ordering), |base| base.last)
    }

    /// A window for a part of this one, of which nothing behind `after` was seen.
    pub(super) fn narrowed(&self, after: Position) -> Self {
        let mut window = Self { losses: 0, waits: false, passed: BTreeSet::new(), ..self.clone() };
        window.lower(after);
        window
    }

    pub(super) fn lower(&mut self, position: Position) {
        self.cursor = self.cursor.min(position);
        self.horizon = self.horizon.min(position);
        if let Some(base) = &mut self.base {
            // What was seen below it was seen.
            base.last = base.last.min(position);
        }
        self.drop_useless_base();
        self.more = true;
        // Some of them may be this window's own from now on.
        self.passed.clear();
    }

    /// Takes in the keys of another window: what either has not seen was not seen.
    pub(super) fn join(&mut self, other: &Self, ordering: Ordering) {
        self.lower(other.floor(ordering));
        self.seen = self.seen.earlier(&other.seen);
    }

    /// Gives the base up if one of its writers is over: what that one has committed may be below it.
    pub(super) fn hear(&mut self, writers: &Writers) {
        if self.base.as_ref().is_some_and(|base| !base.open.is_subset(&writers.open)) {
            self.base = None;
            self.losses = (self.losses + 1).min(MAX_LOSSES);
            self.more = true;
        }
    }

    /// Takes what a fetch showed that began where this window does. `walk` is how many positions may be read again before a base pays.
    pub(super) fn advance(&mut self, shown: Shown<'_>, ordering: Ordering, walk: i64) {
        let Shown { last, full, muted, horizon, claim, marks } = shown;
        if ordering == Ordering::Stripes {
            // It may have begun below the cursor. Cut short, it says nothing of what is behind its last row.
            self.cursor = last.map_or(self.cursor, |last| if full { last } else { self.cursor.max(last) });
            self.seen = marks.clone();
            self.more = full;
            return;
        }
        if let Some(last) = last {
            self.cursor = self.cursor.max(last);
        }
        // A fetch that was cut short has not looked behind its last row, though the cursor may have been there before.
        let shown_to =
            |position: Position| if full { last.unwrap_or_default().min(position) } else { position };
        self.horizon = self.horizon.max(shown_to(horizon));
        if !full {
            // All there is below the horizon was shown, and nothing can be added: what is missing there was rolled back or is gone.
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
