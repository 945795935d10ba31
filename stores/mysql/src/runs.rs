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

#[cfg(test)]
mod tests {
    use outbox_contract::backend::{Bucket, FetchedRow, RelayId};
    use outbox_contract::{MessageId, Topic};
    use uuid::Uuid;

    use super::*;

    /// Time at which everything is old that has a position below a million.
    const LATER: i64 = 3_000_000;

    fn request() -> FetchRequest {
        FetchRequest::new(Route::default(), RelayId::from_uuid(Uuid::nil()), BucketSet::ALL)
    }

    fn fetched(positions: impl IntoIterator<Item = i64>) -> Fetched {
        let rows = positions.into_iter().map(|at| FetchedRow::Muted(Position(at))).collect();
        Fetched::new(rows, false, Position::START, false)
    }

    fn rows(positions: impl IntoIterator<Item = i64>) -> Vec<RowId> {
        let id = MessageId::from_uuid(Uuid::nil());
        positions.into_iter().map(|at| RowId { position: Position(at), id }).collect()
    }

    fn among(runs: &Runs, rows: &[RowId]) -> Vec<(usize, usize)> {
        ends(&runs.among(&Route::default(), rows, Instant::now()))
    }

    fn ends(runs: &[Range<usize>]) -> Vec<(usize, usize)> {
        runs.iter().map(|run| (run.start, run.end)).collect()
    }

    /// Runs that know the result of one fetch of positions 1 to 1000.
    fn after(request: &FetchRequest, lapsed: bool, clock: i64) -> Runs {
        let mut runs = Runs::default();
        let mut answer = fetched(1..=1_000);
        answer.lapsed = lapsed;
        runs.read(request, &answer, clock);
        runs
    }

    #[test]
    fn rows_that_were_read_next_to_each_other_are_a_run() {
        let runs = after(&request(), false, LATER);
        assert_eq!(among(&runs, &rows(101..=300)), [(0, 200)]);
        assert_eq!(among(&runs, &rows((1..=63).chain(100..=163))), [(63, 127)], "64 rows, and no fewer");
        assert_eq!(
            among(&runs, &rows((1..=100).chain(102..=200))),
            [(0, 100), (100, 199)],
            "101 is not delivered"
        );
        assert!(among(&runs, &rows((1..=1_000).step_by(2))).is_empty());
        assert_eq!(among(&runs, &rows(-99..=2_000)), [(100, 1_100)], "rows that were not read are in no run");
        assert!(runs.among(&Route::new("other").unwrap(), &rows(1..=100), Instant::now()).is_empty());
    }

    /// As with two ids.
    #[test]
    fn a_position_that_is_named_twice_ends_a_run() {
        let runs = after(&request(), false, LATER);
        let twice = rows((1..=100).chain(100..=200));
        assert_eq!(among(&runs, &twice), [(0, 100), (100, 201)]);
    }

    #[test]
    fn a_fetch_of_a_part_says_nothing_of_what_stands_between() {
        let everything = request();
        assert!(!among(&after(&everything, false, LATER), &rows(1..=100)).is_empty());
        assert!(among(&after(&everything, true, LATER), &rows(1..=100)).is_empty(), "a lease has lapsed");
        let half: BucketSet = (0..128).map(Bucket).collect();
        let of_a_topic = Scope::Topic(Topic::new("orders").unwrap());
        let (mut of_some, mut of_one, mut without) = (everything.clone(), everything.clone(), everything);
        of_some.buckets = half;
        of_one.scope = of_a_topic.clone();
        without.muted = vec![of_a_topic];
        for part in [of_some, of_one, without] {
            assert!(among(&after(&part, false, LATER), &rows(1..=100)).is_empty(), "{part:?}");
        }
    }

    #[test]
    fn rows_that_a_fetch_leaves_out_stand_between() {
        let mut without = request();
        without.except = vec![Position(-5), Position(1_100), Position(9_000)];
        let mut runs = Runs::default();
        runs.read(&without, &fetched((1_000..1_100).chain(1_101..1_200)), LATER);
        let around = rows((1_000..1_100).chain(1_101..1_200));
        assert_eq!(among(&runs, &around), [(0, 100), (100, 199)]);
        assert_eq!(among(&runs, &rows(1_000..1_200)), [(0, 200)]);
    }

    #[test]
    fn young_rows_are_in_no_run() {
        // By this clock, what stands below position 500 is two seconds old.
        let request = request();
        let scaled = |at: i64| at * i64::from(STRIPES);
        let mut runs = Runs::default();
        runs.read(&request, &fetched((1..=1_000).map(scaled)), OLD + 500);
        assert_eq!(among(&runs, &rows((301..=700).map(scaled))), [(0, 199)]);
    }

    #[test]
    fn removed_rows_stand_nowhere() {
        let mut runs = after(&request(), false, LATER);
        runs.removed(&Route::default(), &rows((1..=1_000).filter(|at| at % 2 == 0)));
        assert_eq!(
            among(&runs, &rows((1..=999).step_by(2))),
            [(0, 500)],
            "nothing stands between them any more"
        );
        runs.removed(&Route::default(), &rows((1..=999).step_by(2).skip(63)));
        assert!(runs.pages.is_empty(), "too few are left for a run");
    }

    #[test]
    fn runs_end_with_their_page_and_the_last_reading_holds() {
        let mut runs = after(&request(), false, LATER);
        runs.read(&request(), &fetched(1_001..=1_100), LATER);
        assert_eq!(among(&runs, &rows(901..=1_100)), [(0, 100), (100, 200)]);
        // Another row has appeared.
        runs.read(
            &request(),
            &fetched((1_001..=1_100).map(|at| if at == 1_050 { 1_049 } else { at })),
            LATER,
        );
        assert!(among(&runs, &rows(1_001..=1_100)).iter().all(|(start, end)| end - start < 100));
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let mut runs = Runs::default();
        for page in 0..40 {
            runs.read(&request(), &fetched(page * 2_000..(page + 1) * 2_000), LATER);
        }
        let remembered: usize = runs.pages[&Route::default()].iter().map(Vec::len).sum();
        assert_eq!(remembered, MAX_REMEMBERED / 2_000 * 2_000);
        assert!(among(&runs, &rows(0..2_000)).is_empty(), "the oldest are forgotten");
        assert_eq!(among(&runs, &rows(78_000..80_000)), [(0, 2_000)]);
    }

    #[test]
    fn after_a_lock_there_are_no_runs_for_a_while() {
        let (mut runs, now) = (after(&request(), false, LATER), Instant::now());
        runs.rest(now);
        let at = |later| ends(&runs.among(&Route::default(), &rows(1..=100), now + later));
        assert!(at(REST - Duration::from_millis(1)).is_empty());
        assert_eq!(at(REST), [(0, 100)]);
    }

    /// Pages and settlements by chance: runs are apart and in order, and each is of one page, without
    /// a gap there or in the list.
    #[test]
    fn every_run_stands_without_a_gap_in_a_page_and_in_the_list() {
        let mut state = 1_u64;
        let mut chance = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut found = 0;
        for _ in 0..300 {
            let mut runs = Runs::default();
            let mut read: Vec<Vec<i64>> = Vec::new();
            for page in 0..3 {
                let page: Vec<i64> = (page * 500..(page + 1) * 500).filter(|_| chance(200) > 0).collect();
                runs.read(&request(), &fetched(page.iter().copied()), LATER);
                read.push(page);
            }
            let gone = rows((0..1_500).filter(|_| chance(50) == 0));
            runs.removed(&Route::default(), &gone);
            read.iter_mut().for_each(|page| page.retain(|at| gone.iter().all(|row| row.position.0 != *at)));
            let delivered = rows((0..1_500).filter(|_| chance(200) > 0));
            let list = among(&runs, &delivered);
            assert!(list.windows(2).all(|two| two[0].1 <= two[1].0));
            for (start, end) in list {
                let run: Vec<i64> = delivered[start..end].iter().map(|row| row.position.0).collect();
                assert!(run.len() >= MIN_ROWS);
                assert!(read.iter().any(|page| page.windows(run.len()).any(|part| part == run)));
                found += 1;
            }
        }
        assert!(found > 100, "{found}");
    }
}
