//! Stores that order by stripes: the meaning of their marks, and a reader's conclusions from them.
//! Other stores have no marks, and pass.
//!
//! A reader that finds a mark moved reads again from below the rows committed since, and counts no
//! row above the mark that it asked for first. So a mark that is ahead of the rows, or behind a
//! later position, loses messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::backend::{BucketSet, Ordering, Position, Stored, Stripe, StripeId, StripeMark};
use outbox_contract::{AdminExt, Message, Outgoing, Route, Store, Timestamp, Transactional};

use super::StoreHarness;
use super::support::{
    LONG, Relay, back_off, bury_step, message, messages, prepared, route, stored_ids, write,
};

/// A store without stripes has neither marks nor numbers; in a store with stripes every row has its
/// number, in the stripe of its key.
pub async fn only_stores_with_stripes_have_marks<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    assert_eq!(marks(&store, &Route::default()).await, BTreeMap::new(), "nothing was ever committed");
    let keyless = Message::new(super::support::topic("orders"), "suite.event").expect("a valid topic");
    write(&*store, [message("orders", "a"), keyless]).await;
    let has_stripes = store.frontier().ordering() == Ordering::Stripes;
    for stored in relay.read().await {
        let key = stored.message.key_id();
        let expected = StripeId::of(key.topic.as_str(), key.key.as_str());
        let number = stored.stripe.map(|stripe| (stripe.stripe, stripe.number));
        assert_eq!(number, has_stripes.then_some((expected, 1)), "{key}");
    }
    assert_eq!(marks(&store, &Route::default()).await.len(), if has_stripes { 2 } else { 0 });
}

/// Whichever key of a stripe is written, and whatever is rolled back: the next number is the last
/// one plus 1, and the next position is higher.
pub async fn numbers_of_a_stripe_have_no_gaps<H: StoreHarness>(harness: &H) {
    let Some(store) = with_stripes(harness).await else { return };
    let relay = Relay::start(&store).await;
    let (one, other) = keys_of_one_stripe();
    for turn in 0..4 {
        write(&*store, messages("orders", &one, 1 + turn % 2)).await;
        write(&*store, messages("orders", &other, 2)).await;
        let mut tx = store.begin().await.expect("a transaction begins");
        let lost = [Outgoing::from(message("orders", &one)), message("orders", &other).into()];
        store.append(&mut tx, &lost).await.expect("valid messages are appended");
        store.rollback(tx).await.expect("the transaction is rolled back");
    }
    let rows = by_stripe(&relay.read().await);
    assert_eq!(rows.len(), 1, "both keys are in one stripe");
    assert_gapless(&rows);
    // A settled row frees neither its number nor its position.
    let read = relay.read().await;
    relay.settle(&read).await;
    write(&*store, [message("orders", &other)]).await;
    let after = relay.read().await;
    let numbers = |stored: &Stored| stored.stripe.map(|stripe| stripe.number);
    assert_eq!(numbers(&after[0]), Some(i64::try_from(read.len()).unwrap_or_default() + 1));
    let highest = read.iter().map(|stored| stored.position).max();
    assert!(Some(after[0].position) > highest, "{} after {highest:?}", after[0].position);
}

/// The mark of a stripe is its last row, and the begin of that row's append; it stays when the row
/// is gone.
pub async fn a_mark_tells_the_last_append<H: StoreHarness>(harness: &H) {
    let Some(store) = with_stripes(harness).await else { return };
    let relay = Relay::start(&store).await;
    let (one, other) = keys_of_one_stripe();
    write(&*store, messages("orders", &one, 2)).await;
    // Of several appends of a transaction it is the last one.
    let mut tx = store.begin().await.expect("a transaction begins");
    for (key, count) in [(&other, 3), (&one, 2)] {
        let part: Vec<Outgoing> = messages("orders", key, count).into_iter().map(Outgoing::from).collect();
        store.append(&mut tx, &part).await.expect("valid messages are appended");
    }
    store.commit(tx).await.into_result().expect("the transaction commits");
    let rows = by_stripe(&relay.read().await);
    let (stripe, rows) = rows.first_key_value().expect("one stripe has rows");
    let expected = StripeMark {
        last: Stripe { stripe: *stripe, number: 7 },
        position: rows[&7].position,
        first_number: 6,
        first_position: rows[&6].position,
        previous_position: rows[&5].position,
    };
    assert_eq!(marks(&store, &Route::default()).await[stripe], expected);

    relay.settle(&relay.read().await).await;
    assert_eq!(marks(&store, &Route::default()).await[stripe], expected, "though its row is gone");
    write(&*store, [message("orders", &other)]).await;
    let mark = marks(&store, &Route::default()).await[stripe];
    assert_eq!((mark.last.number, mark.first_number), (8, 8));
    assert_eq!(mark.position, mark.first_position, "one row was appended");
    assert_eq!(mark.previous_position, expected.position, "where the mark was before");
    assert!(mark.position > expected.position);
}

/// An open transaction moves no mark, and a rolled back one never does.
pub async fn a_mark_moves_with_the_commit_and_not_before<H: StoreHarness>(harness: &H) {
    let Some(store) = with_stripes(harness).await else { return };
    write(&*store, [message("orders", "a")]).await;
    let before = marks(&store, &Route::default()).await;
    for commits in [false, true] {
        let mut tx = store.begin().await.expect("a transaction begins");
        store.append(&mut tx, &[message("orders", "a").into()]).await.expect("a valid message is appended");
        assert_eq!(marks(&store, &Route::default()).await, before, "nothing is committed yet");
        if commits {
            store.commit(tx).await.into_result().expect("the transaction commits");
            let after = marks(&store, &Route::default()).await;
            assert_eq!(after.values().map(|mark| mark.last.number).collect::<Vec<_>>(), [2]);
        } else {
            store.rollback(tx).await.expect("the transaction is rolled back");
            assert_eq!(marks(&store, &Route::default()).await, before, "it was rolled back");
        }
    }
}

/// Each route has numbers of its own, and the marks of the requested buckets.
pub async fn marks_are_of_a_route_and_the_buckets_asked_for<H: StoreHarness>(harness: &H) {
    let Some(store) = with_stripes(harness).await else { return };
    let (here, there) = (Route::default(), route("audit"));
    let written: Vec<Message> = (0..20).map(|at| message("orders", &format!("key-{at}"))).collect();
    write(&*store, written.iter().cloned()).await;
    let audited = written.iter().take(3).map(|message| Outgoing::from(message.clone()).by(there.clone()));
    write(&*store, audited).await;
    let audited = Relay::on(&store, there.clone(), LONG).await;
    assert_gapless(&by_stripe(&audited.read().await));
    assert_eq!(marks(&store, &there).await.len(), by_stripe(&audited.read().await).len());

    let all = marks(&store, &here).await;
    let of_one: BucketSet = [written[0].bucket()].into_iter().collect();
    let some = store.frontier().stripes(&here, &of_one).await.expect("marks are told");
    let expected = all.values().filter(|mark| of_one.contains(mark.last.stripe.bucket()));
    assert_eq!(some, expected.copied().collect::<Vec<_>>(), "in the order of stripes, and no others");
    assert_eq!(store.frontier().stripes(&here, &BucketSet::EMPTY).await.expect("marks are told"), []);
}

/// Requeued, replayed and scheduled messages are appended like any others.
pub async fn what_admin_operations_append_has_numbers_too<H: StoreHarness>(harness: &H) {
    let Some(store) = with_stripes(harness).await else { return };
    let relay = Relay::start(&store).await;
    write(&*store, messages("orders", "a", 2)).await;
    let read = relay.read().await;
    for stored in &read {
        relay.step(&stored.message.key_id(), None, bury_step(stored, "rejected")).await;
    }
    let due = Outgoing::from(message("orders", "a")).due_at(Timestamp::from_micros(1));
    write(&*store, [due]).await;
    store.maintain(100).await.expect("what is due is moved");
    assert_eq!(store.requeue(&Filter::all_routes()).await.expect("dead letters are requeued"), 2);

    let rows = by_stripe(&relay.read().await);
    let numbers: Vec<i64> = rows.values().flat_map(|rows| rows.keys().copied()).collect();
    assert_eq!(numbers, [3, 4, 5]);
    let mark = marks(&store, &Route::default()).await.into_values().next().expect("one stripe");
    let last = rows.values().next().and_then(|rows| rows.get(&5)).expect("the last row");
    assert_eq!((mark.last.number, mark.position), (5, last.position));
}

/// A reader that asks for marks and then fetches sees every row up to them, at ascending positions,
/// whatever is written meanwhile. Marks that it asks for afterwards cover every row that it saw.
pub async fn every_row_up_to_a_mark_can_be_fetched<H: StoreHarness>(harness: &H) {
    const WRITERS: usize = 4;
    const TRANSACTIONS: usize = 15;
    let Some(store) = with_stripes(harness).await else { return };
    let other_process = harness.as_another_process().await;
    let relay = Relay::start(&store).await;
    let (one, other) = keys_of_one_stripe();
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(if writer % 2 == 0 { &store } else { &other_process });
            let keys = [one.clone(), other.clone(), format!("key-{writer}")];
            tokio::spawn(async move {
                for turn in 0..TRANSACTIONS {
                    write(&*store, messages("orders", &keys[(writer + turn) % 3], 1 + turn % 3)).await;
                }
            })
        })
        .collect();
    let mut last = BTreeMap::new();
    loop {
        // Read before the request: it must return everything committed by now.
        let over = writers.iter().all(tokio::task::JoinHandle::is_finished);
        let marks = marks(&store, &Route::default()).await;
        let rows = by_stripe(&relay.read().await);
        assert_gapless(&rows);
        for (stripe, mark) in &marks {
            let number = mark.last.number;
            let shown = rows.get(stripe).and_then(|rows| rows.get(&number));
            let shown = shown.unwrap_or_else(|| panic!("row {number} of {stripe:?} is not there: {mark:?}"));
            assert_eq!(shown.position, mark.position);
            assert_eq!(rows[stripe][&mark.first_number].position, mark.first_position);
            assert!(last.get(stripe).is_none_or(|before| *before <= number), "a mark went back: {mark:?}");
        }
        let later = self::marks(&store, &Route::default()).await;
        for (stripe, rows) in &rows {
            let (highest, mark) = (rows.keys().next_back(), later.get(stripe).map(|mark| mark.last.number));
            assert!(highest <= mark.as_ref(), "{stripe:?} shows {highest:?}, and its mark is {mark:?}");
        }
        last = marks.iter().map(|(stripe, mark)| (*stripe, mark.last.number)).collect();
        if over {
            let all: i64 = rows.values().map(|rows| i64::try_from(rows.len()).unwrap_or_default()).sum();
            assert_eq!(last.values().sum::<i64>(), all, "without writers the marks are complete");
            break;
        }
        back_off().await;
    }
    for writer in writers {
        writer.await.expect("a writer finishes");
    }
}

/// A stripe that waits for a slow writer is behind others, and its later commit is found from its
/// mark.
pub async fn a_late_commit_is_found_by_its_mark<H: StoreHarness>(harness: &H) {
    let Some(store) = with_stripes(harness).await else { return };
    let relay = Relay::start(&store).await;
    let slow = message("slow", "a");
    let mut tx = store.begin().await.expect("a transaction begins");
    store.append(&mut tx, &[slow.clone().into()]).await.expect("a valid message is appended");
    // So that a position that follows a clock is another one.
    harness.advance(Duration::from_millis(20)).await;
    let stripe_of = |message: &Message| StripeId::of(message.topic.as_str(), message.order_key().as_str());
    let quick = (0..).map(|at| message("quick", &format!("b-{at}")));
    let quick = quick.into_iter().find(|quick| stripe_of(quick) != stripe_of(&slow));
    write(&*store, quick).await;
    let before = marks(&store, &Route::default()).await;
    assert!(!before.contains_key(&stripe_of(&slow)), "it is not committed yet");
    store.commit(tx).await.into_result().expect("the transaction commits");

    let mark = marks(&store, &Route::default()).await[&stripe_of(&slow)];
    let mut request = relay.fetch_request();
    request.after = mark.first_position.before();
    let rows = relay.fetch_with(&request).await.rows;
    let read: Vec<Arc<Stored>> = rows.into_iter().map(super::support::published).collect();
    assert!(stored_ids(&read).contains(&slow.id), "it stands at {}, or above", mark.first_position);
}

/// Returns the store, if it has stripes.
async fn with_stripes<H: StoreHarness>(harness: &H) -> Option<Arc<H::Store>> {
    let store = prepared(harness).await;
    (store.frontier().ordering() == Ordering::Stripes).then_some(store)
}

async fn marks<S: Store>(store: &Arc<S>, route: &Route) -> BTreeMap<StripeId, StripeMark> {
    let marks = store.frontier().stripes(route, &BucketSet::ALL).await.expect("marks are told");
    let stripes: Vec<StripeId> = marks.iter().map(|mark| mark.last.stripe).collect();
    assert!(stripes.is_sorted_by(|one, next| one < next), "by stripe, each once: {stripes:?}");
    marks.into_iter().map(|mark| (mark.last.stripe, mark)).collect()
}

/// Groups rows by stripe and number.
fn by_stripe(rows: &[Arc<Stored>]) -> BTreeMap<StripeId, BTreeMap<i64, Arc<Stored>>> {
    let mut stripes: BTreeMap<StripeId, BTreeMap<i64, Arc<Stored>>> = BTreeMap::new();
    for row in rows {
        let at = row.stripe.expect("a row has its number where there are stripes");
        let taken = stripes.entry(at.stripe).or_default().insert(at.number, Arc::clone(row));
        assert!(taken.is_none(), "number {} of {:?} was given out twice", at.number, at.stripe);
    }
    stripes
}

/// Asserts that numbers start at 1 without gaps, at ascending positions.
fn assert_gapless(stripes: &BTreeMap<StripeId, BTreeMap<i64, Arc<Stored>>>) {
    for (stripe, rows) in stripes {
        assert!(
            rows.keys().copied().eq(1..=*rows.keys().last().unwrap_or(&0)),
            "{stripe:?}: {:?}",
            rows.keys()
        );
        let positions: Vec<Position> = rows.values().map(|row| row.position).collect();
        assert!(positions.is_sorted_by(|one, next| one < next), "{stripe:?}: {positions:?}");
    }
}

/// Two keys of the topic `orders` that share a stripe.
fn keys_of_one_stripe() -> (String, String) {
    let mut seen: BTreeMap<StripeId, String> = BTreeMap::new();
    for at in 0.. {
        let key = format!("shared-{at}");
        if let Some(other) = seen.insert(StripeId::of("orders", &key), key.clone()) {
            return (other, key);
        }
    }
    unreachable!("there are more keys than stripes")
}
