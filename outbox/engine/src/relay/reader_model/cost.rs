//! What the rule costs: how many positions are walked over again.

use super::*;

/// A reader that fetches ten rows at a time, and a settler that is done at once.
struct Steady {
    reader: Reader,
    table: Table,
}

/// The first topic's keys, which a test closes, and the others.
const CLOSED: [usize; 2] = [0, 2];
const OTHERS: [usize; 4] = [1, 3, 5, 7];

impl Steady {
    fn new(walk: i64) -> Self {
        Self::with(Ordering::Writers, walk)
    }

    fn with_stripes() -> Self {
        let mut steady = Self::with(Ordering::Stripes, 0);
        steady.table.ahead = Some([0; KEYS]);
        steady
    }

    fn with(ordering: Ordering, walk: i64) -> Self {
        let limits = ReaderLimits {
            rows: 10,
            bytes: usize::MAX,
            per_key: usize::MAX,
            waiting: usize::MAX,
            key_gaps: 4,
            walk,
        };
        let mut reader = Reader::new(ordering, limits);
        reader.acquire(BucketSet::ALL, Position::START);
        Self { reader, table: Table { leased: BucketSet::ALL, ..Table::default() } }
    }

    /// One transaction, of keys that no other one has.
    fn write(&mut self, rows: usize) {
        self.table.begin();
        let last = self.table.open.len() - 1;
        (0..rows).for_each(|row| self.table.append(last, row % (KEYS - 1)));
        self.table.commit(last);
    }

    fn ask(&mut self) {
        self.reader.wrote(&self.table.writers(true, Position(self.table.last)));
    }

    /// From where a fetch read, and what came of it.
    fn fetch(&mut self) -> Option<(Position, Vec<Position>)> {
        let route = Route::default();
        if self.reader.wants_stripes() {
            self.reader.committed(self.table.marks(&BucketSet::ALL));
        }
        let plan = self.reader.next(&route, RelayId::from_uuid(uuid::Uuid::nil()), 10, usize::MAX)?;
        let fetched = self.table.fetch(&plan.request);
        if plan.wants_writers() {
            self.ask();
        }
        let read = self.reader.fetched(&plan, fetched);
        let rows: Vec<Position> = read.rows.iter().map(FetchedRow::position).collect();
        self.table.hot.retain(|position, _| !rows.contains(position));
        self.reader.left(rows.iter().copied());
        Some((plan.request.after, rows))
    }
}

#[test]
fn a_backlog_of_any_size_is_below_the_horizon_at_once() {
    let mut steady = Steady::new(0);
    steady.write(90);
    // One fetch to see something, one that began since the horizon is known, and each other one begins where the last one ended.
    let after = std::iter::from_fn(|| {
        let (after, _) = steady.fetch()?;
        if steady.reader.wants_writers() {
            steady.ask();
        }
        Some(after.0)
    });
    assert_eq!(after.collect::<Vec<_>>(), [0, 0, 20, 30, 40, 50, 60, 70, 80, 90]);
}

#[test]
fn while_a_writer_stays_open_what_is_gone_is_not_walked_over_again() {
    let mut steady = Steady::new(100);
    steady.table.begin();
    steady.table.append(0, KEYS - 1);
    let mut come = BTreeSet::new();
    for round in 0..200 {
        steady.write(8);
        steady.reader.look();
        let (after, rows) = steady.fetch().unwrap();
        come.extend(rows);
        if round % 4 == 0 {
            steady.ask();
        }
        let walked = steady.table.last - after.0;
        assert!(walked <= 200, "round {round} walked over {walked} positions");
    }
    assert_eq!(come.len(), 200 * 8, "what others commit comes meanwhile");
    steady.table.commit(0);
    steady.reader.look();
    let late = std::iter::from_fn(|| steady.fetch()).flat_map(|(_, rows)| rows);
    assert!(late.collect::<Vec<_>>().contains(&Position(1)), "what it commits comes at once");
}

#[test]
fn bases_that_are_lost_again_and_again_are_made_no_more() {
    let mut steady = Steady::new(10);
    steady.table.begin();
    steady.table.append(0, KEYS - 1);
    let mut lost = 0;
    for _ in 0..200 {
        // One that is there when the base is made, and over when it is to be confirmed.
        steady.table.begin();
        steady.ask();
        steady.write(20);
        steady.ask();
        steady.reader.look();
        steady.fetch();
        steady.table.open.remove(0);
        steady.reader.look();
        let (_, rows) = steady.fetch().unwrap();
        lost += usize::from(rows.is_empty());
        while steady.reader.windows.main.more {
            steady.fetch();
        }
    }
    assert!(lost < 20, "{lost} fetches were made in vain");
}

#[test]
fn what_was_read_from_a_base_counts_for_nothing_until_it_is_confirmed() {
    let mut steady = Steady::new(0);
    steady.table.begin();
    steady.table.append(0, KEYS - 1);
    steady.write(5);
    steady.ask();
    steady.fetch();
    steady.write(5);
    steady.reader.look();
    let plan = steady.reader.next(&Route::default(), RelayId::from_uuid(uuid::Uuid::nil()), 10, usize::MAX);
    let plan = plan.unwrap();
    assert!(plan.wants_writers(), "{plan:?}");
    let fetched = steady.table.fetch(&plan.request);
    let read = steady.reader.fetched(&plan, fetched.clone());
    assert_eq!((read.seen, read.rows.len()), (5, 0), "nobody was asked");
    steady.ask();
    assert_eq!(steady.reader.fetched(&plan, fetched).rows.len(), 5);
}

#[test]
fn positions_that_were_rolled_back_are_walked_over_once() {
    let mut steady = Steady::new(0);
    steady.write(5);
    steady.table.begin();
    (0..50).for_each(|row| steady.table.append(0, row % KEYS));
    steady.table.open.clear();
    steady.ask();
    assert_eq!(steady.fetch().unwrap().0, Position::START);
    steady.reader.look();
    assert_eq!(steady.fetch().unwrap().0, Position(55));
}

#[test]
fn with_stripes_nothing_is_read_that_the_marks_do_not_tell() {
    let mut steady = Steady::with_stripes();
    let mut end = Position::START;
    assert!(steady.fetch().is_some(), "the first time, there is no mark to compare with");
    for round in 0..50 {
        steady.reader.look();
        assert_eq!(steady.fetch(), None, "nothing was committed since");
        steady.table.begin();
        steady.table.append_rows(0, round % KEYS, 3);
        steady.reader.look();
        assert_eq!(steady.fetch(), None, "nor is it yet");
        steady.table.commit(0);
        steady.reader.look();
        let (after, rows) = steady.fetch().unwrap();
        assert!(after >= end, "round {round} read again from {after}, behind {end}");
        assert_eq!(rows.len(), 3);
        end = *rows.last().unwrap();
    }
}

#[test]
fn with_stripes_a_late_commit_does_not_wait_behind_what_a_closed_topic_has() {
    let mut steady = Steady::with_stripes();
    for key in OTHERS {
        steady.table.begin();
        steady.table.append(0, key);
        steady.table.commit(0);
    }
    while steady.fetch().is_some() {}
    steady.reader.close_topic(the_topic(0));
    let (mut written, mut come) = (0, 0);
    for round in 0..300 {
        steady.table.begin();
        CLOSED.iter().for_each(|key| steady.table.append_rows(0, *key, 10));
        // Of two appends, only the end of what was seen before is known: rounds ago.
        (0..2).for_each(|_| steady.table.append(0, OTHERS[round % OTHERS.len()]));
        steady.table.commit(0);
        written += 2;
        for _ in 0..6 {
            steady.reader.look();
            come += steady.fetch().map_or(0, |(_, rows)| rows.len());
        }
        assert_eq!(come, written, "round {round}: what was committed comes in the round");
    }
}

/// Three keys are read through windows of their own, with much in them.
#[test]
fn the_main_window_has_each_second_turn_however_many_others_there_are() {
    let mut steady = Steady::with(Ordering::Single, 0);
    steady.write(400);
    let nobody = RelayId::from_uuid(uuid::Uuid::nil());
    let plan = steady.reader.next(&Route::default(), nobody, 10, usize::MAX).unwrap();
    let rows = steady.reader.fetched(&plan, steady.table.fetch(&plan.request)).rows;
    for row in rows.iter().take(3) {
        let (of, _) = steady.table.hot[&row.position()];
        steady.reader.forget(the_key(of), [row.position()]);
    }
    let mut turns = Vec::new();
    for _ in 0..12 {
        let plan = steady.reader.next(&Route::default(), nobody, 10, usize::MAX).unwrap();
        let read = steady.reader.fetched(&plan, steady.table.fetch(&plan.request));
        steady.reader.left(read.rows.iter().map(FetchedRow::position));
        steady.table.hot.retain(|position, _| read.rows.iter().all(|row| row.position() != *position));
        turns.push(plan.window.is_none());
    }
    let of_main = turns.iter().filter(|is_main| **is_main).count();
    assert_eq!(of_main, 6, "{turns:?}");
}
