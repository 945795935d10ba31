//! Looks below what was read: what should not be there is found, and nothing else is taken for it.

use std::sync::Arc;

use outbox_contract::Stored;

use super::table::Table;
use super::*;

/// A look that is under way: what it asked, what it was shown, and how far stripes were afterwards.
pub(super) struct Look {
    below: Below,
    fetched: Option<Fetched>,
    marks: Option<Vec<StripeMark>>,
}

impl Model {
    /// Begins a look, or carries the one on that is under way, while everything else goes on. It takes nothing for lost: nothing is.
    pub(super) fn look_below(&mut self) -> Judged {
        let Some(mut look) = self.below.take() else {
            if self.call.is_none() {
                let below = self.reader.below(&Route::default(), nobody(), Position::START, None);
                self.below = below.map(|below| Look { below, fetched: None, marks: None });
            }
            return Ok(());
        };
        if look.fetched.is_none() {
            look.fetched = Some(self.table.fetch(&look.below.request));
        } else if look.marks.is_none() {
            look.marks = Some(self.sabotaged_marks(&look.below));
        } else if self.call.is_none() {
            let (fetched, marks) = (look.fetched.unwrap_or_default(), look.marks.unwrap_or_default());
            return match self.reader.seen_below(&look.below, &fetched, marks) {
                Seen::Rows(at, cause) => Err(format!("{at} is taken for lost, by {cause:?}")),
                _ => Ok(()),
            };
        }
        self.below = Some(look);
        Ok(())
    }

    fn sabotaged_marks(&self, below: &Below) -> Vec<StripeMark> {
        if self.case.sabotage == Some(Sabotage::BelowWithoutMarks) {
            return Vec::new();
        }
        self.table.marks(&below.request.buckets)
    }
}

fn nobody() -> RelayId {
    RelayId::from_uuid(uuid::Uuid::nil())
}

#[test]
fn a_look_below_takes_nothing_for_lost_that_is_late_or_on_its_way() {
    for ordering in [Ordering::Single, Ordering::Writers, Ordering::Stripes] {
        let interleaved = ordering == Ordering::Stripes;
        holds(Case { looks_below: true, interleaved, ..Case::of(ordering) });
    }
}

#[test]
fn without_the_marks_of_now_late_commits_are_taken_for_lost() {
    let sabotage = Some(Sabotage::BelowWithoutMarks);
    let case = Case { looks_below: true, faults: false, sabotage, ..Case::of(Ordering::Stripes) };
    let failed =
        crate::relay::model_cast::first_failure(2_000, |seed, loud| Model::new(case, seed, loud).run());
    let failed = failed.expect("a rule that is wrong is found out");
    assert!(failed.contains("taken for lost"), "{failed}");
}

/// Two keys, the positions of the second far ahead.
const KEY: usize = 0;
const AHEAD: usize = 1;

/// A reader with stripes, and its store.
struct Scene {
    reader: Reader,
    table: Table,
}

impl Scene {
    fn new() -> Self {
        let limits = ReaderLimits {
            rows: 4,
            bytes: usize::MAX,
            per_key: usize::MAX,
            waiting: usize::MAX,
            key_gaps: 4,
            walk: i64::MAX,
        };
        let mut ahead = [0; KEYS];
        ahead[AHEAD] = 1_000;
        let table = Table { leased: BucketSet::ALL, ahead: Some(ahead), ..Table::default() };
        let mut scene = Self { reader: Reader::new(Ordering::Stripes, limits), table };
        scene.reader.acquire(BucketSet::ALL, Position::START);
        scene
    }

    /// Commits so many rows of a key, each by itself. Their positions.
    fn commit(&mut self, key: usize, rows: usize) -> Vec<Position> {
        let before = self.table.committed[key].len();
        for _ in 0..rows {
            self.table.begin();
            self.table.append(0, key);
            self.table.commit(0);
        }
        self.table.committed[key][before..].to_vec()
    }

    /// Reads until there is nothing more, as the poller does.
    fn read_all(&mut self) -> Vec<Position> {
        self.reader.look();
        let mut all = Vec::new();
        loop {
            if self.reader.wants_stripes() {
                self.reader.committed(self.table.marks(&self.reader.owned()));
            }
            let plan = self.reader.next(&Route::default(), nobody(), usize::MAX, usize::MAX);
            let Some(plan) = plan else { return all };
            let read = self.reader.fetched(&plan, self.table.fetch(&plan.request));
            all.extend(read.rows.iter().map(FetchedRow::position));
        }
    }

    /// What was read is delivered, and gone. What was there.
    fn deliver(&mut self, rows: &[Position]) -> Vec<(Position, (usize, Arc<Stored>))> {
        self.reader.left(rows.iter().copied());
        rows.iter().map(|row| (*row, self.table.hot.remove(row).unwrap())).collect()
    }

    fn look(&mut self) -> Seen {
        let below = self.reader.below(&Route::default(), nobody(), Position::START, None);
        let Some(below) = below else { return Seen::Nothing };
        let fetched = self.table.fetch(&below.request);
        let marks = self.table.marks(&below.request.buckets);
        self.reader.seen_below(&below, &fetched, marks)
    }
}

#[test]
fn rows_that_are_put_back_are_found_and_read_in_order() {
    let mut scene = Scene::new();
    let rows = scene.commit(KEY, 9);
    let ahead = scene.commit(AHEAD, 1);
    assert_eq!(scene.read_all(), [rows.clone(), ahead].concat());
    let gone = scene.deliver(&rows);
    assert_eq!(scene.look(), Seen::Nothing, "what is in flight is where it should be");
    scene.table.hot.extend(gone);
    assert_eq!(scene.read_all(), [], "no counter has moved");
    assert_eq!(scene.look(), Seen::Rows(rows[0], Cause::Rows));
    assert_eq!(scene.read_all(), rows);
    assert_eq!(scene.look(), Seen::Nothing);
}

/// Appends of another stripe make the window read again some of what was put back: that waits for what was put back before it, and so does what is new.
#[test]
fn rows_that_are_put_back_are_read_in_order_though_a_fetch_shows_the_last_of_them() {
    const OTHER: usize = 2;
    let mut scene = Scene::new();
    let mut rows = scene.commit(KEY, 5);
    let other = scene.commit(OTHER, 1);
    rows.extend(scene.commit(KEY, 4));
    assert_eq!(scene.read_all().len(), 10);
    let gone = scene.deliver(&rows);
    scene.deliver(&other);
    scene.table.hot.extend(gone);
    let others = scene.commit(OTHER, 2);
    let new = scene.commit(KEY, 1);
    assert_eq!(scene.read_all(), others, "read again from behind the first one of their stripe");
    assert_eq!(scene.look(), Seen::Rows(rows[0], Cause::Rows));
    assert_eq!(scene.read_all(), [rows, new].concat());
}

#[test]
fn a_late_commit_is_no_finding() {
    let mut scene = Scene::new();
    scene.table.begin();
    scene.table.append(0, KEY);
    // By another transaction, whose stripe runs ahead.
    scene.table.begin();
    scene.table.append(1, AHEAD);
    scene.table.commit(1);
    assert_eq!(scene.read_all().len(), 1);
    scene.table.commit(0);
    assert_eq!(scene.look(), Seen::Nothing);
    assert_eq!(scene.read_all(), scene.table.committed[KEY], "the counter tells of it");
}

#[test]
fn rows_above_counters_that_went_back_are_found_and_read_in_order() {
    for left in [0, 2] {
        let mut scene = Scene::new();
        scene.commit(KEY, left);
        let mark = scene.table.marks[KEY];
        scene.commit(KEY, 9);
        let (all, ahead) = (scene.table.committed[KEY].clone(), scene.commit(AHEAD, 1));
        scene.table.marks[KEY] = mark;
        assert_eq!(scene.read_all(), [&all[..left], &ahead[..]].concat(), "{left} are within the counter");
        assert_eq!(scene.look(), Seen::Rows(all[left], Cause::Counters));
        assert_eq!(scene.read_all(), all[left..]);
        assert_eq!(scene.look(), Seen::Nothing);
    }
}

/// Nothing that is appended moves the window on: it looks by itself.
#[test]
fn rows_above_what_was_read_are_found_though_no_counter_tells_of_them() {
    let mut scene = Scene::new();
    let first = scene.commit(KEY, 1);
    assert_eq!(scene.read_all(), first);
    let mark = scene.table.marks[KEY];
    let rows = scene.commit(KEY, 3);
    scene.table.marks[KEY] = mark;
    assert_eq!(scene.read_all(), [], "no counter has moved");
    assert_eq!(scene.look(), Seen::Nothing, "the window has not come so far");
    assert_eq!(scene.read_all(), [], "it passes them now");
    assert_eq!(scene.look(), Seen::Rows(rows[0], Cause::Counters));
    assert_eq!(scene.read_all(), rows);
}

/// What counts without its counter is what a look has shown. Of what comes later, an earlier row may be missing still.
#[test]
fn rows_that_are_committed_later_wait_for_their_counter() {
    let mut scene = Scene::new();
    let old = scene.commit(KEY, 3);
    scene.table.marks[KEY] = None;
    let ahead = scene.commit(AHEAD, 1);
    scene.reader.look();
    assert_eq!(scene.read_all(), ahead);
    assert_eq!(scene.look(), Seen::Rows(old[0], Cause::Counters));
    assert_eq!(scene.read_all(), old);
    scene.table.ahead.as_mut().unwrap()[KEY] = 2_000;
    let new = scene.commit(KEY, 2);
    let mark = scene.table.marks[KEY].take();
    scene.commit(AHEAD, 1);
    assert_eq!(scene.read_all().len(), 1, "of the other key alone");
    scene.table.marks[KEY] = mark;
    assert_eq!(scene.read_all(), new);
}

#[test]
fn a_look_goes_on_behind_what_is_read_apart() {
    let mut scene = Scene::new();
    let rows = scene.commit(KEY, 6);
    let ahead = scene.commit(AHEAD, 1);
    assert_eq!(scene.read_all(), [rows.clone(), ahead].concat());
    // The topic waits: its rows are read again when it is open.
    scene.reader.close_topic(the_topic(topic_of(KEY)));
    scene.reader.forget(the_key(KEY), rows.iter().copied());
    assert_eq!(scene.look(), Seen::NothingYet(rows[3]), "four rows are passed at once");
    let below = scene.reader.below(&Route::default(), nobody(), rows[3], Some(rows[4])).unwrap();
    assert_eq!((below.request.after, below.request.until), (rows[3], rows[4]));
    let fetched = scene.table.fetch(&below.request);
    assert!(!below.wants_stripes(&fetched), "nothing is there that marks say anything of");
    assert_eq!(scene.reader.seen_below(&below, &fetched, Vec::new()), Seen::Nothing);
}
