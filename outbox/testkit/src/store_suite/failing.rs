//! Failing keys: every step of their state machine, and that order survives it (promises P3 and
//! P5).

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::admin::{FailingKey, Filter};
use outbox_contract::backend::{DueKey, FetchedRow, RowId, Step, Stored, Then, Transitioned};
use outbox_contract::{AdminExt, KeyId, Message, MessageId, Store};

use super::support::{
    LATER, NOW, Relay, bury_step, fail_step, failure, ids, in_key_order, message, messages, prepared,
    stored_ids, write,
};
use super::{Capability, StoreHarness, has};

/// A relay, and a key with this many hot messages.
async fn relay_with_key<H: StoreHarness>(
    harness: &H,
    count: usize,
) -> (Relay<H::Store>, KeyId, Vec<Arc<Stored>>) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let written = messages("orders", "a", count);
    let key = written[0].key_id();
    write(&*store, written).await;
    let stored = relay.read_key(&key).await;
    assert_eq!(stored.len(), count);
    (relay, key, stored)
}

async fn failing_keys<S: Store>(store: &S) -> Vec<FailingKey> {
    store.failing_keys(&Filter::all_routes()).await.expect("failing keys are listed")
}

async fn parked<S: Store>(store: &S) -> Vec<MessageId> {
    stored_ids(&store.parked(&Filter::all_routes()).await.expect("parked messages are listed"))
}

/// The one key that is due.
async fn the_due_key<S: Store>(relay: &Relay<S>) -> DueKey {
    let mut due = relay.due().await;
    assert_eq!(due.keys.len(), 1, "one key is due: {:?}", due.keys);
    due.keys.remove(0)
}

fn of<'s>(stored: impl IntoIterator<Item = &'s Arc<Stored>>) -> Vec<MessageId> {
    stored.into_iter().map(|stored| stored.message.id).collect()
}

fn rows(stored: &[Arc<Stored>]) -> Vec<RowId> {
    stored.iter().map(|stored| stored.row()).collect()
}

/// The failing message and those behind it leave the hot table, together and in order.
pub async fn a_failing_message_and_those_behind_it_are_parked_in_order<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 4).await;
    relay.fail(&stored[..3], LATER).await;

    assert_eq!(parked(&*relay.store).await, of(&stored[..3]));
    let hot = relay.fetch().await;
    assert!(matches!(&hot[..], [FetchedRow::Failing(row)] if row.at == stored[3].row()), "{hot:?}");
    let failing = failing_keys(&*relay.store).await;
    assert_eq!(failing.len(), 1);
    let failing = &failing[0];
    assert_eq!((&failing.route, &failing.key, failing.held), (&relay.route, &key, false));
    assert_eq!((failing.attempts, failing.parked, failing.first), (1, 3, Some(stored[0].message.id)));
    assert_eq!(failing.first_failure, Some(failure("first")));
    assert_eq!(failing.last_failure, Some(failure("last")));
    let next = failing.next_attempt_at.expect("a key that is not held is tried again");
    assert!(
        next.since(failing.since) > Duration::from_secs(3_000),
        "in an hour: {next} after {}",
        failing.since
    );
}

/// Parked messages equal the appended ones in every field, with their original position.
pub async fn parked_messages_come_back_byte_for_byte<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let odd =
        message("orders", "ключ 🗝️").with_payload(vec![0, 255, 10]).with_header("h", "ü").expect("valid");
    let empty = message("orders", "ключ 🗝️").with_payload(Vec::new());
    write(&*store, [odd.clone(), empty]).await;
    let stored = relay.read_key(&odd.key_id()).await;
    relay.fail(&stored, NOW).await;
    let due = the_due_key(&relay).await;
    assert_eq!(due.parked, stored);
    assert_eq!(store.parked(&Filter::all_routes()).await.expect("parked messages are listed"), stored);
}

/// A key is due at its due time and not before, by the database's clock.
pub async fn a_failing_key_is_due_when_its_time_has_come<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 2).await;
    relay.fail(&stored, Then::RetryAfter(Duration::from_secs(2))).await;
    let early = relay.due().await;
    assert!(early.keys.is_empty(), "not for two seconds");
    let next = early.next.expect("a key is due later");
    assert!(next > Duration::ZERO && next <= Duration::from_secs(2), "{next:?}");

    harness.advance(Duration::from_millis(2_100)).await;
    let due = the_due_key(&relay).await;
    assert_eq!((&due.key, due.bucket), (&key, key.bucket()));
    assert_eq!((due.failing, due.attempts), (Some(stored[0].message.id), 1));
    assert_eq!(due.first_failure, Some(failure("first")));
    assert_eq!(due.parked, stored);
}

/// The relay sets the number of attempts, so that a repeated or lost answer counts nothing twice.
pub async fn a_second_failure_sets_the_attempts<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 2).await;
    let version = relay.fail(&stored, NOW).await;
    let due = the_due_key(&relay).await;
    assert_eq!(due.version, version, "the version that the step returned");
    let again = relay.step(&key, Some(version), fail_step(&stored[..1], 5, NOW)).await;
    assert_ne!(again, Some(version), "every change makes the next version");

    let due = the_due_key(&relay).await;
    assert_eq!((Some(due.version), due.attempts), (again, 5));
    assert_eq!(due.failing, Some(stored[0].message.id));
    assert_eq!(of(&due.parked), of(&stored), "the message is parked once");
}

/// Messages that are appended while the key fails are parked behind the already parked ones.
pub async fn later_messages_are_parked_behind_the_earlier_ones<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 2).await;
    let version = relay.fail(&stored[..1], NOW).await;
    write(&*relay.store, messages("orders", "a", 2)).await;
    let behind: Vec<RowId> = waiting(&relay).await;
    assert_eq!(behind.len(), 3);
    assert_eq!(behind[0], stored[1].row());
    relay.step(&key, Some(version), Step::Park { rows: behind.clone() }).await.expect("the key is failing");
    assert!(relay.fetch().await.is_empty(), "all are parked");
    let due = the_due_key(&relay).await;
    let expected: Vec<RowId> = [stored[0].row()].into_iter().chain(behind).collect();
    assert_eq!(rows(&due.parked), expected);
}

/// The rows that a fetch flagged, in the key's order.
async fn waiting<S: Store>(relay: &Relay<S>) -> Vec<RowId> {
    let mut rows: Vec<_> = relay
        .fetch()
        .await
        .into_iter()
        .map(|row| match row {
            FetchedRow::Failing(waiting) => waiting,
            other => panic!("expected a row of a failing key, got {other:?}"),
        })
        .collect();
    rows.sort_by_key(|row| row.stripe.map_or(row.at.position.0, |stripe| stripe.number));
    rows.into_iter().map(|row| row.at).collect()
}

/// Missing rows (settled, or parked before) do not keep the others from being parked.
pub async fn parking_passes_over_rows_that_are_not_there<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 4).await;
    let version = relay.fail(&stored[..2], NOW).await;
    relay.settle(&stored[2..3]).await;
    let unknown = RowId { position: stored[3].position, id: MessageId::new() };
    let park = Step::Park { rows: vec![stored[1].row(), stored[2].row(), unknown, stored[3].row()] };
    relay.step(&key, Some(version), park).await.expect("the key is failing");
    assert_eq!(
        parked(&*relay.store).await,
        [stored[0].message.id, stored[1].message.id, stored[3].message.id]
    );
}

/// A relay whose answer was lost repeats its request: nothing happens twice.
pub async fn a_step_repeated_has_no_second_effect<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 3).await;
    let fail = relay.key_transition(&key, None, fail_step(&stored, 1, NOW));
    relay.transition(fail.clone()).await;
    relay.transition(fail).await;
    let due = the_due_key(&relay).await;
    assert_eq!((of(&due.parked), due.attempts), (of(&stored), 1));

    let resume = Step::Resume { delivered: rows(&stored[..2]) };
    let resume = relay.key_transition(&key, Some(due.version), resume);
    assert!(matches!(relay.transition(resume.clone()).await, Transitioned::Done(Some(_))));
    assert_eq!(relay.transition(resume).await, Transitioned::Stale, "the version has moved on");
    assert_eq!(parked(&*relay.store).await, of(&stored[2..]));
}

/// Delivered messages leave the key; the key is due at once with the rest, and flows when none is
/// left.
pub async fn a_key_resumes_in_part_and_then_flows<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 3).await;
    let version = relay.fail(&stored, NOW).await;
    let part = Step::Resume { delivered: rows(&stored[..2]) };
    let version = relay.step(&key, Some(version), part).await;
    let due = the_due_key(&relay).await;
    assert_eq!((Some(due.version), of(&due.parked)), (version, of(&stored[2..])));
    assert_eq!(due.failing, None, "the message that failed is no longer the first");
    assert_eq!(due.attempts, 0, "and its attempts are not the next one's");

    let rest = Step::Resume { delivered: rows(&stored[2..]) };
    assert_eq!(relay.step(&key, version, rest).await, None, "nothing is parked: the key has no state");
    assert!(relay.due().await.keys.is_empty());
    relay.assert_flows(&key).await;
    if has::<H>(Capability::History) {
        let past = relay.store.history(&Filter::all_routes()).await.expect("the history is listed");
        let past: Vec<_> = past.into_iter().map(|past| past.message.message.id).collect();
        assert!(
            past.starts_with(&of(&stored)),
            "what was delivered from the parked ones is history too: {past:?}"
        );
    }
}

/// A key that was to wait for an hour has delivered a part (an operator's release was under way):
/// the rest need not wait.
pub async fn a_key_that_resumes_in_part_is_due_at_once<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 2).await;
    let version = relay.fail(&stored, LATER).await;
    relay.step(&key, Some(version), Step::Resume { delivered: rows(&stored[..1]) }).await;
    assert_eq!(of(&the_due_key(&relay).await.parked), of(&stored[1..]));
}

/// While a message is parked, a newer one of its key is never returned as publishable.
pub async fn a_key_keeps_its_order_through_failure_and_recovery<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 2).await;
    let mut version = Some(relay.fail(&stored, NOW).await);
    let mut expected = of(&stored);
    let mut delivered = Vec::new();
    for round in 0..5 {
        let fresh: Vec<Message> = messages("orders", "a", 1 + round % 2);
        expected.extend(ids(&fresh));
        write(&*relay.store, fresh).await;
        let behind = waiting(&relay).await;
        relay.step(&key, version, Step::Park { rows: behind }).await.expect("the key is failing");
        let due = the_due_key(&relay).await;
        let first = &due.parked[0];
        delivered.push(first.message.id);
        version = relay.step(&key, Some(due.version), Step::Resume { delivered: vec![first.row()] }).await;
        assert!(version.is_some(), "more is parked than was delivered");
    }
    let rest = the_due_key(&relay).await.parked;
    delivered.extend(of(&rest));
    relay.step(&key, version, Step::Resume { delivered: rows(&rest) }).await;
    assert_eq!(delivered, expected);
    relay.assert_flows(&key).await;
}

/// A failing key delays no other key.
pub async fn other_keys_flow_past_a_failing_one<H: StoreHarness>(harness: &H) {
    let (relay, _, stored) = relay_with_key(harness, 2).await;
    relay.fail(&stored, LATER).await;
    let other = message("orders", "b");
    let other_topic = message("customers", "a");
    write(&*relay.store, [other.clone(), other_topic.clone()]).await;
    assert_eq!(stored_ids(&in_key_order(relay.read().await)).len(), 2, "neither is flagged");
    relay.assert_flows(&other.key_id()).await;
    relay.assert_flows(&other_topic.key_id()).await;
}

/// Under the hold policy no passage of time makes the key due; only an operator releases it.
pub async fn a_held_key_is_never_due<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 2).await;
    let version = relay.fail(&stored, NOW).await;
    relay
        .step(&key, Some(version), fail_step(&stored[..1], 12, Then::Hold))
        .await
        .expect("the key has a state");
    let due = relay.due().await;
    assert!(due.keys.is_empty() && due.next.is_none(), "{due:?}");
    let failing = failing_keys(&*relay.store).await;
    assert_eq!((failing[0].held, failing[0].attempts, failing[0].next_attempt_at), (true, 12, None));

    relay.store.release(&relay.route, &key).await.expect("a held key is released");
    let due = the_due_key(&relay).await;
    assert_eq!((of(&due.parked), due.attempts), (of(&stored), 0), "as it was, its attempts counted from 0");
}

/// The first failure may hold the key at once (a rejected message, under the hold policy).
pub async fn a_first_failure_may_hold_the_key<H: StoreHarness>(harness: &H) {
    let (relay, _, stored) = relay_with_key(harness, 2).await;
    relay.fail(&stored, Then::Hold).await;
    assert!(relay.due().await.keys.is_empty());
    assert!(failing_keys(&*relay.store).await[0].held);
    assert_eq!(parked(&*relay.store).await, of(&stored));
}

/// A message buried from the hot table becomes a dead letter with its story, and its key continues
/// as if it had never failed.
pub async fn a_hot_message_is_buried_and_its_key_flows<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 2).await;
    let state = relay.step(&key, None, bury_step(&stored[0], "rejected")).await;
    assert_eq!(state, None, "a key without a row gets none");
    assert_eq!(stored_ids(&relay.read_key(&key).await), of(&stored[1..]));

    let dead = relay.store.dead_letters(&Filter::all_routes()).await.expect("dead letters are listed");
    assert_eq!(dead.len(), 1);
    let dead = &dead[0];
    assert_eq!((&dead.route, &dead.stored), (&relay.route, &stored[0]), "as it was, in every field");
    assert_eq!((dead.reason.as_str(), dead.attempts), ("rejected", 3));
    assert_eq!(dead.first_failure, Some(failure("first")));
    assert_eq!(dead.last_failure, Some(failure("last")));
    assert!(dead.died_at >= stored[0].appended_at);
    relay.assert_flows(&key).await;
}

/// A parked message is buried: the next one is first, with attempts of its own, at once.
pub async fn a_parked_message_is_buried_and_the_next_is_due<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 3).await;
    let version = relay.fail(&stored, LATER).await;
    let state = relay.step(&key, Some(version), bury_step(&stored[0], "exhausted")).await;
    let due = the_due_key(&relay).await;
    assert_eq!((Some(due.version), of(&due.parked)), (state, of(&stored[1..])));
    assert_eq!((due.attempts, due.failing), (0, None));
    let dead = relay.store.dead_letters(&Filter::all_routes()).await.expect("dead letters are listed");
    assert_eq!((dead.len(), &dead[0].stored), (1, &stored[0]));
}

/// The last parked message is buried: the key flows.
pub async fn a_key_whose_last_parked_message_is_buried_flows<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 1).await;
    let version = relay.fail(&stored, LATER).await;
    relay.step(&key, Some(version), bury_step(&stored[0], "exhausted")).await;
    relay.assert_flows(&key).await;
}

/// No message is lost or duplicated between the tables: one that another relay already settled or
/// buried is no second dead letter.
pub async fn a_message_that_is_gone_is_neither_parked_nor_buried<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 2).await;
    relay.settle(&stored[..1]).await;
    let fail = relay.key_transition(&key, None, fail_step(&stored, 1, NOW));
    assert_eq!(relay.transition(fail).await, Transitioned::Stale, "with another one behind it");
    let bury = relay.key_transition(&key, None, bury_step(&stored[0], "rejected"));
    assert_eq!(relay.transition(bury).await, Transitioned::Stale);
    assert!(parked(&*relay.store).await.is_empty());
    assert!(relay.store.dead_letters(&Filter::all_routes()).await.expect("listed").is_empty());
    assert_eq!(stored_ids(&relay.read_key(&key).await), of(&stored[1..]), "and the key flows on");
}

/// A relay with a wrong state can't park a message without a failing key, where no relay would find
/// it.
pub async fn parking_without_a_failing_key_strands_nothing<H: StoreHarness>(harness: &H) {
    let (relay, key, stored) = relay_with_key(harness, 2).await;
    let park = relay.key_transition(&key, None, Step::Park { rows: rows(&stored) });
    relay.transition(park).await;
    if failing_keys(&*relay.store).await.is_empty() {
        assert_eq!(
            stored_ids(&relay.read_key(&key).await),
            of(&stored),
            "the key flows, so all of it is hot"
        );
    } else {
        assert_eq!(of(&the_due_key(&relay).await.parked), of(&stored), "the key has a state, so it is due");
    }
}

/// Many keys in one call get one answer each, in order, the refused ones included.
pub async fn many_steps_in_one_call_are_answered_one_by_one<H: StoreHarness>(harness: &H) {
    const KEYS: usize = 200;
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let written: Vec<Message> = (0..KEYS).map(|at| message("orders", &format!("key-{at}"))).collect();
    write(&*store, written).await;
    let stored = relay.read().await;
    let steps: Vec<_> = stored
        .iter()
        .enumerate()
        .map(|(at, stored)| {
            let version = (at % 10 == 3).then_some(-77);
            relay.key_transition(
                &stored.message.key_id(),
                version,
                fail_step(std::slice::from_ref(stored), 1, NOW),
            )
        })
        .collect();
    let answers = store.transition(&steps).await.expect("transitions are answered");
    assert_eq!(answers.len(), KEYS);
    for (at, answer) in answers.iter().enumerate() {
        match answer {
            Transitioned::Done(Some(_)) if at % 10 != 3 => {}
            Transitioned::Stale if at % 10 == 3 => {}
            other => panic!("step {at} was answered {other:?}"),
        }
    }
    assert_eq!(parked(&*store).await.len(), KEYS - KEYS / 10);
    assert!(store.transition(&[]).await.expect("no step is no error").is_empty());
}
