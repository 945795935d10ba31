//! Single stories, step by step, that chance comes to seldom.

use super::*;

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
