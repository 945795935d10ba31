//! Tests of runs.

use std::ops::Range;
use std::time::{Duration, Instant};

use outbox_contract::backend::{
    Bucket, BucketSet, FetchRequest, Fetched, FetchedRow, Position, RelayId, RowId, STRIPES, Scope,
};
use outbox_contract::{MessageId, Route, Topic};
use uuid::Uuid;

use crate::runs::*;

/// Time at which everything is old that has a position below a million.
const LATER: i64 = 3_000_000;

fn request() -> FetchRequest {
    FetchRequest::new(Route::default(), RelayId::from_uuid(Uuid::nil()), BucketSet::ALL)
}

fn fetched(positions: impl IntoIterator<Item = i64>) -> Fetched {
    let rows = positions.into_iter().map(|at| FetchedRow::Muted(Position(at))).collect();
    Fetched { rows, ..Fetched::default() }
}

fn rows(positions: impl IntoIterator<Item = i64>) -> Vec<RowId> {
    let id = MessageId::from_uuid(Uuid::nil());
    positions.into_iter().map(|at| RowId { position: Position(at), id }).collect()
}

fn among(runs: &Runs, rows: &[RowId]) -> Vec<Range<usize>> {
    runs.among(&Route::default(), rows, Instant::now())
}

/// Runs that know the result of one fetch of positions 1 to 1000.
fn after(request: &FetchRequest, lapsed: bool, clock: i64) -> Runs {
    let mut runs = Runs::default();
    runs.read(request, &Fetched { lapsed, ..fetched(1..=1_000) }, clock);
    runs
}

#[test]
fn rows_that_were_read_next_to_each_other_are_a_run() {
    let runs = after(&request(), false, LATER);
    assert_eq!(among(&runs, &rows(101..=300)), [0..200]);
    assert_eq!(among(&runs, &rows((1..=63).chain(100..=163))), [63..127], "64 rows, and no fewer");
    assert_eq!(among(&runs, &rows((1..=100).chain(102..=200))), [0..100, 100..199], "101 is not delivered");
    assert!(among(&runs, &rows((1..=1_000).step_by(2))).is_empty());
    assert_eq!(among(&runs, &rows(-99..=2_000)), [100..1_100], "rows that were not read are in no run");
    assert!(runs.among(&Route::new("other").unwrap(), &rows(1..=100), Instant::now()).is_empty());
}

/// A position that is named twice, as with two ids, is in no run a second time.
#[test]
fn a_position_that_is_named_twice_ends_a_run() {
    let runs = after(&request(), false, LATER);
    let twice = rows((1..=100).chain(100..=200));
    assert_eq!(among(&runs, &twice), [0..100]);
}

#[test]
fn a_fetch_of_a_part_says_nothing_of_what_stands_between() {
    let everything = request();
    assert!(!among(&after(&everything, false, LATER), &rows(1..=100)).is_empty());
    assert!(among(&after(&everything, true, LATER), &rows(1..=100)).is_empty(), "a lease has lapsed");
    let half: BucketSet = (0..128).map(Bucket).collect();
    let of_a_topic = Scope::Topic(Topic::new("orders").unwrap());
    for part in [
        FetchRequest { buckets: half, ..everything.clone() },
        FetchRequest { scope: of_a_topic.clone(), ..everything.clone() },
        FetchRequest { muted: vec![of_a_topic], ..everything.clone() },
    ] {
        assert!(among(&after(&part, false, LATER), &rows(1..=100)).is_empty(), "{part:?}");
    }
}

#[test]
fn rows_that_a_fetch_leaves_out_stand_between() {
    let without = FetchRequest { except: vec![Position(-5), Position(1_100), Position(9_000)], ..request() };
    let mut runs = Runs::default();
    runs.read(&without, &fetched((1_000..1_100).chain(1_101..1_200)), LATER);
    let around = rows((1_000..1_100).chain(1_101..1_200));
    assert_eq!(among(&runs, &around), [0..100, 100..199]);
    assert_eq!(among(&runs, &rows(1_000..1_200)), [0..200]);
}

#[test]
fn young_rows_are_in_no_run() {
    // By this clock, what stands below position 500 is two seconds old.
    let request = request();
    let scaled = |at: i64| at * i64::from(STRIPES);
    let mut runs = Runs::default();
    runs.read(&request, &fetched((1..=1_000).map(scaled)), OLD + 500);
    assert_eq!(among(&runs, &rows((301..=700).map(scaled))), [0..199]);
}

#[test]
fn removed_rows_stand_nowhere() {
    let mut runs = after(&request(), false, LATER);
    runs.removed(&Route::default(), &rows((1..=1_000).filter(|at| at % 2 == 0)));
    assert_eq!(among(&runs, &rows((1..=999).step_by(2))), [0..500], "nothing stands between them any more");
    runs.removed(&Route::default(), &rows((1..=999).step_by(2).skip(63)));
    assert!(runs.pages.is_empty(), "too few are left for a run");
}

#[test]
fn runs_end_with_their_page_and_the_last_reading_holds() {
    let mut runs = after(&request(), false, LATER);
    runs.read(&request(), &fetched(1_001..=1_100), LATER);
    assert_eq!(among(&runs, &rows(901..=1_100)), [0..100, 100..200]);
    // Another row has appeared.
    runs.read(&request(), &fetched((1_001..=1_100).map(|at| if at == 1_050 { 1_049 } else { at })), LATER);
    assert!(among(&runs, &rows(1_001..=1_100)).iter().all(|run| run.len() < 100));
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
    assert_eq!(among(&runs, &rows(78_000..80_000)), [0..2_000]);
}

#[test]
fn after_a_lock_there_are_no_runs_for_a_while() {
    let (mut runs, now) = (after(&request(), false, LATER), Instant::now());
    runs.rest(now);
    let at = |later| runs.among(&Route::default(), &rows(1..=100), now + later);
    assert!(at(REST - Duration::from_millis(1)).is_empty());
    assert_eq!(at(REST), [0..100]);
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
            let page: Vec<i64> = (page * 500..(page + 1) * 500).filter(|_| chance(10) > 0).collect();
            runs.read(&request(), &fetched(page.iter().copied()), LATER);
            read.push(page);
        }
        let gone = rows((0..1_500).filter(|_| chance(50) == 0));
        runs.removed(&Route::default(), &gone);
        read.iter_mut().for_each(|page| page.retain(|at| gone.iter().all(|row| row.position.0 != *at)));
        let delivered = rows((0..1_500).filter(|_| chance(100) > 1));
        let list = among(&runs, &delivered);
        assert!(list.windows(2).all(|two| two[0].end <= two[1].start));
        for run in list {
            let run: Vec<i64> = delivered[run].iter().map(|row| row.position.0).collect();
            assert!(run.len() >= MIN_ROWS);
            assert!(read.iter().any(|page| page.windows(run.len()).any(|part| part == run)));
            found += 1;
        }
    }
    assert!(found > 100, "{found}");
}
