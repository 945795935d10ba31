//! The look below: whether anything stands where nothing should. A saved mark, a cursor and a counter are wakeup_signal, the rows are the truth.
//!
//! Where there are shards, late commits stand below the cursor too. Numbers tell them from what was missed: a row whose number is within the marks of
//! the main window's last fetch was to be shown by then; one that is within the marks of now was committed since, and the next fetch shows it; one
//! that is above all marks, though a commit moves both at once, has counters that are not its own.
//!
//! A look that finds nothing is one read of the index by which rows are fetched, from its beginning to the cursor: it passes what is in flight, which is at
//! most `credit` entries and left out by position, and what the database has not purged yet. Where there are shards, the main window reads on from its
//! cursor besides, though no counter has moved: one fetch of no rows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outbox_contract::backend::{
    BucketSet, FetchRequest, Fetched, FetchedRow, Position, Stripe, StripeId, StripeMark,
};

use super::marks::{Marks, stripe_of};
use super::{Plan, Turn};
use crate::relay::core::event::{Command, Report};
use crate::relay::core::{Core, sabotaged};

/// Wait after a look that found nothing. Where there are shards, a row that no counter tells of may take two: one until the main
/// window has passed it, and one until it is found. Both together are less than a minute.
const EVERY: Duration = Duration::from_secs(25);
/// Wait after one that did, or that is not over yet: more may have come there, as while a sequence that was set back catches up.
const SOON: Duration = Duration::from_secs(1);
/// Wait in times of what a look took: where dead rows are kept by an old snapshot, it walks over all of them.
const REST: u32 = 50;
/// Interval of warnings.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of rows of narrower windows that one look passes.
const MAX_PASSED: usize = 1_000;

/// When to look below, and from where.
#[derive(Debug, Default)]
pub(in crate::relay::core) struct LookBelow {
    next: Duration,
    /// Up to here nothing was found by a look that is not at its end.
    after: Position,
    /// Where that look ends, however far the relay has read meanwhile.
    until: Option<Position>,
    /// The pause behind a look that found something; grows while none does.
    pause: Duration,
    /// The shortest pause behind the last one.
    rest: Duration,
    warned: Option<Duration>,
    under_way: Option<UnderWay>,
}

/// A look that is under way.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    until: Position,
    changes: u64,
    /// How far shards were committed before the main window's last fetch. None: there are no shards.
    seen: Option<Marks>,
    /// Shards that wait for it.
    astray: BTreeSet<StripeId>,
}

impl LookBelow {
    pub(in crate::relay::core) fn look_at(&mut self, at: Duration) {
        (self.next, self.after, self.until) = (at, Position::START, None);
    }

    /// A fetch has shown that something stands where it should not.
    fn hurry(&mut self, now: Duration) {
        let soon = now + SOON.max(self.rest);
        if soon < self.next {
            self.look_at(soon);
        }
    }
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

impl Core {
    /// Whether a row of a fetch counts for nothing yet: it is above the mark of its shard, was to be shown long ago, or stands behind such a row.
    pub(super) fn is_early(&mut self, plan: &Plan, row: &FetchedRow) -> bool {
        if !self.reading.has_shards() || sabotaged!(self, RowsAboveMarks) {
            return false;
        }
        let Some((Stripe { stripe, number }, bucket)) = stripe_of(row) else { return false };
        if stripe.bucket() != bucket {
            return false;
        }
        if !plan.marks.cover(row) && !self.reading.trusted.covers(row) {
            let shown = self.reading.early.shown.entry(stripe).or_insert(number);
            *shown = number.max(*shown);
            return true;
        }
        // In a shard that is in order it would be above the mark as well.
        let passes = self.reading.early.shown.contains_key(&stripe);
        // A look goes through the main window.
        let is_main = plan.turn == Turn::Wide(None);
        let main = &self.reading.windows.main;
        let is_missed = is_main
            && row.position() <= main.cursor
            && number <= main.seen.number(stripe)
            && !self.is_elsewhere(row);
        let early = &mut self.reading.early;
        if passes || is_missed {
            early.astray.insert(stripe);
        }
        passes || is_missed || (is_main && early.astray.contains(&stripe))
    }

    /// Whether a row is in memory, or read through a window of its key, which need not be named to the store.
    fn is_elsewhere(&self, row: &FetchedRow) -> bool {
        let name = match row {
            FetchedRow::Muted(_) => return true,
            FetchedRow::Failing(waiting) => (waiting.key.clone(), waiting.bucket),
            FetchedRow::Message(stored) => (stored.message.key_id(), stored.bucket),
            _ => return self.table.has_row(row.position()),
        };
        let key = self.table.find(&name).and_then(|key| self.table.get(key));
        key.is_some_and(|state| state.window.is_some()) || self.table.has_row(row.position())
    }

    /// Looks below what is read, if it is time. Nobody waits for the answer.
    pub(in crate::relay::core) fn begin_looking_below(&mut self) {
        if !self.reading.early.astray.is_empty() {
            self.below.hurry(self.now);
        }
        if self.below.under_way.is_some() || self.now < self.below.next {
            return;
        }
        let has_shards = self.reading.has_shards();
        let seen = has_shards.then(|| self.reading.windows.main.seen.clone());
        let Some(request) = self.request_below(has_shards) else {
            // Each look of a core with shards costs a fetch.
            return self.below.look_at(self.now + if has_shards { EVERY } else { SOON });
        };
        let number = self.next_number();
        let (changes, astray) = (self.reading.changes, self.reading.early.astray.clone());
        self.below.under_way = Some(UnderWay { number, until: request.until, changes, seen, astray });
        self.commands.push(Command::LookBelow { number, request, with_marks: has_shards });
    }

    /// What to ask. None: nothing is read yet.
    fn request_below(&mut self, has_shards: bool) -> Option<FetchRequest> {
        let windows = &mut self.reading.windows;
        // A row that no counter tells of is no news to the main window. So that window passes it now, and the next look finds it.
        windows.main.more |= has_shards;
        let floor = windows.main.floor(windows.ordering);
        let (after, until) = (self.below.after, self.below.until.map_or(floor, |until| until.min(floor)));
        let buckets = windows.main_buckets(self.reading.owned);
        if buckets.is_empty() || until <= after {
            return None;
        }
        let mut request = FetchRequest::new(self.route.clone(), self.relay, buckets);
        (request.after, request.until) = (after, until);
        request.except = self.table.rows_behind(after).take_while(|position| *position <= until).collect();
        // They have windows of their own, which may be far behind.
        request.muted = windows.muted_topics(None).collect();
        request.muted.extend(self.table.muted().take(super::MAX_MUTED_KEYS));
        // A single row says that there is something, unless it is elsewhere. Of shards there are many, and late commits stand between.
        (request.limit, request.bytes) =
            if has_shards { (self.limits.fetch_rows, self.limits.fetch_bytes) } else { (MAX_PASSED, 1) };
        Some(request)
    }

    /// Takes the answer to a look below, and how far shards were committed when it was there; none if the look failed.
    pub(in crate::relay::core) fn looked_below(
        &mut self,
        number: u64,
        took: Duration,
        answer: Option<(Fetched, Vec<StripeMark>)>,
    ) {
        let Some(look) = self.below.under_way.take_if(|look| look.number == number) else { return };
        let rest = took.saturating_mul(REST);
        self.below.rest = rest;
        let Some((fetched, marks)) = answer else { return self.below.look_at(self.now + EVERY.max(rest)) };
        if look.changes != self.reading.changes {
            return self.below.look_at(self.now + SOON.max(rest));
        }
        if let Some((at, cause)) = self.found_below(&look, &fetched, marks) {
            self.below.pause = SOON;
            self.below.look_at(self.now + SOON.max(rest));
            let warns = self.below.warned.is_none_or(|warned| self.now.saturating_sub(warned) >= WARN_EVERY);
            if warns {
                self.below.warned = Some(self.now);
            }
            self.report(Report::BelowMark { at, mark: look.until, cause, warns });
            return self.look_soon();
        }
        match fetched.rows.last() {
            Some(last) if fetched.full => {
                self.below.look_at(self.now + SOON.max(rest));
                (self.below.after, self.below.until) = (last.position(), Some(look.until));
            }
            _ => {
                self.below.pause = (self.below.pause.max(SOON) * 2).min(EVERY);
                self.below.look_at(self.now + self.below.pause.max(rest));
            }
        }
    }

    /// Takes what a look found: everything is read again from before it. Says where, and why.
    fn found_below(
        &mut self,
        look: &UnderWay,
        fetched: &Fetched,
        marks: Vec<StripeMark>,
    ) -> Option<(Position, Cause)> {
        let marks = Marks::new(marks);
        let mut found = None;
        for row in &fetched.rows {
            if self.is_elsewhere(row) {
                continue;
            }
            let Some(cause) = cause(row, look.seen.as_ref(), &marks) else { continue };
            if cause == Cause::Counters
                && let Some((stripe, _)) = stripe_of(row)
            {
                self.reading.trusted.trust(stripe.stripe, look.until);
            }
            let (at, before) = found.unwrap_or((row.position(), cause));
            found = Some((at, before.max(cause)));
        }
        if found.is_some() || !fetched.full {
            self.reading.early.astray.retain(|stripe| !look.astray.contains(stripe));
        }
        let (at, cause) = found?;
        self.reading.changes += 1;
        // It is shown again.
        self.reading.early.shown.clear();
        self.reading.horizon.go_back(at.before());
        self.reading.windows.all_mut().for_each(|window| window.lower(at.before()));
        Some((at, cause))
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
