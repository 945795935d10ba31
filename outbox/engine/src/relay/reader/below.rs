//! The look below: whether anything stands where nothing should. Pure.

use outbox_contract::fetch::{FetchRequest, Fetched, FetchedRow, Ordering};
use outbox_contract::{Position, RelayId, Route};

use super::Reader;

/// A look below the main window, to carry out.
#[derive(Clone, Debug)]
pub(crate) struct Below {
    /// What to ask the store.
    pub(crate) request: FetchRequest,
    changes: u64,
}

/// What a look below says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// There is nothing, up to the end of what was asked for.
    Nothing,
    /// There is nothing up to this position: the next look goes on from there.
    NothingYet(Position),
    /// What is to be read has changed meanwhile: look again.
    Useless,
    /// A row stands here; everything is read again from before it.
    Row(Position),
}

/// The most rows of narrower windows that one look passes.
const MOST_PASSED: usize = 1_000;

impl Reader {
    /// A look at what stands behind `after` and below what the main window reads. None: nothing is read yet, or the store says by itself what is
    /// to be read again, as where there are stripes.
    pub(crate) fn below(&self, route: &Route, relay: RelayId, after: Position) -> Option<Below> {
        let until = self.windows.main.floor(self.windows.ordering);
        let buckets = self.windows.main_buckets(self.owned);
        if self.windows.ordering == Ordering::Stripes || buckets.is_empty() || until <= after {
            return None;
        }
        let mut request = FetchRequest::new(route.clone(), relay, buckets);
        (request.after, request.until) = (after, until);
        request.except = self.in_flight.behind(after).take_while(|position| *position <= until).collect();
        // They have windows of their own, which may be far behind.
        request.muted = self.windows.muted(None);
        (request.limit, request.bytes) = (MOST_PASSED, 1);
        Some(Below { request, changes: self.changes })
    }

    /// Takes the answer to a look below.
    pub(crate) fn seen_below(&mut self, below: &Below, fetched: &Fetched) -> Seen {
        if below.changes != self.changes {
            return Seen::Useless;
        }
        let is_elsewhere = |row: &FetchedRow| match row {
            FetchedRow::Muted(_) => true,
            FetchedRow::Failing(waiting) => self.windows.is_aside(&waiting.key),
            FetchedRow::Message(stored) => self.windows.is_aside(&stored.message.key_id()),
            _ => false,
        };
        let found = fetched.rows.iter().find(|row| !is_elsewhere(row));
        if let Some(row) = found {
            self.changes += 1;
            let before = row.position().before();
            self.horizon.go_back(before);
            self.windows.all_mut().for_each(|window| window.lower(before));
            return Seen::Row(row.position());
        }
        match fetched.rows.last() {
            Some(last) if fetched.full => Seen::NothingYet(last.position()),
            _ => Seen::Nothing,
        }
    }
}
