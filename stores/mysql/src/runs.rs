//! Runs: old rows that stand next to each other in the table, and were read so. Pure.
//!
//! A range of positions is removed with less work than as many rows, each looked up by its own
//! position. But it meets every row between its ends, and waits for those that a writer has not
//! committed. So only a store that has read all rows of a range itself may use it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use outbox_contract::Route;
use outbox_contract::backend::{BucketSet, FetchRequest, Fetched, Position, RowId, STRIPES, Scope};

/// Minimum number of rows of a run: fewer are not worth a range.
const MIN_ROWS: usize = 64;

/// Number of rows of a route whose positions are remembered, 8 bytes each. More only if a single
/// page has more.
const MAX_REMEMBERED: usize = 64 * 1024;

/// Age from which a row is old, in microseconds: an open transaction that has appended in front of
/// it is then rare.
const OLD: i64 = 2_000_000;

/// Time without ranges after one has met a lock.
const REST: Duration = Duration::from_secs(60);

/// Positions of the last pages, by route, and the end of a rest.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    pages: BTreeMap<Route, VecDeque<Page>>,
    rests_until: Option<Instant>,
}

/// Positions in ascending order, at least `MIN_ROWS`. When they were read, no other committed row
/// stood between the first and the last.
type Page = Vec<Position>;

impl Runs {
    /// Remembers what a fetch has read, by the database's clock in microseconds. What was
    /// remembered of the same part of the table is dropped.
    pub(crate) fn read(&mut self, request: &FetchRequest, fetched: &Fetched, clock: i64) {
        let page = page(request, fetched, clock);
        let (Some(first), Some(last)) = (page.first(), page.last()) else { return };
        if page.len() < MIN_ROWS {
            return;
        }
        let pages = self.pages.entry(request.route.clone()).or_default();
        pages.retain(|other| other.last() < Some(first) || other.first() > Some(last));
        pages.push_back(page);
        let mut remembered: usize = pages.iter().map(Vec::len).sum();
        while remembered > MAX_REMEMBERED && pages.len() > 1 {
            remembered -= pages.pop_front().map_or(0, |page| page.len());
        }
    }

    /// Returns the runs among these rows, which are sorted: parts of the list whose rows stand next
    /// to each other in one page as well.
    pub(crate) fn among(&self, route: &Route, rows: &[RowId], now: Instant) -> Vec<Range<usize>> {
        if self.rests_until.is_some_and(|until| now < until) {
            return Vec::new();
        }
        let pages = self.pages.get(route).into_iter().flatten();
        let mut runs: Vec<Range<usize>> = pages.flat_map(|page| runs_in(page, rows)).collect();
        runs.sort_unstable_by_key(|run| run.start);
        runs
    }

    /// Forgets rows that were removed, which are sorted.
    pub(crate) fn removed(&mut self, route: &Route, rows: &[RowId]) {
        let Some(pages) = self.pages.get_mut(route) else { return };
        for page in pages.iter_mut() {
            let mut removed = rows[within(page, rows)].iter().peekable();
            page.retain(|position| {
                while removed.next_if(|row| row.position < *position).is_some() {}
                removed.peek().is_none_or(|row| row.position != *position)
            });
        }
        pages.retain(|page| page.len() >= MIN_ROWS);
        if pages.is_empty() {
            self.pages.remove(route);
        }
    }

    /// Records that a range has met a lock.
    pub(crate) fn rest(&mut self, now: Instant) {
        self.rests_until = Some(now + REST);
    }
}

/// Returns the old rows of a fetch, if it was for everything that there is from its first row to
/// its last. Rows that it was told to leave out stand there too.
fn page(request: &FetchRequest, fetched: &Fetched, clock: i64) -> Page {
    let is_everything = request.buckets == BucketSet::ALL
        && request.scope == Scope::Everything
        && request.muted.is_empty()
        && !fetched.lapsed;
    if !is_everything {
        return Page::new();
    }
    let old = Position(clock.saturating_sub(OLD).saturating_mul(i64::from(STRIPES)));
    let mut page: Page =
        fetched.rows.iter().map(|row| row.position()).take_while(|position| *position < old).collect();
    if let (Some(&first), Some(&last)) = (page.first(), page.last()) {
        page.extend(request.except.iter().filter(|position| (first..=last).contains(*position)));
        page.sort_unstable();
    }
    page
}

/// Returns the part of the sorted rows that stands between the ends of a page.
fn within(page: &Page, rows: &[RowId]) -> Range<usize> {
    let (Some(first), Some(last)) = (page.first(), page.last()) else { return 0..0 };
    let start = rows.partition_point(|row| row.position < *first);
    start..rows.partition_point(|row| row.position <= *last).max(start)
}

/// Returns the runs of one page among sorted rows.
fn runs_in(page: &Page, rows: &[RowId]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut run = 0..0;
    // Place in the page of the row behind the last one of the run.
    let mut next = 0;
    for at in within(page, rows) {
        let position = rows[at].position;
        let is_next = run.end == at && page.get(next) == Some(&position);
        if is_next {
            run.end = at + 1;
            next += 1;
            continue;
        }
        runs.push(std::mem::replace(&mut run, 0..0));
        if let Ok(place) = page.binary_search(&position) {
            (run, next) = (at..at + 1, place + 1);
        }
    }
    runs.push(run);
    runs.retain(|run| run.len() >= MIN_ROWS);
    runs
}
