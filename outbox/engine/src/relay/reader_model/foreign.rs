//! Rows that other programs wrote: what has no name that a key could have, and what stands in a bucket that is not its key's.
//!
//! No window of a key shows a row whose key can't be named, so none may be left to one.

use outbox_contract::fetch::{RowId, Scope, Waiting};
use outbox_contract::{Bucket, Key, Message, MessageId, Stored, Timestamp};
use std::sync::Arc;

use super::*;

/// What a row is shown under whose key can't be one; and the bucket that the database gave it.
const STAND_IN: &str = "?";
const FOREIGN: Bucket = Bucket(9);

/// A hot table of such rows alone, in the order of their positions.
struct Scene {
    reader: Reader,
    hot: BTreeMap<Position, FetchedRow>,
    /// The most that was in memory at once.
    most: usize,
}

fn stand_in() -> KeyId {
    let key = KeyId { topic: Topic::new("topic").unwrap(), key: Key::new(STAND_IN).unwrap() };
    assert_ne!(key.bucket(), FOREIGN);
    key
}

fn malformed(position: i64) -> FetchedRow {
    let id = MessageId::from_uuid(uuid::Uuid::from_u128(u128::try_from(position).unwrap()));
    let at = RowId { position: Position(position), id };
    let waiting = Waiting { at, key: stand_in(), bucket: FOREIGN, stripe: None };
    FetchedRow::Malformed(waiting, "its key is empty".to_owned())
}

/// A message of the key that stands for those without a name: here it is the name of one.
fn message(position: i64, bucket: Bucket) -> FetchedRow {
    let message = Message::new(Topic::new("topic").unwrap(), "event").with_key(STAND_IN).unwrap();
    let mut stored = Stored::new(Position(position), Timestamp::default(), message);
    stored.bucket = bucket;
    FetchedRow::Message(Arc::new(stored))
}

impl Scene {
    fn new(per_key: usize, waiting: usize, rows: impl IntoIterator<Item = FetchedRow>) -> Self {
        let limits =
            ReaderLimits { rows: 1_000, bytes: usize::MAX, per_key, waiting, key_gaps: 4, walk: i64::MAX };
        let mut reader = Reader::new(Ordering::Single, limits);
        reader.acquire(BucketSet::ALL, Position::START);
        Self { reader, hot: rows.into_iter().map(|row| (row.position(), row)).collect(), most: 0 }
    }

    fn plan(&mut self) -> Option<Plan> {
        let nobody = RelayId::from_uuid(uuid::Uuid::nil());
        self.reader.next(&Route::default(), nobody, usize::MAX, usize::MAX)
    }

    /// One fetch. What was taken.
    fn read(&mut self) -> Option<Vec<Position>> {
        let plan = self.plan()?;
        let request = &plan.request;
        // By the names that stand in the table: no scope of a key matches one that can't be named.
        let in_scope = |row: &FetchedRow, scope: &Scope| match (row, scope) {
            (_, Scope::Everything) | (FetchedRow::Message(_), Scope::Key(_)) => true,
            (_, _) => false,
        };
        let bucket = |row: &FetchedRow| match row {
            FetchedRow::Message(stored) => stored.bucket,
            _ => FOREIGN,
        };
        let asked = self.hot.values().filter(|row| {
            row.position() > request.after
                && !request.except.contains(&row.position())
                && request.buckets.contains(bucket(row))
                && in_scope(row, &request.scope)
        });
        let show = |row: &FetchedRow| match request.muted.iter().any(|muted| in_scope(row, muted)) {
            true => FetchedRow::Muted(row.position()),
            false => row.clone(),
        };
        let rows: Vec<FetchedRow> = asked.take(request.limit).map(show).collect();
        let full = rows.len() == request.limit;
        let read = self.reader.fetched(&plan, Fetched { rows, full, reached: Position::START });
        self.most = self.most.max(self.reader.in_flight.len());
        Some(read.rows.iter().map(FetchedRow::position).collect())
    }

    fn left(&mut self, rows: &[Position]) {
        rows.iter().for_each(|row| drop(self.hot.remove(row)));
        self.reader.left(rows.iter().copied());
    }

    /// Reads and removes until nothing is left.
    fn drain(&mut self) {
        for _ in 0..1_000 {
            self.reader.look();
            let rows = self.read().unwrap_or_default();
            self.left(&rows);
            if self.hot.is_empty() {
                return;
            }
        }
        panic!("{} rows are never shown, the first is {:?}", self.hot.len(), self.hot.first_key_value());
    }
}

#[test]
fn any_number_of_rows_that_have_no_name_is_shown_in_the_end() {
    for (per_key, waiting) in [(500, 2_000), (500, 100), (1, 2_000)] {
        let mut scene = Scene::new(per_key, waiting, (1..=1_200).map(malformed));
        scene.drain();
        assert!(scene.most <= waiting, "{} in memory at once", scene.most);
    }
}

/// While there is no room for such rows nothing is asked for that would show them again.
#[test]
fn rows_without_a_name_for_which_there_is_no_room_are_waited_for_without_looking() {
    let mut scene = Scene::new(500, 4, (1..=8).map(malformed));
    let rows = scene.read().unwrap();
    assert_eq!(rows.len(), 4);
    assert!(scene.plan().is_none(), "there is no room");
    scene.left(&rows[..2]);
    assert!(scene.reader.has_cooled_keys());
    assert_eq!(scene.read().unwrap().len(), 2);
}

/// A key has the very name under which rows without one are shown, and has a window of its own.
#[test]
fn rows_without_a_name_are_not_left_to_the_window_of_a_key_that_has_that_name() {
    let key = stand_in();
    let messages = [1, 2].map(|position| message(position, key.bucket()));
    let mut scene = Scene::new(1, 100, messages.into_iter().chain([malformed(3)]));
    assert_eq!(scene.read().unwrap(), [Position(1), Position(3)]);
    scene.left(&[Position(1), Position(3)]);
    scene.drain();
}

/// It is the bucket of the row that this relay owns.
#[test]
fn a_row_without_a_name_that_is_forgotten_is_read_again() {
    let mut scene = Scene::new(500, 100, [malformed(7)]);
    scene.reader.lose(BucketSet::ALL.without(&[FOREIGN].into_iter().collect()));
    assert_eq!(scene.read().unwrap(), [Position(7)]);
    scene.reader.forget(&stand_in(), [Position(7)]);
    assert!(scene.reader.low_water() < Position(7));
    assert_eq!(scene.read().unwrap(), [Position(7)]);
}

/// A program computes buckets in a way of its own. Its rows have no order, but none is passed over.
#[test]
fn a_message_in_a_bucket_that_is_not_its_keys_is_read_again_when_it_was_forgotten() {
    let mut scene = Scene::new(500, 100, [message(7, FOREIGN)]);
    scene.reader.lose(BucketSet::ALL.without(&[FOREIGN].into_iter().collect()));
    assert_eq!(scene.read().unwrap(), [Position(7)]);
    scene.reader.forget(&stand_in(), [Position(7)]);
    assert!(scene.reader.low_water() < Position(7));
    scene.drain();
}

/// The bucket of its key's name goes; that in which its rows stand stays.
#[test]
fn a_crowded_key_in_a_foreign_bucket_is_read_though_the_bucket_of_its_name_is_lost() {
    let mut scene = Scene::new(1, 100, [1, 2].map(|position| message(position, FOREIGN)));
    assert_eq!(scene.read().unwrap(), [Position(1)]);
    scene.reader.lose([stand_in().bucket()].into_iter().collect());
    scene.left(&[Position(1)]);
    scene.drain();
}
