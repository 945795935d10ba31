//! The checker finds each defect in histories made by hand, and says the same as an oracle
//! (`model.rs`) that compares everything with everything.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test, also in its helpers")]

mod model;

use outbox_contract::{Message, MessageId};
use outbox_testkit::history::{ConsumerId, History, KeySequences, Report};

fn message(topic: &str, key: &str) -> Message {
    Message::new(topic, "test.event").unwrap().with_key(key).unwrap()
}

fn messages<const N: usize>(key: &str) -> [Message; N] {
    std::array::from_fn(|_| message("orders", key))
}

/// Commits each of these in a transaction of its own, one after the other.
fn commit(history: &History, messages: &[Message]) {
    for message in messages {
        let mut writing = history.begin();
        writing.append(message);
        writing.committed();
    }
}

fn deliver(history: &History, consumer: ConsumerId, messages: &[&Message]) {
    for message in messages {
        history.delivered(consumer, message);
    }
}

/// Counts of lost, phantom, out of order, stale repeats, duplicates.
fn counts(report: &Report) -> [u64; 5] {
    [
        report.lost.count,
        report.phantom.count,
        report.out_of_order.count,
        report.stale_repeats.count,
        report.duplicated.count,
    ]
}

/// Returns the history of messages of one key that are committed in order and delivered by these
/// indices.
fn delivered_as<const N: usize>(order: &[usize]) -> (History, [Message; N]) {
    let history = History::new();
    let all = messages::<N>("a");
    commit(&history, &all);
    let consumer = history.consumer("c");
    for at in order {
        history.delivered(consumer, &all[*at]);
    }
    (history, all)
}

#[test]
fn a_history_without_defects_has_none() {
    let (history, _) = delivered_as::<3>(&[0, 1, 2]);
    let report = history.check();
    assert_eq!(counts(&report), [0; 5]);
    assert_eq!((report.committed, report.deliveries, report.delivered), (3, 3, 3));
    report.assert_exactly_once();
}

#[test]
fn a_committed_message_that_never_came_is_lost() {
    let (history, all) = delivered_as::<3>(&[0, 2]);
    let report = history.check();
    assert_eq!(counts(&report), [1, 0, 0, 0, 0]);
    assert_eq!(report.lost.examples[0].id, all[1].id);
}

#[test]
fn every_consumer_is_owed_every_message_of_its_topics() {
    let history = History::new();
    let (order, customer) = (message("orders", "a"), message("customers", "a"));
    let keyless = Message::new("customers", "test.event").unwrap();
    commit(&history, &[order.clone(), customer.clone(), keyless.clone()]);
    let all = history.consumer("all");
    let of_orders = history.consumer_of("orders", std::slice::from_ref(&order.topic));
    let idle = history.consumer_of("idle", std::slice::from_ref(&customer.topic));
    let _ = idle;
    deliver(&history, all, &[&order, &customer, &keyless]);
    deliver(&history, of_orders, &[&order]);
    let report = history.check();
    assert_eq!(counts(&report), [2, 0, 0, 0, 0], "both of the idle one's topic");
    assert!(report.lost.examples.iter().all(|example| example.consumer == "idle"));
}

#[test]
fn a_message_that_was_rolled_back_or_never_written_is_a_phantom() {
    let history = History::new();
    let [rolled_back, never] = messages("a");
    let mut writing = history.begin();
    writing.append(&rolled_back);
    writing.rolled_back();
    let consumer = history.consumer("c");
    deliver(&history, consumer, &[&rolled_back, &never]);
    let report = history.check();
    assert_eq!(counts(&report), [0, 2, 0, 0, 0]);
    assert_eq!(report.committed, 0);
}

#[test]
fn a_message_under_another_key_or_from_before_its_append_is_a_phantom() {
    let history = History::new();
    let [early, misfiled] = messages("a");
    let consumer = history.consumer("c");
    history.delivered(consumer, &early);
    commit(&history, &[early, misfiled.clone()]);
    history.delivered(consumer, &misfiled.with_key("b").unwrap());
    assert_eq!(counts(&history.check()), [2, 2, 0, 0, 0], "and neither was delivered as it is");
}

#[test]
fn a_first_delivery_behind_a_newer_message_is_out_of_order() {
    let (history, all) = delivered_as::<3>(&[1, 0, 2]);
    let report = history.check();
    assert_eq!(counts(&report), [0, 0, 1, 0, 0]);
    let example = &report.out_of_order.examples[0];
    assert_eq!((example.id, example.behind), (all[0].id, Some(all[1].id)));
}

#[test]
fn only_first_deliveries_are_out_of_order() {
    // The merge of two relays' streams: 0 1 | 0 1 2. Repeats behind newer ones are stale, and
    // nothing is out of order.
    let (history, _) = delivered_as::<3>(&[0, 1, 0, 1, 2, 2]);
    let report = history.check();
    assert_eq!(counts(&report), [0, 0, 0, 1, 2]);
    report.assert_at_least_once_in_order();
    assert!(!report.is_exactly_once());
}

#[test]
fn messages_of_one_transaction_are_ordered_as_they_were_appended() {
    let history = History::new();
    let [first, second, third] = messages("a");
    let mut writing = history.begin();
    for message in [&first, &second, &third] {
        writing.append(message);
    }
    writing.committed();
    let consumer = history.consumer("c");
    deliver(&history, consumer, &[&third, &first, &second, &first]);
    assert_eq!(counts(&history.check()), [0, 0, 2, 1, 0]);
}

#[test]
fn transactions_that_overlap_have_no_order() {
    let history = History::new();
    let [one, other, after] = messages("a");
    let mut first = history.begin();
    first.append(&one);
    let mut second = history.begin();
    second.append(&other);
    first.committed();
    second.committed();
    commit(&history, std::slice::from_ref(&after));
    let consumer = history.consumer("c");
    deliver(&history, consumer, &[&other, &one, &after]);
    let reverse = history.consumer("reverse");
    deliver(&history, reverse, &[&one, &other, &after]);
    history.check().assert_exactly_once();
    let wrong = history.consumer("wrong");
    deliver(&history, wrong, &[&one, &after, &other]);
    assert_eq!(counts(&history.check()), [0, 0, 1, 0, 0]);
}

#[test]
fn keys_topics_and_messages_without_a_key_have_no_order_among_them() {
    let history = History::new();
    let keyless = || Message::new("orders", "test.event").unwrap();
    let all =
        [message("orders", "a"), message("orders", "b"), message("customers", "a"), keyless(), keyless()];
    commit(&history, &all);
    let consumer = history.consumer("c");
    deliver(&history, consumer, &[&all[4], &all[3], &all[2], &all[1], &all[0]]);
    history.check().assert_exactly_once();
}

#[test]
fn an_unknown_commit_may_come_or_not_and_still_has_an_order() {
    let history = History::new();
    let [before, unknown, dropped, after] = messages("a");
    commit(&history, std::slice::from_ref(&before));
    let mut writing = history.begin();
    writing.append(&unknown);
    writing.unknown();
    let mut writing = history.begin();
    writing.append(&dropped);
    drop(writing);
    commit(&history, std::slice::from_ref(&after));

    let without = history.consumer("without");
    deliver(&history, without, &[&before, &after]);
    let with = history.consumer("with");
    deliver(&history, with, &[&before, &after, &unknown, &dropped]);
    let report = history.check();
    assert_eq!(counts(&report), [0; 5], "it may have been committed after everything else");
    assert_eq!((report.committed, report.unknown), (2, 2));

    let too_early = history.consumer("too early");
    deliver(&history, too_early, &[&unknown, &before, &after]);
    assert_eq!(counts(&history.check()), [0, 0, 1, 0, 0], "what was committed before it began is before it");
}

#[test]
fn a_transaction_that_was_started_again_counts_once() {
    let history = History::new();
    let [again, after] = messages("a");
    let mut writing = history.begin();
    writing.append(&again);
    writing.rolled_back();
    commit(&history, &[again.clone(), after.clone()]);
    let consumer = history.consumer("c");
    deliver(&history, consumer, &[&again, &after]);
    let report = history.check();
    report.assert_exactly_once();
    assert_eq!(report.committed, 2);
}

#[test]
fn a_message_that_may_be_there_twice_has_the_place_of_the_first_and_no_place_within_a_transaction() {
    let history = History::new();
    let [twice, after] = messages("a");
    commit(&history, &[twice.clone(), after.clone(), twice.clone()]);
    let consumer = history.consumer("c");
    deliver(&history, consumer, &[&after, &twice]);
    assert_eq!(counts(&history.check()), [0, 0, 1, 0, 0], "its first commit was before the other began");

    let history = History::new();
    let [one, other] = messages("a");
    let mut writing = history.begin();
    writing.append(&one);
    writing.append(&other);
    writing.unknown();
    let mut again = history.begin();
    again.append(&other);
    again.append(&one);
    again.committed();
    let (as_first, as_again) = (history.consumer("as first"), history.consumer("as again"));
    deliver(&history, as_first, &[&one, &other]);
    deliver(&history, as_again, &[&other, &one]);
    assert_eq!(
        counts(&history.check()),
        [0; 5],
        "either transaction may be the one that was committed first"
    );
}

#[test]
fn what_comes_before_its_transaction_was_committing_is_a_phantom() {
    let history = History::new();
    let [seen_early, other] = messages("a");
    let consumer = history.consumer("c");
    let mut writing = history.begin();
    writing.append(&seen_early);
    writing.append(&other);
    history.delivered(consumer, &seen_early);
    writing.committing();
    // Its commit is done before the writer hears of that.
    history.delivered(consumer, &seen_early);
    history.delivered(consumer, &other);
    writing.committed();
    let report = history.check();
    assert_eq!(counts(&report), [0, 1, 0, 0, 0]);
    assert_eq!(report.phantom.examples[0].id, seen_early.id);
}

#[test]
fn a_dead_letter_may_be_missing_and_joins_again_at_the_end() {
    let history = History::new();
    let all: [Message; 3] = messages("a");
    commit(&history, &all);
    history.dead_lettered(&all[0], history.now());
    let consumer = history.consumer("c");
    deliver(&history, consumer, &[&all[1], &all[2]]);
    let report = history.check();
    assert_eq!((counts(&report), report.dead_lettered), ([0; 5], 1));
    history.requeued(all[0].id, history.now());
    deliver(&history, consumer, &[&all[0]]);
    assert_eq!(counts(&history.check()), [0; 5]);
}

#[test]
fn what_was_overtaken_before_it_died_is_out_of_order() {
    let history = History::new();
    let all: [Message; 3] = messages("a");
    commit(&history, &all);
    let consumer = history.consumer("c");
    deliver(&history, consumer, &[&all[1]]);
    history.dead_lettered(&all[0], history.now());
    deliver(&history, consumer, &[&all[2], &all[0]]);
    let report = history.check();
    assert_eq!(counts(&report), [0, 0, 1, 0, 0], "its follower was sent first, then it died");
    let example = &report.out_of_order.examples[0];
    assert_eq!((example.id, example.behind), (all[0].id, Some(all[1].id)));

    // Whichever of the two dies later: they came in the wrong order before.
    for dies in [0, 1] {
        let (history, all) = delivered_as::<2>(&[1, 0]);
        history.dead_lettered(&all[dies], history.now());
        assert_eq!(counts(&history.check()), [0, 0, 1, 0, 0], "and then the one at {dies} dies");
    }
}

#[test]
fn a_requeued_dead_letter_is_owed_again() {
    let history = History::new();
    let [dead, other] = messages("a");
    commit(&history, &[dead.clone(), other.clone()]);
    let consumer = history.consumer("c");
    // Its bytes came, the answer was lost, and in the end it died.
    deliver(&history, consumer, &[&dead]);
    history.dead_lettered(&dead, history.now());
    deliver(&history, consumer, &[&other]);
    assert_eq!(counts(&history.check()), [0; 5]);
    let requeued = history.now();
    history.requeued(dead.id, requeued);
    let report = history.check();
    assert_eq!(counts(&report), [1, 0, 0, 0, 0], "it was requeued and never came");
    assert_eq!(report.lost.examples[0].id, dead.id);

    let died_again = history.now();
    history.dead_lettered(&dead, died_again);
    assert_eq!(counts(&history.check()), [0; 5], "it died again");
    history.requeued(dead.id, history.now());
    assert_eq!(counts(&history.check()), [1, 0, 0, 0, 0], "and was requeued again");
    deliver(&history, consumer, &[&dead]);
    assert_eq!(history.check().lost.count, 0);
}

#[test]
fn a_dead_letter_of_what_was_never_committed_is_a_phantom() {
    let history = History::new();
    let [rolled_back, never, unknown, misfiled] = messages("a");
    let mut writing = history.begin();
    writing.append(&rolled_back);
    writing.rolled_back();
    let mut writing = history.begin();
    writing.append(&unknown);
    writing.unknown();
    commit(&history, std::slice::from_ref(&misfiled));
    history.consumer("c");
    for dead in [&rolled_back, &never, &unknown, &misfiled.with_key("b").unwrap()] {
        history.dead_lettered(dead, history.now());
    }
    let report = history.check();
    assert_eq!(
        counts(&report),
        [1, 3, 0, 0, 0],
        "what is filed under another key is still owed under its own"
    );
    let found: Vec<MessageId> = report.phantom.examples.iter().map(|example| example.id).collect();
    assert!(found.contains(&rolled_back.id) && found.contains(&never.id));
    assert!(report.phantom.examples.iter().all(|example| example.consumer == "dead letters"));
}

#[test]
fn a_scheduled_message_has_no_place_in_the_order() {
    let history = History::new();
    let [scheduled, direct] = messages("a");
    let mut writing = history.begin();
    writing.schedule(&scheduled);
    writing.committed();
    commit(&history, std::slice::from_ref(&direct));
    let consumer = history.consumer("c");
    deliver(&history, consumer, &[&direct, &scheduled]);
    history.check().assert_exactly_once();
    let missing = history.consumer("missing");
    deliver(&history, missing, &[&direct]);
    assert_eq!(history.check().lost.count, 1, "but it is owed as any other");
}

#[test]
fn a_report_names_the_messages_and_how_many_more_there_are() {
    let history = History::new();
    let all: [Message; 9] = messages("order-1");
    commit(&history, &all);
    history.consumer("inventory");
    let text = history.check().to_string();
    assert!(text.contains("         9 lost: committed and never delivered"), "{text}");
    let mut ids: Vec<MessageId> = all.iter().map(|message| message.id).collect();
    ids.sort();
    assert!(text.contains(&format!("{} of orders, key order-1, at inventory", ids[0])), "{text}");
    assert!(text.contains("and 4 more"), "{text}");
}

#[test]
fn the_lean_checker_counts_what_nobody_committed() {
    let mut lean = KeySequences::new();
    lean.committed("a", 2);
    lean.delivered("a", u32::MAX);
    lean.delivered("a", 7);
    lean.delivered("b", 1);
    assert_eq!((lean.lost(), lean.phantom(), lean.out_of_order()), (2, 3, 1));
    assert!(!lean.is_at_least_once_in_order());
    assert!(lean.to_string().starts_with("2 committed, 3 deliveries: 2 lost, 3 phantoms, 1 out of order"));
}
