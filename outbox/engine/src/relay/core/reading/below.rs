//! Check below the read position: finds rows where none should be. A saved mark, a cursor and a
//! counter are hints; the rows are the truth.
//!
//! With sequence shards, late commits are below the cursor, too. Their numbers tell them from
//! missed rows:
//!
//! - A row within the marks of the main window's last fetch should have been returned by then.
//! - A row within the present marks was committed since, and the next fetch returns it.
//! - A row above all marks, although a commit moves both at once, has counters that are not its
//!   own.
//!
//! A check covers the main window alone, and takes some of what others have passed for late
//! commits. So it is not what such rows wait for: a fetch through any window that shows a row where
//! none should be makes the rows of its shard wait, in all windows, and then all windows go back to
//! the beginning.
//!
//! A check that finds nothing costs one scan of the index by which rows are fetched, from its
//! beginning to the cursor. It passes over rows in flight, which are at most `max_in_flight` and
//! are excluded by position, and over what the database has not purged yet. With sequence shards,
//! the main window also reads on from its cursor, though no counter has moved: one fetch without
//! rows.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_contract::backend::{
    BucketSet, FetchRequest, Fetched, FetchedRow, Position, Stripe, StripeId, StripeMark,
};

use super::marks::{Marks, stripe_of};
use super::{Plan, Turn};
use crate::relay::core::event::{Command, Report};
use crate::relay::core::table::Name;
use crate::relay::core::{Core, sabotaged};

/// Delay after a check that found nothing. With sequence shards, a row that no counter covers may
/// take two checks: one until the main window has passed it, one until it is found. Both together
/// take less than a minute.
const EVERY: Duration = Duration::from_secs(25);
/// Delay after a check that found rows or is not finished. More may follow, for example while a
/// sequence that was set back catches up.
const SOON: Duration = Duration::from_secs(1);
/// Minimum delay as a multiple of the duration of the last check. While an old snapshot keeps dead
/// rows, a check scans all of them.
const REST: u32 = 50;
/// Minimum interval of warnings.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of rows of narrower windows that one check passes over.
const MAX_PASSED: usize = 1_000;

/// Schedule and progress of the checks.
#[derive(Debug, Default)]
pub(in crate::relay::core) struct LookBelow {
    next: Duration,
    /// Check that is not finished: it goes on where it was cut short.
    unfinished: Option<Check>,
    /// Delay after a check that found rows; it grows while checks find none.
    pause: Duration,
    /// Minimum delay after the last check.
    rest: Duration,
    warned: Option<Duration>,
    under_way: Option<UnderWay>,
}

/// One check, which may take several queries.
#[derive(Debug)]
struct Check {
    /// Position up to which it has found nothing.
    after: Position,
    /// Its end, however far the relay reads meanwhile.
    until: Position,
    /// Committed marks before the last fetch of the main window when it began. `None`: there are no
    /// sequence shards.
    seen: Option<Marks>,
}

/// Running query of a check.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    changes: u64,
    check: Check,
}

impl LookBelow {
    pub(in crate::relay::core) fn look_at(&mut self, at: Duration) {
        (self.next, self.unfinished) = (at, None);
    }

    /// Advances the next check, because a fetch returned rows that should not be there. Going back
    /// scans as much as a check.
    fn hurry(&mut self, now: Duration) {
        let soon = now + SOON.max(self.rest);
        if soon < self.next {
            self.look_at(soon);
        }
    }
}

/// Probable cause of rows below the read position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The sequence of positions went back.
    Sequence,
    /// Rows were inserted with old positions.
    Rows,
    /// The counters of sequence shards went back, or were lost.
    Counters,
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Sequence => {
                "positions went back: a sequence was set, or the tables were restored, moved or filled \
                 without it; set the sequence of positions above the highest position ever used"
            }
            Self::Rows => {
                "rows with old positions were inserted into outbox_message, as by a restore or an \
                 import of that table alone; no action is needed"
            }
            Self::Counters => {
                "the counters are behind the messages: outbox_stripe was restored, set back or emptied \
                 alone; restore it together with outbox_message"
            }
        })
    }
}

/// Rows that count although they are above the committed mark of their sequence shard: a check
/// found them, and the mark was still behind them afterwards. Holds the last such position of each
/// shard. Later commits are above it, because positions are taken from the clock.
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

/// Rows that do not count yet, and sequence shards with rows where none should be.
#[derive(Debug, Default)]
pub(super) struct Early {
    /// Rows above their shard's mark that were returned since the marks were read. The next marks
    /// should have reached them.
    shown: BTreeMap<StripeId, Shown>,
    /// Shards with rows below the read position or above their counter. All their rows wait, in
    /// every window, until the relay has gone back to the beginning: they may have been appended
    /// after rows that were missed or passed.
    astray: BTreeMap<StripeId, Astray>,
}

/// Rows of a shard above its mark.
#[derive(Clone, Copy, Debug)]
struct Shown {
    highest_number: i64,
    lowest: Position,
    highest: Position,
}

/// Rows of a shard that wait until the relay goes back.
#[derive(Clone, Copy, Debug)]
struct Astray {
    lowest: Position,
    /// Last one above the counter of the shard, if there is one.
    above_counter: Option<Position>,
}

impl Early {
    /// Processes marks that were read after these rows were returned.
    pub(super) fn committed(&mut self, marks: &Marks) {
        for (stripe, shown) in std::mem::take(&mut self.shown) {
            if !marks.reach(Stripe { stripe, number: shown.highest_number }, shown.highest) {
                self.wait(stripe, shown.lowest, Some(shown.highest));
            }
        }
    }

    fn show(&mut self, stripe: StripeId, number: i64, position: Position) {
        let first = Shown { highest_number: number, lowest: position, highest: position };
        let shown = self.shown.entry(stripe).or_insert(first);
        *shown = Shown {
            highest_number: number.max(shown.highest_number),
            lowest: position.min(shown.lowest),
            highest: position.max(shown.highest),
        };
    }

    /// Makes the rows of a shard wait until the relay goes back.
    fn wait(&mut self, stripe: StripeId, position: Position, above_counter: Option<Position>) {
        let astray = self.astray.entry(stripe).or_insert(Astray { lowest: position, above_counter });
        astray.lowest = position.min(astray.lowest);
        astray.above_counter = above_counter.max(astray.above_counter);
    }

    /// Returns true if rows wait until the relay goes back.
    pub(super) fn is_any_astray(&self) -> bool {
        !self.astray.is_empty()
    }

    /// Returns true if the rows of the shard of this one wait until the relay goes back.
    pub(super) fn is_astray(&self, row: &FetchedRow) -> bool {
        stripe_of(row).is_some_and(|(stripe, _)| self.astray.contains_key(&stripe.stripe))
    }

    /// Forgets buckets whose marks are no longer read.
    pub(super) fn lose(&mut self, buckets: &BucketSet) {
        self.shown.retain(|stripe, _| !buckets.contains(stripe.bucket()));
        self.astray.retain(|stripe, _| !buckets.contains(stripe.bucket()));
    }
}

impl Core {
    /// Returns true if a fetched row does not count yet: it is above its shard's mark, should have
    /// been returned long ago, or follows such a row.
    pub(super) fn is_early(&mut self, plan: &Plan, row: &FetchedRow) -> bool {
        if !self.reading.has_shards() || sabotaged!(self, RowsAboveMarks) {
            return false;
        }
        let Some((Stripe { stripe, number }, bucket)) = stripe_of(row) else { return false };
        if stripe.bucket() != bucket {
            return false;
        }
        let position = row.position();
        let is_above = !plan.marks.cover(row) && !self.reading.trusted.covers(row);
        let is_main = plan.turn == Turn::Wide(None);
        let is_astray =
            self.reading.early.astray.contains_key(&stripe) && (is_main || !sabotaged!(self, OnlyMainWaits));
        if is_above && !is_astray {
            self.reading.early.show(stripe, number, position);
            // The next marks may have reached it.
            self.looking.early = true;
            return true;
        }
        // In an intact shard, a row behind one above the mark would be above the mark as well.
        let follows = self.reading.early.shown.contains_key(&stripe);
        let main = &self.reading.windows.main;
        let is_missed = is_main
            && position <= main.cursor
            && main.seen.reach(Stripe { stripe, number }, position)
            && !self.is_elsewhere(row);
        let waits = follows || is_missed || is_astray;
        if waits {
            self.reading.early.wait(stripe, position, is_above.then_some(position));
        }
        waits
    }

    /// Returns true if a row is in memory, or is read through a window of its key. The store need
    /// not know of that window.
    fn is_elsewhere(&self, row: &FetchedRow) -> bool {
        let name = match row {
            FetchedRow::Muted(_) => return true,
            FetchedRow::Failing(waiting) => Name::new(waiting.key.clone(), waiting.bucket),
            FetchedRow::Message(stored) => Name::new(stored.message.key_id(), stored.bucket),
            _ => return self.table.has_row(row.position()),
        };
        let key = self.table.find(&name).and_then(|key| self.table.get(key));
        key.is_some_and(|state| state.window.is_some()) || self.table.has_row(row.position())
    }

    /// Starts a check below the read position, if it is time. Nothing waits for the answer.
    pub(in crate::relay::core) fn begin_looking_below(&mut self) {
        if self.reading.early.is_any_astray() {
            self.below.hurry(self.now);
            if self.now >= self.below.next {
                // The rows are known, so nothing is asked. A running check is of no use any more.
                return self.found_below(None, self.reading.main_cursor());
            }
        }
        if self.below.under_way.is_some() || self.now < self.below.next {
            return;
        }
        let has_shards = self.reading.has_shards();
        let unfinished = self.below.unfinished.take();
        let Some(request) = self.request_below(has_shards, unfinished.as_ref()) else {
            // With sequence shards, each check costs a fetch.
            return self.below.look_at(self.now + if has_shards { EVERY } else { SOON });
        };
        let check = unfinished.unwrap_or_else(|| {
            let seen = has_shards.then(|| self.reading.windows.main.seen.clone());
            Check { after: request.after, until: request.until, seen }
        });
        let (number, changes) = (self.next_number(), self.reading.changes);
        self.below.under_way = Some(UnderWay { number, changes, check });
        self.commands.push(Command::LookBelow { number, request, with_marks: has_shards });
    }

    /// Returns when the relay goes back to rows that wait for it.
    pub(in crate::relay::core) fn goes_back_at(&self) -> Option<Duration> {
        self.reading.early.is_any_astray().then_some(self.below.next)
    }

    /// Returns the query. `None`: nothing has been read yet.
    fn request_below(&mut self, has_shards: bool, unfinished: Option<&Check>) -> Option<FetchRequest> {
        let windows = &mut self.reading.windows;
        // A row that no counter covers is no news to the main window. So that window passes it now,
        // and the next check finds it.
        windows.main.more |= has_shards;
        let floor = windows.main.floor(windows.ordering);
        let (after, until) =
            unfinished.map_or((Position::START, floor), |check| (check.after, check.until.min(floor)));
        let buckets = windows.main_buckets(self.reading.owned);
        if buckets.is_empty() || until <= after {
            return None;
        }
        let mut request = FetchRequest::new(self.route.clone(), self.relay, buckets);
        (request.after, request.until) = (after, until);
        request.except = self.table.rows_behind(after).take_while(|position| *position <= until).collect();
        // Closed topics have windows of their own, which may be far behind.
        request.muted = windows.muted_topics(None).collect();
        request.muted.extend(self.table.muted().take(super::MAX_MUTED_KEYS));
        // Without shards, one row proves the case, unless it is covered elsewhere. With shards,
        // late commits are in between.
        (request.limit, request.bytes) =
            if has_shards { (self.limits.fetch_rows, self.limits.fetch_bytes) } else { (MAX_PASSED, 1) };
        Some(request)
    }

    /// Handles the result of a check: the rows and the marks that were read after them. `None`: the
    /// check failed. One that found leases expired counts as failed.
    pub(in crate::relay::core) fn looked_below(
        &mut self,
        number: u64,
        took: Duration,
        answer: Option<(Fetched, Vec<StripeMark>)>,
    ) {
        let Some(look) = self.below.under_way.take_if(|look| look.number == number) else { return };
        let rest = took.saturating_mul(REST);
        self.below.rest = rest;
        let Some((fetched, marks)) = answer.filter(|(fetched, _)| !fetched.lapsed) else {
            return self.below.look_at(self.now + EVERY.max(rest));
        };
        if look.changes != self.reading.changes {
            return self.below.look_at(self.now + SOON.max(rest));
        }
        if let Some(found) = self.misplaced(&look, &fetched, marks) {
            return self.found_below(Some(found), look.check.until);
        }
        match fetched.rows.last() {
            Some(last) if fetched.full => {
                self.below.look_at(self.now + SOON.max(rest));
                self.below.unfinished = Some(Check { after: last.position(), ..look.check });
            }
            _ => {
                self.below.pause = (self.below.pause.max(SOON) * 2).min(EVERY);
                self.below.look_at(self.now + self.below.pause.max(rest));
            }
        }
    }

    /// Returns the first of the rows that a check should not have found, and the probable cause.
    fn misplaced(
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
            let Some(cause) = cause(row, look.check.seen.as_ref(), &marks) else { continue };
            if cause == Cause::Counters
                && let Some((stripe, _)) = stripe_of(row)
            {
                self.reading.trusted.trust(stripe.stripe, look.check.until);
            }
            let (at, before) = found.unwrap_or((row.position(), cause));
            found = Some((at, before.max(cause)));
        }
        found
    }

    /// Goes back to before a row that a check `found`. With sequence shards, it goes back to the
    /// beginning: others may have been taken for late commits. Reports it.
    fn found_below(&mut self, found: Option<(Position, Cause)>, mark: Position) {
        let astray = std::mem::take(&mut self.reading.early.astray);
        let waiting = astray.values().map(|astray| {
            let cause = if astray.above_counter.is_some() { Cause::Counters } else { Cause::Rows };
            (astray.lowest, cause)
        });
        let both = |one: (Position, Cause), two: (Position, Cause)| (one.0.min(two.0), one.1.max(two.1));
        let Some((at, cause)) = found.into_iter().chain(waiting).reduce(both) else { return };
        self.go_back(if self.reading.has_shards() { Position::START } else { at.before() }, &astray);
        self.below.pause = SOON;
        self.below.look_at(self.now + SOON.max(self.below.rest));
        let warns = self.below.warned.is_none_or(|warned| self.now.saturating_sub(warned) >= WARN_EVERY);
        if warns {
            self.below.warned = Some(self.now);
        }
        self.report(Report::BelowMark { at, mark, cause, warns });
        self.look_soon();
    }

    /// Reads everything behind this position again, through every window that may have passed it.
    fn go_back(&mut self, to: Position, astray: &BTreeMap<StripeId, Astray>) {
        self.reading.changes += 1;
        // The fetches from there return these rows again, and soon.
        self.reading.early.shown.clear();
        self.looking.early = true;
        for (stripe, astray) in astray {
            if let Some(last) = astray.above_counter {
                self.reading.trusted.trust(*stripe, last);
            }
        }
        self.reading.horizon.go_back(to);
        self.reading.windows.all_mut().for_each(|window| window.lower(to));
        // The windows of keys stop at rows that wait. They have passed what is put back below.
        let buckets: BucketSet = astray.keys().map(|stripe| stripe.bucket()).collect();
        for key in self.table.select(|state| buckets.contains(state.bucket)) {
            let window = self.table.get_mut(key).and_then(|state| state.window.as_mut());
            if let Some(window) = window {
                window.cursor = window.cursor.min(to);
            }
        }
    }
}

/// Returns why a row is below the read position. `None`: it should be.
fn cause(row: &FetchedRow, seen: Option<&Marks>, now: &Marks) -> Option<Cause> {
    let Some(seen) = seen else { return Some(Cause::Sequence) };
    let Some((stripe, bucket)) = stripe_of(row) else { return Some(Cause::Rows) };
    if seen.reach(stripe, row.position()) {
        return Some(Cause::Rows);
    }
    if now.reach(stripe, row.position()) {
        // Committed since the main window's last fetch: news.
        return None;
    }
    // The marks of another bucket's shard may not have been read.
    Some(if stripe.stripe.bucket() == bucket { Cause::Counters } else { Cause::Rows })
}
