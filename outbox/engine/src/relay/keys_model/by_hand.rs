//! Single stories, step by step, that chance comes to seldom.

use outbox_contract::divert::Step;

use super::*;
use crate::relay::model_cast::stored;

/// What failed has room for no more than it had: the content goes, the rows keep their places until they are parked.
#[test]
fn a_long_queue_of_a_failing_key_is_parked_in_steps_and_keeps_its_credit() {
    let mut model = Model::new(Case::default(), 0, false);
    (0..1_200).for_each(|_| model.table.append(0, false));
    let rows = model.table.fetch(&model.readable(), &BTreeSet::new(), usize::MAX);
    model.to_lane.push_back(ToLane::Batch(1, rows.into_iter().map(|row| (row, Epoch::default())).collect()));
    model.lane_takes().unwrap();
    let chunk = model.chunks.swap_remove(0);
    let mut effects = Effects::default();
    let failed = Outcome::Failed(Failure::new("model", "as the model has it"));
    let mut outcomes = vec![Some(Outcome::Blocked); chunk.messages.len()];
    outcomes[0] = Some(failed);
    drop(chunk.messages);
    model.keys.outcomes(chunk.number, outcomes, false, model.now, &mut effects);
    model.carry_out(effects);
    for left in [700, 200, 0] {
        model.divert();
        model.lane_takes().unwrap();
        assert_eq!(model.credit.out(), (left, 0));
        assert_eq!(model.table.keys[&0].parked.len(), 1_200 - left);
    }
}

#[test]
fn a_message_behind_one_that_was_parked_is_parked_too() {
    let mut model = Model::new(Case::default(), 0, false);
    let batch = [true, false].map(|failing| {
        model.table.append(0, false);
        if failing {
            model.table.hold(0);
        }
        let except = model.poller.known.keys().copied().collect();
        let rows = model.table.fetch(&model.readable(), &except, 8);
        // It flows when the second is read, and is held again before the first is parked.
        model.table.operate(0, false, MS);
        model.table.keys.clear();
        model.poller.known.insert(rows[0].position(), 0);
        (rows[0].clone(), Epoch::default())
    });
    model.table.hold(0);
    model.to_lane.push_back(ToLane::Batch(1, batch.into()));
    model.lane_takes().unwrap();
    for parked in 1..=2 {
        model.divert();
        model.lane_takes().unwrap();
        assert_eq!(model.table.keys[&0].parked.len(), parked);
    }
    assert!(model.chunks.is_empty());
}

/// A row whose key can't be named is shown under a stand-in, which may be the name of another key; and the database has put it into a bucket of its
/// own.
#[test]
fn a_row_without_a_name_has_nothing_to_do_with_the_key_under_whose_name_it_is_shown() {
    let mut model = Model::new(Case::default(), 0, false);
    let (mut effects, key) = (Effects::default(), the_key(0));
    let message = |position| stored(Position(position), 0);
    model.keys.push_malformed(key.clone(), Bucket(8), Epoch(3), message(1).row(), "nonsense".to_owned());
    let held = model.hold(message(2));
    model.keys.push(key, bucket(0), Epoch(5), Work::Message(held), &mut effects);
    model.keys.next_steps(&mut effects);
    let ask = effects.asks.pop().unwrap();
    assert_eq!((ask.bucket, ask.epoch, effects.asks.len()), (Bucket(8), Epoch(3), 0));
    model.keys.diverted(key, ask.generation, Diverted::Done(None), 1, MS, &mut effects);
    assert_eq!(effects.left, [Position(1)]);
    let chunk = model.keys.next_chunk(Turn::Ready).unwrap();
    assert_eq!(chunk.epochs, [(bucket(0), Epoch(5))].into_iter().collect());
}

/// A failing key that is due, with these messages parked; the first one has failed so often. And a row that is to be parked behind them.
fn due(attempts: u32, parked: &[i64]) -> DueKey {
    DueKey {
        key: the_key(0).clone(),
        bucket: bucket(0),
        version: 1,
        failing: (attempts > 0).then(|| stored(Position(parked[0]), 0).message.id),
        attempts,
        first_failure: None,
        parked: Vec::new(),
    }
}

impl Model {
    fn retry(&mut self, attempts: u32, parked: &[i64], effects: &mut Effects) {
        let held = parked.iter().map(|at| self.hold(stored(Position(*at), 0))).collect();
        self.keys.retry(due(attempts, parked), Epoch(5), held, MS, effects);
    }

    fn push_failing(&mut self, position: i64, effects: &mut Effects) {
        let work = Work::Failing { row: stored(Position(position), 0).row(), _hold: None };
        self.keys.push(the_key(0), bucket(0), Epoch(5), work, effects);
    }

    /// The one step that is asked for.
    fn ask(&mut self, effects: &mut Effects) -> Ask {
        self.keys.next_steps(effects);
        let ask = effects.asks.pop().unwrap();
        assert!(effects.asks.is_empty(), "one at a time");
        ask
    }

    fn answer(&mut self, ask: &Ask, answer: Diverted, effects: &mut Effects) {
        self.keys.diverted(&ask.key, ask.generation, answer, 1, MS, effects);
    }
}

fn park(position: i64) -> Step {
    Step::Park { rows: vec![stored(Position(position), 0).row()] }
}

fn delivered(position: i64) -> Step {
    Step::Resume { delivered: vec![stored(Position(position), 0).row()] }
}

/// Many keys are due, and each waits for its turn at a publisher: what comes behind them needs none. And what comes without an end keeps none from its turn.
#[test]
fn what_comes_behind_a_failing_key_is_parked_while_it_waits_and_while_it_is_tried() {
    let mut model = Model::new(Case::default(), 0, false);
    let mut effects = Effects::default();
    model.retry(1, &[1], &mut effects);
    model.keys.next_steps(&mut effects);
    assert!(effects.asks.is_empty(), "it stands in line");
    model.push_failing(2, &mut effects);
    let ask = model.ask(&mut effects);
    assert_eq!(ask.step, park(2));
    let chunk = model.keys.next_chunk(Turn::Failed).unwrap();
    assert_eq!(chunk.messages[0].position, Position(1));
    model.push_failing(3, &mut effects);
    model.answer(&ask, Diverted::Done(Some(1)), &mut effects);
    let ask = model.ask(&mut effects);
    assert_eq!(ask.step, park(3));
    model.keys.outcomes(chunk.number, vec![Some(Outcome::Delivered)], false, MS, &mut effects);
    model.keys.next_steps(&mut effects);
    assert!(effects.asks.is_empty(), "one step at a time");
    model.push_failing(4, &mut effects);
    model.answer(&ask, Diverted::Done(Some(1)), &mut effects);
    let ask = model.ask(&mut effects);
    assert_eq!(ask.step, delivered(1), "before anything else is parked");
    model.answer(&ask, Diverted::Done(Some(2)), &mut effects);
    model.keys.next_steps(&mut effects);
    assert!(effects.asks.is_empty(), "it catches up: the rest is due at once");
}

/// What failed while more was being parked behind it is said before the next is parked.
#[test]
fn what_comes_behind_a_failing_key_does_not_keep_from_the_store_that_it_failed_again() {
    let mut model = Model::new(Case::default(), 0, false);
    let mut effects = Effects::default();
    model.retry(1, &[1], &mut effects);
    model.push_failing(2, &mut effects);
    let ask = model.ask(&mut effects);
    let chunk = model.keys.next_chunk(Turn::Failed).unwrap();
    let failed = Outcome::Failed(Failure::new("model", "as the model has it"));
    model.keys.outcomes(chunk.number, vec![Some(failed)], false, MS, &mut effects);
    model.push_failing(3, &mut effects);
    model.answer(&ask, Diverted::Done(Some(1)), &mut effects);
    let ask = model.ask(&mut effects);
    assert!(matches!(ask.step, Step::Fail { attempts: 2, .. }), "{ask:?}");
}

/// Nothing is parked behind what is sent of a key that catches up; when that was all, what has come is read again, with its content.
#[test]
fn a_key_that_has_caught_up_flows_again_though_more_keeps_coming() {
    let mut model = Model::new(Case::default(), 0, false);
    let mut effects = Effects::default();
    model.retry(0, &[1], &mut effects);
    model.push_failing(2, &mut effects);
    model.keys.next_steps(&mut effects);
    assert!(effects.asks.is_empty());
    let chunk = model.keys.next_chunk(Turn::Ready).unwrap();
    model.keys.outcomes(chunk.number, vec![Some(Outcome::Delivered)], false, MS, &mut effects);
    model.push_failing(3, &mut effects);
    let ask = model.ask(&mut effects);
    assert_eq!(ask.step, delivered(1));
    model.answer(&ask, Diverted::Done(None), &mut effects);
    assert_eq!(effects.forgotten, [(the_key(0).clone(), vec![Position(2), Position(3)])]);
    assert!(model.keys.keys.is_empty());
}

/// The rest of a key that catches up does not come: it is held, say. What has come is parked after a while, and at once where it is much.
#[test]
fn of_a_key_that_is_awaited_in_vain_what_comes_is_parked() {
    for rows in [1, 500] {
        let mut model = Model::new(Case::default(), 0, false);
        let mut effects = Effects::default();
        model.retry(0, &[1], &mut effects);
        let chunk = model.keys.next_chunk(Turn::Ready).unwrap();
        model.keys.outcomes(chunk.number, vec![Some(Outcome::Delivered)], false, MS, &mut effects);
        let ask = model.ask(&mut effects);
        model.answer(&ask, Diverted::Done(Some(2)), &mut effects);
        (0..rows).for_each(|row| model.push_failing(2 + row, &mut effects));
        if rows == 1 {
            model.keys.next_steps(&mut effects);
            assert!(effects.asks.is_empty(), "it is awaited");
            assert!(model.keys.wake(MS * 2).is_some());
            assert_eq!(model.keys.wake(MS * 10), None);
        }
        assert!(matches!(model.ask(&mut effects).step, Step::Park { .. }));
    }
}

/// An operator has discarded what was parked, and with it the row of the key, while a message of it is out.
#[test]
fn of_a_key_that_is_no_more_as_it_was_nothing_is_sent_before_what_is_out_is_back() {
    let mut model = Model::new(Case::default(), 0, false);
    let mut effects = Effects::default();
    model.retry(1, &[1], &mut effects);
    let chunk = model.keys.next_chunk(Turn::Failed).unwrap();
    model.push_failing(2, &mut effects);
    let ask = model.ask(&mut effects);
    model.answer(&ask, Diverted::Stale, &mut effects);
    model.keys.next_steps(&mut effects);
    assert!(effects.forgotten.is_empty() && effects.asks.is_empty(), "it is out");
    model.keys.outcomes(chunk.number, vec![None], false, MS, &mut effects);
    assert_eq!(effects.forgotten, [(the_key(0).clone(), vec![Position(2)])]);
    assert!(effects.asks.is_empty() && model.keys.keys.is_empty());
}

/// Those of which nothing is heard wait in a line that is never long: it holds memory that others need.
#[test]
fn failing_keys_that_are_silent_are_put_off_when_many_of_them_wait() {
    let mut model = Model::new(Case::default(), 0, false);
    model.keys.limits.silent = 3;
    let mut effects = Effects::default();
    for of in 0..KEYS {
        let due = DueKey {
            key: the_key(of).clone(),
            bucket: bucket(of),
            failing: Some(stored(Position(1), of).message.id),
            ..due(0, &[1])
        };
        let held = [model.hold(stored(Position(1), of))].into();
        model.keys.retry(due, Epoch(5), held, MS, &mut effects);
    }
    let put_off = effects.asks.iter().filter_map(|ask| match ask.step {
        Step::Fail { attempts: 0, then: outbox_contract::divert::Then::RetryAfter(wait), .. } => Some(wait),
        _ => None,
    });
    let put_off: Vec<Duration> = put_off.collect();
    assert_eq!((put_off.len(), model.credit.out().0), (KEYS - 3, 3));
    assert!(put_off.is_sorted() && put_off[0] >= MS * 8, "{put_off:?}");
}
