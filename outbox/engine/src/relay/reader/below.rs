//! The look below: whether anything stands where nothing should. Pure.
//!
//! Where there are stripes, late commits stand below the cursor too. Numbers tell them from what was missed: a row whose number is within the marks of
//! the main window's last fetch was to be shown by then; one that is within the marks of now was committed since, and the next fetch shows it; one
//! that is above all marks, though a commit moves both at once, has counters that are not its own.

use std::collections::{BTreeMap, BTreeSet};

use outbox_contract::fetch::{FetchRequest, Fetched, FetchedRow};
use outbox_contract::{BucketSet, Position, RelayId, Route, Stripe, StripeId, StripeMark};

use super::marks::{Marks, stripe_of};
use super::{Plan, Reader};

/// A look below the main window, to carry out.
#[derive(Clone, Debug)]
pub(crate) struct Below {
    /// What to ask the store.
    pub(crate) request: FetchRequest,
    changes: u64,
    /// How far stripes were committed before the main window's last fetch. None: there are no stripes.
    seen: Option<Marks>,
    /// Stripes that wait for it.
    astray: BTreeSet<StripeId>,
}

impl Below {
    /// Whether the store is to be asked how far its stripes are committed when this look has returned these rows.
    pub(crate) fn wants_stripes(&self, fetched: &Fetched) -> bool {
        self.seen.is_some() && fetched.rows.iter().any(|row| !matches!(row, FetchedRow::Muted(_)))
    }
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
    /// Rows stand here, the first of them at this position; everything is read again from before it.
    Rows(Position, Cause),
}

/// The probable cause of rows that stand below what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The sequence of positions went back.
    Sequence,
    /// Rows were put there.
    Rows,
    /// The counters of stripes went back, or were lost.
    Counters,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sequence => {
                "positions went back: a sequence was set, or the tables were restored, moved or filled without it; set the sequence of positions \
                 above the highest position that was ever used"
            }
            Self::Rows => {
                "rows were put into outbox_message with positions of before: it was restored, moved or filled by itself; nothing else is to be done"
            }
            Self::Counters => {
                "the counters of stripes are behind the messages: outbox_stripe was restored, set back or emptied by itself; restore it together with \
                 outbox_message"
            }
        })
    }
}

/// Rows that count though they are above the mark of their stripe: a look has shown them, and the mark was behind them afterwards. By stripe, up to
/// which position. What is committed later stands above, for positions are taken from the clock.
#[derive(Debug, Default)]
pub(super) struct Trusted(BTreeMap<StripeId, Position>);

impl Trusted {
    pub(super) fn covers(&self, row: &FetchedRow) -> bool {
        let up_to = stripe_of(row).and_then(|(stripe, _)| self.0.get(&stripe.stripe));
        up_to.is_some_and(|up_to| row.position() <= *up_to)
    }

    fn trust(&mut self, stripe: StripeId, up_to: Position) {
        let trusted = self.0.entry(stripe).or_insert(up_to);
        *trusted = up_to.max(*trusted);
    }
}

/// What fetches have shown that counts for nothing yet, and stripes in which something stands where it should not.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// The highest number above its mark that was shown of each stripe since the marks were asked for. The next marks are to have come so far.
    shown: BTreeMap<StripeId, i64>,
    /// Stripes of which rows stand below what was read, or above their counter. The rest of them waits for a look: it may pass what was appended before it.
    astray: BTreeSet<StripeId>,
}

impl Early {
    /// Takes the marks that were asked for after all that was shown.
    pub(super) fn committed(&mut self, marks: &Marks) {
        let shown = std::mem::take(&mut self.shown);
        let is_above = |(stripe, number): &(StripeId, i64)| *number > marks.number(*stripe);
        self.astray.extend(shown.into_iter().filter(is_above).map(|(stripe, _)| stripe));
    }

    /// Forgets buckets of which no marks are asked for any more.
    pub(super) fn lose(&mut self, buckets: &BucketSet) {
        self.shown.retain(|stripe, _| !buckets.contains(stripe.bucket()));
        self.astray.retain(|stripe| !buckets.contains(stripe.bucket()));
    }
}

/// The most rows of narrower windows that one look passes.
const MOST_PASSED: usize = 1_000;

impl Reader {
    /// Whether something stands where it should not, and a look is to find it.
    pub(crate) fn is_astray(&self) -> bool {
        !self.early.astray.is_empty()
    }

    /// Whether a row of a fetch counts for nothing yet: it is above the mark of its stripe, was to be shown long ago, or stands behind such a row.
    pub(super) fn is_early(&mut self, plan: &Plan, row: &FetchedRow) -> bool {
        let Some((Stripe { stripe, number }, bucket)) = stripe_of(row) else { return false };
        if stripe.bucket() != bucket {
            return false;
        }
        if !plan.marks.cover(row) && !self.trusted.covers(row) {
            let shown = self.early.shown.entry(stripe).or_insert(number);
            *shown = number.max(*shown);
            return true;
        }
        // In a stripe that is in order it would be above the mark as well.
        let passes = self.early.shown.contains_key(&stripe);
        // A look goes through the main window.
        let is_main = plan.window.is_none();
        let main = &self.windows.main;
        let is_missed = is_main
            && row.position() <= main.cursor
            && number <= main.seen.number(stripe)
            && !self.is_elsewhere(row);
        if passes || is_missed {
            self.early.astray.insert(stripe);
        }
        passes || is_missed || (is_main && self.early.astray.contains(&stripe))
    }

    /// Whether a row is read through a window of failing keys, which is not named to the store.
    fn is_elsewhere(&self, row: &FetchedRow) -> bool {
        match row {
            FetchedRow::Muted(_) => true,
            FetchedRow::Failing(waiting) => self.windows.is_aside(&waiting.key),
            FetchedRow::Message(stored) => self.windows.is_aside(&stored.message.key_id()),
            _ => false,
        }
    }

    /// A look at what stands behind `after` and below what the main window reads; up to `until`, where a look goes on. None: nothing is read yet.
    pub(crate) fn below(
        &mut self,
        route: &Route,
        relay: RelayId,
        after: Position,
        until: Option<Position>,
    ) -> Option<Below> {
        let seen = self.has_stripes().then(|| self.windows.main.seen.clone());
        if seen.is_some() {
            // A row that no counter tells of is no news to the main window. So that window passes it now, and the next look finds it.
            self.windows.main.more = true;
        }
        let floor = self.windows.main.floor(self.windows.ordering);
        let until = until.map_or(floor, |until| until.min(floor));
        let buckets = self.windows.main_buckets(self.owned);
        if buckets.is_empty() || until <= after {
            return None;
        }
        let mut request = FetchRequest::new(route.clone(), relay, buckets);
        (request.after, request.until) = (after, until);
        request.except = self.in_flight.behind(after).take_while(|position| *position <= until).collect();
        // They have windows of their own, which may be far behind.
        request.muted = self.windows.muted(None);
        // A single row says that there is something. Of stripes there are many, and late commits stand between.
        (request.limit, request.bytes) =
            if seen.is_some() { (self.limits.rows, self.limits.bytes) } else { (MOST_PASSED, 1) };
        Some(Below { request, changes: self.changes, seen, astray: self.early.astray.clone() })
    }

    /// Takes the answer to a look below, and how far stripes were committed when it was there.
    pub(crate) fn seen_below(&mut self, below: &Below, fetched: &Fetched, marks: Vec<StripeMark>) -> Seen {
        if below.changes != self.changes {
            return Seen::Useless;
        }
        let marks = Marks::new(marks);
        let mut found = None;
        for row in &fetched.rows {
            if self.is_elsewhere(row) {
                continue;
            }
            let Some(cause) = cause(row, below.seen.as_ref(), &marks) else { continue };
            if cause == Cause::Counters
                && let Some((stripe, _)) = stripe_of(row)
            {
                self.trusted.trust(stripe.stripe, below.request.until);
            }
            let (at, before) = found.unwrap_or((row.position(), cause));
            found = Some((at, before.max(cause)));
        }
        if found.is_some() || !fetched.full {
            self.early.astray.retain(|stripe| !below.astray.contains(stripe));
        }
        if let Some((at, cause)) = found {
            self.changes += 1;
            // It is shown again.
            self.early.shown.clear();
            self.horizon.go_back(at.before());
            self.windows.all_mut().for_each(|window| window.lower(at.before()));
            return Seen::Rows(at, cause);
        }
        match fetched.rows.last() {
            Some(last) if fetched.full => Seen::NothingYet(last.position()),
            _ => Seen::Nothing,
        }
    }
}

/// Why a row stands below what was read. None: it should.
fn cause(row: &FetchedRow, seen: Option<&Marks>, now: &Marks) -> Option<Cause> {
    let Some(seen) = seen else { return Some(Cause::Sequence) };
    let Some((stripe, bucket)) = stripe_of(row) else { return Some(Cause::Rows) };
    if stripe.number <= seen.number(stripe.stripe) {
        return Some(Cause::Rows);
    }
    if stripe.number <= now.number(stripe.stripe) {
        // Committed since the main window's last fetch: news.
        return None;
    }
    // Of a stripe of another bucket nobody may have asked for the mark.
    Some(if stripe.stripe.bucket() == bucket { Cause::Counters } else { Cause::Rows })
}
