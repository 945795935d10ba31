//! A topic is closed while another window governs a part of it that has seen less than the main one: what neither has shown is read with the topic.
//!
//! It takes a fetch that was cut short, and a commit between two questions: chance comes upon that too seldom to rely on.

use super::table::Table;
use super::*;

/// Two keys of the topic that is closed, the second one with higher positions; and one of another topic.
const LATE: usize = 0;
const AHEAD: usize = 2;
const OTHER: usize = 1;

/// A reader that cuts fetches short at two rows, and its store.
struct Scene {
    reader: Reader,
    table: Table,
}

impl Scene {
    /// One that has read all of the other topic's bucket, and nothing else yet.
    fn new() -> Self {
        let limits = ReaderLimits {
            rows: 2,
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
        scene.reader.acquire([bucket(OTHER)].into_iter().collect(), Position::START);
        scene.commit(OTHER, 1);
        scene.read_all();
        scene
    }

    /// Commits rows of a key. The positions.
    fn commit(&mut self, key: usize, rows: usize) -> Vec<Position> {
        let before = self.table.committed[key].len();
        self.table.begin();
        self.table.append_rows(0, key, rows);
        self.table.commit(0);
        self.table.committed[key][before..].to_vec()
    }

    /// Asks how far stripes are, and reads once, as the poller does.
    fn read(&mut self) -> Option<(Option<Part>, Vec<Position>)> {
        if self.reader.wants_stripes() {
            self.reader.committed(self.table.marks(&self.reader.owned()));
        }
        let nobody = RelayId::from_uuid(uuid::Uuid::nil());
        let plan = self.reader.next(&Route::default(), nobody, usize::MAX, usize::MAX)?;
        let read = self.reader.fetched(&plan, self.table.fetch(&plan.request));
        Some((plan.window, read.rows.iter().map(FetchedRow::position).collect()))
    }

    /// Looks again and again, until there is nothing.
    fn read_all(&mut self) -> Vec<Position> {
        self.reader.look();
        std::iter::from_fn(|| self.read()).flat_map(|(_, rows)| rows).collect()
    }

    /// Lets the main window show a new row of the other topic; then closes the topic, and says what there is when it is open again.
    fn close_and_open(&mut self) -> Vec<Position> {
        let other = self.commit(OTHER, 1);
        self.reader.look();
        assert_eq!(self.read().unwrap(), (None, other));
        self.reader.close_topic(the_topic(topic_of(LATE)));
        assert!(self.read_all().is_empty(), "it is closed");
        self.reader.open_topic(the_topic(topic_of(LATE)));
        self.read_all()
    }
}

#[test]
fn what_a_bucket_that_was_taken_over_has_not_shown_is_read_with_the_topic() {
    let mut scene = Scene::new();
    let ahead = scene.commit(AHEAD, 2);
    scene.reader.acquire([bucket(LATE), bucket(AHEAD)].into_iter().collect(), Position::START);
    let (window, shown) = scene.read().unwrap();
    assert!(matches!(window, Some(Part::Buckets(_))), "{window:?}");
    assert_eq!(shown, ahead, "the limit cuts it short: the bucket keeps its window");
    // Committed below what the bucket's window has shown, and the main window hears of it.
    let late = scene.commit(LATE, 1);
    assert!(late < ahead);
    assert_eq!(scene.close_and_open(), late);
}

/// The last row of a fetch was committed behind the question, so it counts for nothing yet.
#[test]
fn what_came_too_early_for_a_key_is_read_with_the_topic() {
    let mut scene = Scene::new();
    scene.reader.acquire([bucket(LATE)].into_iter().collect(), Position::START);
    let rows = scene.commit(LATE, 1);
    assert_eq!(scene.read_all(), rows);
    // A lane drops it: the key has a window of its own.
    scene.reader.forget(the_key(LATE), rows.clone());
    scene.reader.committed(scene.table.marks(&scene.reader.owned()));
    let nobody = RelayId::from_uuid(uuid::Uuid::nil());
    let plan = scene.reader.next(&Route::default(), nobody, usize::MAX, usize::MAX).unwrap();
    assert_eq!(plan.window, Some(Part::Key(the_key(LATE).clone())));
    let early = scene.commit(LATE, 1);
    let read = scene.reader.fetched(&plan, scene.table.fetch(&plan.request));
    assert!(read.early && read.rows.len() == 1);
    assert_eq!(scene.close_and_open(), early);
}
