//! Blocked keys make room for others.

use outbox_contract::backend::{BucketSet, Epoch, KeyTransition, Lease, Leased};

use super::due_keys::of_another_key;
use super::*;
use crate::relay::core::model::cast::{SLOTS, bucket_at};

fn small() -> Bench {
    Bench::of_inbox(4, 4)
}

impl Bench {
    /// Blocks every batch that is sent within a second.
    fn block(&mut self) {
        for _ in 0..100 {
            self.now += MS * 10;
            self.feed(Event::Tick);
            while let Some(batch) = self.batch() {
                self.is_back(&batch, Some(Outcome::Blocked));
            }
        }
    }

    /// Answers what the core asks, with nothing due, until it asks for rows or for nothing.
    fn question(&mut self) -> Option<u64> {
        loop {
            let at = self.wants.iter().position(|want| matches!(want, Command::Ask { .. }))?;
            let Command::Ask { number, question } = self.wants.swap_remove(at) else { return None };
            match question {
                Question::Fetch(_) => return Some(number),
                Question::Due(_) => {
                    self.feed(Event::Answered { number, answer: Answer::Due(Due::default()) });
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn steps(&mut self) -> Vec<(u64, KeyTransition)> {
        std::iter::from_fn(|| self.step()).collect()
    }
}

fn rows(count: i64) -> Vec<FetchedRow> {
    (1..=count).map(|position| message(position, usize::try_from(position).unwrap() - 1)).collect()
}

/// The publisher had the batch when the leases were over.
#[test]
fn keys_that_are_blocked_without_leases_stay_in_memory() {
    let mut bench = small();
    bench.reads(rows(4));
    let batch = bench.batch().unwrap();
    bench.now = Duration::from_secs(1_000_000);
    bench.is_back(&batch, Some(Outcome::Blocked));
    let leases =
        (0..SLOTS).map(|slot| Lease { bucket: bucket_at(slot), epoch: Epoch(1), low_water: Position::START });
    let mut leased = Leased::default();
    leased.leases = leases.collect();
    let (asked, until) = (bench.now, bench.now * 2);
    bench.feed(Event::Leased { leased, surplus: BucketSet::EMPTY, asked, until });
    bench.now += MS * 500;
    bench.feed(Event::Tick);
    assert_eq!((bench.steps().len(), bench.core.in_flight().0), (0, 4));
}

/// A broker blocks keys for a moment: messages that wait for others on their way to a partition.
#[test]
fn blocked_keys_of_a_transport_that_is_no_inbox_stay_in_memory() {
    let config = RelayConfig { max_in_flight: 8, fetch_batch: 4, ..RelayConfig::default() };
    let mut bench = Bench::new(Ordering::Single, &config);
    bench.reads(rows(4));
    bench.block();
    assert_eq!((bench.steps().len(), bench.core.in_flight().0), (0, 4));
}

#[test]
fn blocked_keys_make_room_for_others() {
    let mut bench = small();
    bench.reads(rows(4));
    bench.block();
    let steps = bench.steps();
    let uncounted = |step: &Step| matches!(step, Step::Fail { attempts: 0, .. });
    assert!(steps.iter().all(|(_, transition)| uncounted(&transition.step)), "{steps:?}");
    assert_eq!((steps.len(), bench.core.in_flight().0), (2, 2), "as many as make room for a fetch");
}

/// Otherwise a whole backlog would be set aside where nothing can be done for anybody.
#[test]
fn while_nothing_is_delivered_keys_make_room_less_and_less_often() {
    let mut bench = small();
    let (mut shown, mut made) = (0, Vec::new());
    for second in 0..60 {
        bench.block();
        for (number, _) in bench.steps() {
            made.push(second);
            bench.is_made(number, Some(1));
        }
        while let Some(number) = bench.question() {
            let room = 4 - bench.core.in_flight().0;
            let rows = (shown..).take(room).map(|number| FetchedRow::Message(of_another_key(number)));
            shown += room;
            bench.shows(number, rows.collect());
        }
    }
    // Two of them make room at a time, every 5 s in the end.
    let late = made.iter().filter(|second| **second >= 20).count();
    assert!(late > 0 && late <= 2 * 40 / 5, "{made:?}");
}
