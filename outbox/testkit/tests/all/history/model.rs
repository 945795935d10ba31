//! Made-up histories, and an oracle that compares everything in them with everything.

use outbox_contract::Message;
use outbox_testkit::history::{Fate, History, KeySequences, Moment};
use proptest::prelude::*;

use super::{commit, counts, message};

/// One message of a made-up history.
#[derive(Clone, Debug)]
struct Made {
    key: usize,
    transaction: usize,
}

#[derive(Clone, Debug)]
struct MadeHistory {
    messages: Vec<Made>,
    /// Of each transaction: when it began to append (each message one moment later), how long after
    /// that it was committing and then ended, and its fate.
    transactions: Vec<(u64, u64, u8)>,
    /// Dead letters, each with its time.
    dead: Vec<(usize, u64)>,
    /// Requeued messages, each with its time.
    requeued: Vec<(usize, u64)>,
    deliveries: Vec<usize>,
}

/// When a transaction was committing, from its first append on.
const COMMITTING: u64 = 17;
/// When the first delivery comes; each of the others comes this much later than the one before.
/// Some come before their commits.
const FIRST: u64 = 30;
const STEP: u64 = 3;

fn made_history() -> impl Strategy<Value = MadeHistory> {
    const TRANSACTIONS: usize = 6;
    let message = (0..3_usize, 0..TRANSACTIONS).prop_map(|(key, transaction)| Made { key, transaction });
    (
        proptest::collection::vec(message, 1..14),
        proptest::collection::vec((0..40_u64, 0..30_u64, 0..8_u8), TRANSACTIONS),
        proptest::collection::vec((0..14_usize, 0..130_u64), 0..3),
        proptest::collection::vec((0..14_usize, 0..130_u64), 0..3),
        proptest::collection::vec(0..14_usize, 0..30),
    )
        .prop_map(|(messages, transactions, dead, requeued, deliveries)| {
            let there = |index: usize| index < messages.len();
            let dead = dead.into_iter().filter(|(at, _)| there(*at)).collect();
            let requeued = requeued.into_iter().filter(|(at, _)| there(*at)).collect();
            let deliveries = deliveries.into_iter().filter(|at| there(*at)).collect();
            MadeHistory { messages: messages.clone(), transactions, dead, requeued, deliveries }
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
    let committing = |at: usize| made.transactions[of(at).transaction].0 + COMMITTING;
    let came_at = |turn: usize| FIRST + STEP * turn as u64;
    // It lived before this moment; for ever, if it never died.
    let died = |at: usize| made.dead.iter().filter(|(dead, _)| *dead == at).map(|(_, when)| *when).min();
    let lived_at = |at: usize, when: u64| died(at).is_none_or(|died| when < died);
    let before = |a: usize, b: usize| {
        let apart = matches!(fate(a), Fate::Committed(returned) if returned.0 < began[b]);
        let together = of(a).transaction == of(b).transaction && a < b;
        of(a).key == of(b).key && (apart || together)
    };
    // The real deliveries, with their times: the others are phantoms.
    let real = |turn: usize| {
        let at = made.deliveries[turn];
        fate(at) != Fate::RolledBack && committing(at) < came_at(turn)
    };
    let came: Vec<(usize, u64)> = (0..made.deliveries.len())
        .filter(|turn| real(*turn))
        .map(|turn| (made.deliveries[turn], came_at(turn)))
        .collect();
    let mut found = [0; 5];
    found[1] += (made.deliveries.len() - came.len()) as u64;
    found[1] += made.dead.iter().filter(|(at, _)| fate(*at) == Fate::RolledBack).count() as u64;
    for (place, (at, when)) in came.iter().enumerate() {
        let earlier = &came[..place];
        let behind = lived_at(*at, *when) && earlier.iter().any(|(newer, _)| before(*at, *newer));
        if !earlier.iter().any(|(other, _)| other == at) {
            found[2] += u64::from(behind);
        } else if behind {
            found[3] += 1;
        } else {
            found[4] += 1;
        }
    }
    for at in 0..made.messages.len() {
        if fate(at) == Fate::RolledBack {
            continue;
        }
        let of_it = || came.iter().filter(|(came, _)| *came == at).map(|(_, when)| *when);
        // It died without having come, and something came while it lived that it is before.
        if let Some(died) = died(at) {
            let overtaken = came.iter().any(|(newer, when)| *when < died && before(at, *newer));
            found[2] += u64::from(overtaken && of_it().all(|when| when >= died));
        }
        let debts = made.requeued.iter().filter(|(requeued, when)| {
            *requeued == at && !made.dead.iter().any(|(dead, again)| *dead == at && again >= when)
        });
        let debts: Vec<u64> = debts.map(|(_, when)| *when).collect();
        let owed_at_first = matches!(fate(at), Fate::Committed(_)) && died(at).is_none();
        let lost = debts.iter().any(|debt| of_it().all(|when| when < *debt));
        found[0] += u64::from(lost || (owed_at_first && of_it().next().is_none()));
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
            history.record(&appended, Some(Moment(start + COMMITTING)), fate);
        }
        for (at, when) in &made.dead {
            history.dead_lettered(&written[*at], Moment(*when));
        }
        for (at, when) in &made.requeued {
            history.requeued(written[*at].id, Moment(*when));
        }
        let consumer = history.consumer("c");
        for (turn, at) in made.deliveries.iter().enumerate() {
            let message = &written[*at];
            let at = Moment(FIRST + STEP * turn as u64);
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
