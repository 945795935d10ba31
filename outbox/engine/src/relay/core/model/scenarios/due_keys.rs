//! Due keys that never got an answer, and those that got one which counts no attempt.

use outbox_contract::Key;
use outbox_contract::backend::{DueRequest, Stored};

use super::*;
use crate::relay::core::model::cast::SLOTS;
use crate::relay::core::outcomes::MAX_SILENT;

const HOUR: Duration = Duration::from_secs(3_600);

/// Message of a key that is none of the cast's.
pub(super) fn of_another_key(number: usize) -> Arc<Stored> {
    let mut stored = row(i64::try_from(number).unwrap() + 1, number % SLOTS);
    Arc::make_mut(&mut stored).message.key = Some(Key::new(format!("key-{number}")).unwrap());
    stored
}

/// Key whose first message was tried, with an outcome of this class, and no attempt counted.
fn uncounted(number: usize, class: &'static str) -> DueKey {
    let stored = of_another_key(number);
    let (id, failure) = (stored.message.id, Failure::new(class, "as the test has it"));
    DueKey::new(stored.message.key_id(), stored.bucket, 1, vec![stored]).with_failing(
        Some(id),
        0,
        Some(failure),
    )
}

impl Bench {
    /// Lets time pass until the core asks for due keys, and shows it no rows.
    fn due(&mut self) -> (u64, DueRequest) {
        for _ in 0..1_000 {
            let asks = |want: &Command| matches!(want, Command::Ask { .. });
            let Some(at) = self.wants.iter().position(asks) else {
                self.now += MS * 100;
                self.feed(Event::Tick);
                continue;
            };
            let Command::Ask { number, question } = self.wants.swap_remove(at) else { continue };
            match question {
                Question::Due(request) => return (number, request),
                Question::Fetch(_) => self.shows(number, Vec::new()),
                other => panic!("{other:?}"),
            }
        }
        panic!("due keys are not asked for");
    }

    fn is_due(&mut self, number: u64, keys: Vec<DueKey>) {
        let due = Due::new(keys, Some(Duration::ZERO));
        self.feed(Event::Answered { number, answer: Answer::Due(due) });
    }
}

/// A program is too old for all messages of a new type. None of their keys is silent: each attempt
/// has an outcome.
#[test]
fn postponed_keys_are_not_taken_for_silent_ones() {
    let mut bench = Bench::small();
    let max_keys = bench.core.due.room().unwrap().0;
    let mut tried = 0;
    while tried < 1_000 {
        let (number, request) = bench.due();
        assert!(request.except.len() < max_keys, "{} keys are excluded", request.except.len());
        let keys: Vec<DueKey> = (tried..).take(request.keys).map(|key| uncounted(key, "schema")).collect();
        tried += keys.len();
        bench.is_due(number, keys);
        while let Some(batch) = bench.batch() {
            let postponed = Outcome::Postponed(HOUR, Failure::new("schema", "it is newer"));
            bench.is_back(&batch, Some(postponed));
        }
        while let Some((step, _)) = bench.step() {
            bench.is_made(step, Some(2));
        }
    }
    assert_eq!(bench.core.silent.len(), 0, "of {tried} keys");
}

#[test]
fn the_number_of_silent_keys_in_memory_is_bounded() {
    let mut bench = Bench::small();
    let count = MAX_SILENT * 2;
    for first in (0..count).step_by(500) {
        let (number, _) = bench.due();
        bench.is_due(number, (first..first + 500).map(|key| uncounted(key, "silent")).collect());
        assert!(bench.core.silent.len() <= MAX_SILENT, "{} keys", bench.core.silent.len());
    }
    assert!(!bench.core.silent.is_empty(), "they are known to be silent");
}

#[test]
fn a_parked_message_that_became_a_dead_letter_is_not_sent_again() {
    let mut bench = Bench::small();
    let (number, _) = bench.due();
    let parked = vec![row(1, 0), row(2, 0)];
    let failing = Some(parked[0].message.id);
    let due = DueKey::new(the_key(0).clone(), bucket(0), 1, parked).with_failing(failing, 3, None);
    bench.is_due(number, vec![due]);
    let batch = bench.batch().unwrap();
    assert_eq!(positions(&batch), [1], "alone");
    bench.is_back(&batch, Some(Outcome::Rejected(Failure::new("wrong", "as the test has it"))));
    let (step, transition) = bench.step().unwrap();
    assert!(matches!(transition.step, Step::Bury { .. }), "{transition:?}");
    bench.is_made(step, Some(2));
    for _ in 0..10 {
        let sent = bench.batch().map(|batch| positions(&batch)).unwrap_or_default();
        assert!(!sent.contains(&1), "{sent:?}");
        bench.now += MS * 100;
        bench.feed(Event::Tick);
    }
}
