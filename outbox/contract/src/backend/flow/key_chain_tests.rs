#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use proptest::prelude::*;

use super::*;
use crate::backend::Position;
use crate::clock::Timestamp;

/// A batch with one message for each of these keys, in order; a space is no key.
fn batch(keys: &str) -> Vec<Arc<Stored>> {
    let message = |key: char| {
        let message = Message::new("orders", "x").unwrap();
        if key == ' ' { message } else { message.with_key(key.to_string()).unwrap() }
    };
    let stored = |(at, key)| Arc::new(Stored::new(Position(at), Timestamp::default(), message(key)));
    (1..).zip(keys.chars()).map(stored).collect()
}

fn unknown() -> Outcome {
    Outcome::Unknown(Failure::new("timeout", "late"))
}

fn rejected() -> Outcome {
    Outcome::Rejected(Failure::new("too-large", "large"))
}

#[test]
fn a_failure_blocks_its_key_and_no_other() {
    let mut chain = KeyChain::new(&batch("abaa b"));
    assert_eq!(chain.heads().collect::<Vec<_>>(), [0, 1, 4]);
    let mut reports = Reports::new();
    chain.start(0);
    chain.fail(0, rejected(), &mut reports);
    let blocked = Outcome::Blocked;
    assert_eq!(reports, [(0, rejected()), (2, blocked.clone()), (3, blocked)]);
    chain.start(1);
    assert_eq!(chain.confirm(1, &mut reports), Some(5), "the next of its key");
    assert_eq!(chain.confirm(0, &mut reports), None, "a late answer changes nothing");
    assert!(!chain.is_complete() && chain.is_waiting(4));
}

#[test]
fn what_is_confirmed_early_is_reported_behind_its_predecessors() {
    let mut chain = KeyChain::new(&batch("aaa"));
    let mut reports = Reports::new();
    (0..3).for_each(|index| chain.start(index));
    assert_eq!(chain.confirm(2, &mut reports), None);
    assert_eq!(chain.confirm(1, &mut reports), None);
    assert!(reports.is_empty());
    chain.confirm(0, &mut reports);
    assert_eq!(reports.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [0, 1, 2]);
    assert!(chain.is_complete());
}

#[test]
fn what_is_given_up_is_unknown_if_it_was_sent() {
    let mut chain = KeyChain::new(&batch("aaabb"));
    let mut reports = Reports::new();
    (0..2).for_each(|index| chain.start(index));
    chain.give_up(&unknown(), &rejected(), &mut reports);
    let (unknown, blocked) = (unknown(), Outcome::Blocked);
    let expected = [(0, unknown.clone()), (1, unknown), (2, blocked.clone()), (3, rejected()), (4, blocked)];
    assert_eq!(reports, expected);
    assert!(chain.is_complete() && chain.under_way() == 0);
}

#[test]
fn only_keys_of_which_something_was_not_delivered_are_cut() {
    let (batch, mut cut) = (batch("ab a"), CutKeys::default());
    assert!(!cut.blocks(&batch[0].message));
    cut.cut(&batch[0].message);
    cut.cut(&batch[2].message);
    let blocked: Vec<bool> = batch.iter().map(|stored| cut.blocks(&stored.message)).collect();
    assert_eq!(blocked, [true, false, true, true]);
}

proptest! {
    /// Answers come in any order, and some are failures: each message is reported once, and behind
    /// an undelivered one none of its key is delivered.
    #[test]
    fn of_each_key_a_prefix_is_delivered(
        keys in "[a-d ]{1,24}",
        pipelined in any::<bool>(),
        steps in proptest::collection::vec((any::<proptest::sample::Index>(), 0..8_u8), 0..120),
        ends in any::<bool>(),
    ) {
        let messages = batch(&keys);
        let (mut chain, mut reports) = (KeyChain::new(&messages), Reports::new());
        let mut ready: Vec<usize> =
            if pipelined { (0..messages.len()).rev().collect() } else { chain.heads().collect() };
        for (pick, step) in steps {
            let under_way: Vec<usize> = (0..messages.len()).filter(|it| chain.is_under_way(*it)).collect();
            prop_assert_eq!(under_way.len(), chain.under_way());
            match step {
                0..=2 => {
                    if let Some(index) = ready.pop().filter(|index| chain.is_waiting(*index)) {
                        chain.start(index);
                    }
                }
                3 if !pipelined && !under_way.is_empty() => {
                    let index = under_way[pick.index(under_way.len())];
                    chain.put_back(index);
                    ready.push(index);
                }
                4..=6 if !under_way.is_empty() => {
                    ready.extend(chain.confirm(under_way[pick.index(under_way.len())], &mut reports));
                }
                7 if !under_way.is_empty() => {
                    chain.fail(under_way[pick.index(under_way.len())], rejected(), &mut reports);
                }
                _ => {}
            }
        }
        if ends {
            chain.give_up(&unknown(), &rejected(), &mut reports);
            prop_assert!(chain.is_complete());
        }
        let mut outcomes: Vec<Option<Outcome>> = vec![None; messages.len()];
        for (index, outcome) in reports {
            prop_assert_eq!(&outcomes[index], &None, "reported once");
            outcomes[index] = Some(outcome);
        }
        prop_assert_eq!(chain.is_complete(), outcomes.iter().all(Option::is_some));
        let mut cut = CutKeys::default();
        for (stored, outcome) in messages.iter().zip(outcomes) {
            if outcome == Some(Outcome::Delivered) {
                prop_assert!(!cut.blocks(&stored.message), "delivered behind an undelivered one");
            } else {
                cut.cut(&stored.message);
            }
        }
    }
}
