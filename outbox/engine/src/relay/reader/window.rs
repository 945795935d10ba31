//! A window of the reader: how far it has looked, and from where it must look again.

use std::collections::BTreeSet;

use outbox_contract::Position;
use outbox_contract::fetch::Ordering;

/// A stretch of the store that is read in order.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) cursor: Position,
    pub(super) horizon: Position,
    /// Whether there may be something to read.
    pub(super) more: bool,
    /// Rows between horizon and cursor that are read through narrower gaps. They are left out of the next fetch: else a fetch that
    /// they fill would bring them again, and nothing behind them, for as long as a writer holds the horizon back.
    pub(super) passed: BTreeSet<Position>,
}

/// The most rows of narrower gaps that a window leaves out by position. Beyond that it waits for the horizon.
const MOST_PASSED: usize = 10_000;

impl Window {
    pub(super) fn at(position: Position) -> Self {
        Self { cursor: position, horizon: position, more: true, passed: BTreeSet::new() }
    }

    pub(super) fn start(&self, ordering: Ordering) -> Position {
        if ordering == Ordering::Single { self.cursor } else { self.cursor.min(self.horizon) }
    }

    pub(super) fn lower(&mut self, position: Position) {
        self.cursor = self.cursor.min(position);
        self.horizon = self.horizon.min(position);
        self.more = true;
        // Some of them may be this window's own from now on.
        self.passed.clear();
    }

    /// Takes what a fetch showed: `last` is the last position that it returned, `muted` is what it passed.
    pub(super) fn advance(
        &mut self,
        last: Option<Position>,
        horizon: Position,
        full: bool,
        muted: &[Position],
    ) {
        if let Some(last) = last {
            self.cursor = self.cursor.max(last);
        }
        // A fetch that was cut short has not looked behind its last row, though the cursor may have been there before.
        let counts = if full { last.unwrap_or_default().min(horizon) } else { horizon };
        self.horizon = self.horizon.max(counts);
        if !full {
            // All there is below the horizon was shown, and nothing can be added: what is missing there was rolled back or is gone.
            self.cursor = self.cursor.max(horizon);
        }
        self.passed.extend(muted);
        let behind_the_start = Position(self.cursor.min(self.horizon).0.saturating_add(1));
        self.passed = self.passed.split_off(&behind_the_start);
        self.more = full && self.passed.len() < MOST_PASSED;
    }
}
