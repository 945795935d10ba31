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
    model.keys.diverted(key, ask.generation, Diverted::Done(None), 1, &mut effects);
    assert_eq!(effects.left, [Position(1)]);
    let chunk = model.keys.next_chunk(Turn::Ready).unwrap();
    assert_eq!(chunk.epochs, [(bucket(0), Epoch(5))].into_iter().collect());
}

/// Many keys are due, and each waits for its turn at a publisher: what comes behind them needs none.
#[test]
fn what_comes_behind_a_failing_key_that_stands_in_line_is_parked_meanwhile() {
    let mut model = Model::new(Case::default(), 0, false);
    let (mut effects, key) = (Effects::default(), the_key(0));
    let message = |position| stored(Position(position), 0);
    let due = DueKey {
        key: key.clone(),
        bucket: bucket(0),
        version: 1,
        failing: Some(message(1).message.id),
        attempts: 1,
        first_failure: None,
        parked: Vec::new(),
    };
    let parked = [model.hold(message(1))].into();
    model.keys.retry(due, Epoch(5), parked, &mut effects);
    model.keys.next_steps(&mut effects);
    assert!(effects.asks.is_empty(), "it stands in line");
    let behind = Work::Failing { row: message(2).row(), _hold: None };
    model.keys.push(key, bucket(0), Epoch(5), behind, &mut effects);
    model.keys.next_steps(&mut effects);
    let ask = effects.asks.pop().unwrap();
    assert_eq!(ask.step, Step::Park { rows: vec![message(2).row()] });
    assert!(model.keys.next_chunk(Turn::Suspects).is_none(), "one thing at a time");
    model.keys.diverted(key, ask.generation, Diverted::Done(Some(1)), 1, &mut effects);
    let chunk = model.keys.next_chunk(Turn::Suspects).unwrap();
    assert_eq!(chunk.messages[0].position, Position(1));
}
