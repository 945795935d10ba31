//! The checker finds each defect in histories made by hand, and says the same as an oracle that compares everything with everything.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test, also in its helpers")]

use outbox_contract::{Message, MessageId, Topic};
use outbox_testkit::history::{ConsumerId, Fate, History, KeySequences, Moment, Report};
use proptest::prelude::*;

fn message(topic: &str, key: &str) -> Message {
    Message::new(Topic::new(topic).unwrap(), "test.event").with_key(key).unwrap()
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

/// What is found when these messages of one key are committed in order and delivered by these indices.
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
    let keyless = Message::new(Topic::new("customers").unwrap(), "test.event");
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
    // The merge of two relays' streams: 0 1 | 0 1 2. Repeats behind newer ones are stale, and nothing is out of order.
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
    let keyless = || Message::new(Topic::new("orders").unwrap(), "test.event");
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
fn a_dead_letter_may_be_missing_and_may_join_again_at_the_end() {
    let (history, all) = delivered_as::<3>(&[1, 2]);
    history.dead_lettered(all[0].id);
    let report = history.check();
    assert_eq!((counts(&report), report.dead_lettered), ([0; 5], 1));
    let requeued = history.consumer("requeued");
    deliver(&history, requeued, &[&all[1], &all[2], &all[0]]);
    assert_eq!(counts(&history.check()), [0; 5]);
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

/// One message of a made-up history.
#[derive(Clone, Debug)]
struct Made {
    key: usize,
    transaction: usize,
}

#[derive(Clone, Debug)]
struct MadeHistory {
    messages: Vec<Made>,
    /// Of each transaction: when it began to append (each message one moment later), how long after that it ended, and its fate.
    transactions: Vec<(u64, u64, u8)>,
    dead: Vec<usize>,
    deliveries: Vec<usize>,
}

fn made_history() -> impl Strategy<Value = MadeHistory> {
    const TRANSACTIONS: usize = 6;
    let message = (0..3_usize, 0..TRANSACTIONS).prop_map(|(key, transaction)| Made { key, transaction });
    (
        proptest::collection::vec(message, 1..14),
        proptest::collection::vec((0..40_u64, 0..30_u64, 0..8_u8), TRANSACTIONS),
        proptest::collection::vec(0..14_usize, 0..2),
        proptest::collection::vec(0..14_usize, 0..30),
    )
        .prop_map(|(messages, transactions, dead, deliveries)| {
            let there = |index: &usize| *index < messages.len();
            let dead = dead.into_iter().filter(there).collect();
            let deliveries = deliveries.into_iter().filter(there).collect();
            MadeHistory { messages: messages.clone(), transactions, dead, deliveries }
        })
}

/// The definitions, word for word, comparing everything with everything.
fn oracle(made: &MadeHistory, began: &[u64]) -> [u64; 5] {
    let of = |at: usize| &made.messages[at];
    let fate = |at: usize| {
        let (began, lasted, fate) = made.transactions[of(at).transaction];
        match fate {
            0 => Fate::RolledBack,
            1 => Fate::Unknown,
            _ => Fate::Committed(Moment(began + 20 + lasted)),
        }
    };
    let dead = |at: usize| made.dead.contains(&at);
    let before = |a: usize, b: usize| {
        let apart = matches!(fate(a), Fate::Committed(returned) if returned.0 < began[b]);
        let together = of(a).transaction == of(b).transaction && a < b;
        of(a).key == of(b).key && !dead(a) && !dead(b) && (apart || together)
    };
    let mut found = [0; 5];
    for (turn, at) in made.deliveries.iter().enumerate() {
        let earlier: Vec<usize> = made.deliveries[..turn]
            .iter()
            .copied()
            .filter(|earlier| fate(*earlier) != Fate::RolledBack)
            .collect();
        let behind = earlier.iter().any(|newer| before(*at, *newer));
        if fate(*at) == Fate::RolledBack {
            found[1] += 1;
        } else if !earlier.contains(at) {
            found[2] += u64::from(behind);
        } else if behind {
            found[3] += 1;
        } else {
            found[4] += 1;
        }
    }
    for at in 0..made.messages.len() {
        let committed = matches!(fate(at), Fate::Committed(_));
        found[0] += u64::from(committed && !dead(at) && !made.deliveries.contains(&at));
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn the_checker_says_what_the_definitions_say(made in made_history()) {
        let history = History::new();
        let written: Vec<Message> =
            made.messages.iter().map(|made| message("orders", &made.key.to_string())).collect();
        let mut began = vec![0; written.len()];
        for (number, (start, lasted, fate)) in made.transactions.iter().enumerate() {
            let mut appended = Vec::new();
            for (at, message) in written.iter().enumerate().filter(|(at, _)| made.messages[*at].transaction == number) {
                began[at] = start + appended.len() as u64;
                appended.push((Moment(began[at]), message));
            }
            let fate = match fate {
                0 => Fate::RolledBack,
                1 => Fate::Unknown,
                _ => Fate::Committed(Moment(start + 20 + lasted)),
            };
            history.record(&appended, fate);
        }
        for at in &made.dead {
            history.dead_lettered(written[*at].id);
        }
        let consumer = history.consumer("c");
        for (turn, at) in made.deliveries.iter().enumerate() {
            let message = &written[*at];
            let at = Moment(1_000 + turn as u64);
            history.delivered_id(consumer, message.id, &message.topic, message.key.as_ref(), Some(at));
        }
        let report = history.check();
        prop_assert_eq!(counts(&report), oracle(&made, &began), "{}", report);
    }

    #[test]
    fn the_lean_checker_says_the_same(
        committed in proptest::collection::vec(0..8_u32, 2),
        deliveries in proptest::collection::vec((0..2_usize, 1..10_u32), 0..40),
    ) {
        let mut lean = KeySequences::new();
        let history = History::new();
        let keys = ["a", "b"];
        // Messages beyond the committed ones were never written: phantoms.
        let written: Vec<Vec<Message>> =
            keys.iter().map(|key| (1..10).map(|_| message("orders", key)).collect()).collect();
        for (key, up_to) in committed.iter().enumerate() {
            lean.committed(keys[key], *up_to);
            commit(&history, &written[key][..*up_to as usize]);
        }
        let consumer = history.consumer("c");
        let deliveries: Vec<_> = deliveries.into_iter().filter(|(key, number)| *number <= committed[*key]).collect();
        for (key, number) in &deliveries {
            lean.delivered(keys[*key], *number);
            history.delivered(consumer, &written[*key][*number as usize - 1]);
        }
        let report = history.check();
        let found =
            [lean.lost(), lean.phantom(), lean.out_of_order(), lean.stale_repeats(), lean.duplicated()];
        prop_assert_eq!(found, counts(&report), "{}", lean);
        prop_assert_eq!((lean.commits(), lean.deliveries()), (report.committed, report.deliveries));
        prop_assert_eq!(lean.is_exactly_once(), report.is_exactly_once());
    }
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
