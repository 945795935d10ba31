//! Promise P7: a relay that lost its lease, or that works from an old state of a key, changes
//! nothing.

use std::sync::Arc;

use outbox_contract::admin::Filter;
use outbox_contract::backend::{
    BucketSet, Committed, Dedup, Epoch, KeyTransition, RelayId, Step, Stored, Then, Transitioned,
};
use outbox_contract::{
    Admin, AdminExt, Consumer, KeyId, MessageId, Outgoing, Route, Store, Transactional, inbox_route,
};

use super::support::{
    LATER, LONG, NOW, OVER, Relay, SHORT, bury_step, carry_out, fail_step, message, messages, prepared,
    stored_ids, write,
};
use super::{Capability, StoreHarness, has};

/// Everything that a transition could change.
#[derive(Debug, PartialEq)]
struct Everything {
    failing: Vec<outbox_contract::admin::FailingKey>,
    parked: Vec<Arc<Stored>>,
    dead: Vec<MessageId>,
    hot: Vec<MessageId>,
    pending: u64,
}

async fn everything<S: Store>(relay: &Relay<S>) -> Everything {
    let all = Filter::all_routes();
    let hot = relay.fetch().await.into_iter();
    let backlog = relay.store.backlog(&relay.route).await.expect("the backlog is counted");
    Everything {
        failing: relay.store.failing_keys(&all).await.expect("failing keys are listed"),
        parked: relay.store.parked(&all).await.expect("parked messages are listed"),
        dead: relay
            .store
            .dead_letters(&all)
            .await
            .expect("dead letters are listed")
            .into_iter()
            .map(|dead| dead.stored.message.id)
            .collect(),
        hot: hot
            .map(|row| match row {
                outbox_contract::backend::FetchedRow::Message(stored) => stored.message.id,
                outbox_contract::backend::FetchedRow::Failing(row) => row.at.id,
                other => panic!("unexpected row {other:?}"),
            })
            .collect(),
        pending: backlog.pending,
    }
}

/// Every possible step, for a hot message and for a failing key.
fn every_step(hot: &[Arc<Stored>], parked: &[Arc<Stored>]) -> Vec<Step> {
    vec![
        fail_step(hot, 1, NOW),
        fail_step(parked, 2, NOW),
        Step::Park { rows: vec![hot[0].row()] },
        bury_step(&hot[0], "rejected"),
        bury_step(&parked[0], "exhausted"),
        Step::Resume { delivered: vec![parked[0].row()] },
    ]
}

/// Creates a key with two parked messages and two hot ones; returns its version.
async fn failing_key<S: outbox_contract::Transactional>(
    relay: &Relay<S>,
    then: Then,
) -> (KeyId, i64, Vec<Arc<Stored>>, Vec<Arc<Stored>>) {
    let written = messages("orders", "a", 4);
    let key = written[0].key_id();
    write(&*relay.store, written).await;
    let stored = relay.read_key(&key).await;
    let version = relay.fail(&stored[..2], then).await;
    (key, version, stored[..2].to_vec(), stored[2..].to_vec())
}

/// Asserts that each of these transitions is refused with this refusal, and that nothing visible to
/// `observer` has changed.
async fn assert_refused<S: Store>(
    observer: &Relay<S>,
    transitions: Vec<KeyTransition>,
    refusal: Transitioned,
) {
    let before = everything(observer).await;
    for transition in transitions {
        let told = format!("{transition:?}");
        assert_eq!(carry_out(&*observer.store, transition).await, refusal, "{told}");
    }
    assert_eq!(everything(observer).await, before, "a refused step changes nothing");
}

fn transitions<S: Store>(
    relay: &Relay<S>,
    key: &KeyId,
    version: Option<i64>,
    steps: Vec<Step>,
) -> Vec<KeyTransition> {
    steps.into_iter().map(|step| relay.key_transition(key, version, step)).collect()
}

/// Every step of the key, from its present state and from none.
fn all_transitions<S: Store>(
    relay: &Relay<S>,
    key: &KeyId,
    version: i64,
    hot: &[Arc<Stored>],
    parked: &[Arc<Stored>],
) -> Vec<KeyTransition> {
    let from = |version| transitions(relay, key, version, every_step(hot, parked));
    [from(Some(version)), from(None)].concat()
}

/// Asserts that this relay no longer receives anything of a key, and can't change anything of it.
async fn assert_lost<S: Store>(relay: &Relay<S>, key: &KeyId, late: Vec<KeyTransition>) {
    let due = relay.due().await.keys;
    assert!(due.iter().all(|due| due.key != *key), "a key of a lease that is over is not due: {due:?}");
    for transition in late {
        let told = format!("{transition:?}");
        assert_eq!(relay.transition(transition).await, Transitioned::LeaseLost, "{told}");
    }
}

async fn unowned<S: Store>(relay: &Relay<S>) -> u64 {
    relay.store.backlog(&relay.route).await.expect("the backlog is counted").unowned_buckets
}

/// The lease expired and has no new owner: every step is still refused.
pub async fn an_expired_lease_is_refused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut slept = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&slept, NOW).await;
    let before = everything(&slept).await;
    let late = all_transitions(&slept, &key, version, &hot, &parked);
    // From here on, so that a slow machine has time for the steps before.
    slept.shorten().await;
    harness.advance(OVER).await;
    assert_lost(&slept, &key, late).await;
    assert!(slept.fetch().await.is_empty(), "nothing is given to whom nothing belongs");
    assert_eq!(unowned(&slept).await, 1);
    let next = Relay::start(&store).await;
    assert_eq!(everything(&next).await, before, "a refused step changes nothing");
    assert_eq!(unowned(&next).await, 0);
}

/// A bucket that is being given up belongs to its relay as long as was promised before, and no
/// longer, however long the relay itself continues.
pub async fn a_bucket_that_is_given_up_is_owned_no_longer_than_was_promised<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut relay = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&relay, NOW).await;
    let other = message("orders", "b");
    assert_ne!(other.bucket(), key.bucket(), "else the test shows nothing");
    write(&*store, [other.clone()]).await;
    let before = everything(&relay).await;
    let late = all_transitions(&relay, &key, version, &hot, &parked);
    assert_eq!(relay.due().await.keys.len(), 1);
    assert_eq!(unowned(&relay).await, 0);

    relay.shorten().await;
    let mut request = relay.lease_request();
    (request.lasts, request.yielding) = (LONG, BucketSet::from_iter([key.bucket()]));
    relay.beat_with(&request).await;
    harness.advance(OVER).await;
    assert_lost(&relay, &key, late).await;
    let read = stored_ids(&relay.read().await);
    assert_eq!(read, [other.id], "what it does not give up is its own");
    assert_eq!(unowned(&relay).await, 1);

    let next = Relay::start(&store).await;
    assert_eq!(next.owned(), BucketSet::from_iter([key.bucket()]), "that bucket is free, and no other");
    assert_eq!(unowned(&next).await, 0);
    let now = everything(&next).await;
    assert_eq!((now.failing, now.parked, now.dead), (before.failing, before.parked, before.dead));
    assert_eq!(now.hot, stored_ids(&hot), "a refused step changes nothing");
}

/// After a failover to a server whose clock is behind, leases end much later than requested. They
/// count as expired: otherwise their buckets would belong to relays that may be long gone.
pub async fn a_lease_that_ends_implausibly_late_is_none<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::ClockBack) {
        return;
    }
    let store = prepared(harness).await;
    let mut relay = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&relay, NOW).await;
    let before = everything(&relay).await;
    let late = all_transitions(&relay, &key, version, &hot, &parked);
    // More than twice as long as the lease lasts.
    harness.set_clock_back(LONG * 6).await;
    assert_lost(&relay, &key, late).await;
    assert!(relay.fetch().await.is_empty(), "nothing is given to whom nothing belongs");
    assert_eq!(unowned(&relay).await, 1);

    let next = Relay::start(&store).await;
    assert_eq!(next.owned(), BucketSet::ALL, "every bucket is free");
    assert_eq!(everything(&next).await.hot, before.hot, "a refused step changes nothing");
    assert_eq!(unowned(&next).await, 0);
    assert!(relay.beat().await.leases.is_empty(), "what it had is lost");
}

/// Another relay took over: every step of the first is refused.
pub async fn a_relay_that_was_replaced_can_transition_nothing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let slept = Relay::on(&store, Default::default(), SHORT).await;
    harness.advance(OVER).await;
    let next = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&next, LATER).await;
    let late = transitions(&slept, &key, Some(version), every_step(&hot, &parked));
    assert_refused(&next, late, Transitioned::LeaseLost).await;
    let late = transitions(&slept, &key, None, every_step(&hot, &parked));
    assert_refused(&next, late, Transitioned::LeaseLost).await;
}

/// Steps under an earlier or a later epoch are refused: only the exact lease is valid.
pub async fn another_epoch_is_refused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&relay, LATER).await;
    for difference in [-1, 1] {
        let mut wrong = transitions(&relay, &key, Some(version), every_step(&hot, &parked));
        for transition in &mut wrong {
            transition.epoch = Epoch(transition.epoch.0 + difference);
        }
        assert_refused(&relay, wrong, Transitioned::LeaseLost).await;
    }
}

/// A relay that never owned the bucket is refused, even with its owner's epoch.
pub async fn another_relay_is_refused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&relay, LATER).await;
    let mut foreign = transitions(&relay, &key, Some(version), every_step(&hot, &parked));
    for transition in &mut foreign {
        transition.relay = RelayId::new();
    }
    assert_refused(&relay, foreign, Transitioned::LeaseLost).await;
}

/// A lease that was given back is no longer valid.
pub async fn a_released_lease_is_refused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&relay, LATER).await;
    let late = transitions(&relay, &key, Some(version), every_step(&hot, &parked));
    relay.leave().await;
    let next = Relay::start(&store).await;
    assert_refused(&next, late, Transitioned::LeaseLost).await;
}

/// A step that starts from another state than the key's present one is refused.
pub async fn an_old_version_of_a_key_is_refused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, old, parked, hot) = failing_key(&relay, LATER).await;
    let new = relay.step(&key, Some(old), fail_step(&parked[..1], 2, LATER)).await;
    assert_ne!(new, Some(old));
    let late = transitions(&relay, &key, Some(old), every_step(&hot, &parked));
    assert_refused(&relay, late, Transitioned::Stale).await;
}

/// A step that starts from a state is refused for a key that has none.
pub async fn a_version_of_a_key_that_flows_is_refused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let written = messages("orders", "a", 2);
    let key = written[0].key_id();
    write(&*store, written).await;
    let stored = relay.read_key(&key).await;
    let steps = every_step(&stored[1..], &stored[..1]);
    assert_refused(&relay, transitions(&relay, &key, Some(1), steps), Transitioned::Stale).await;
}

/// Every admin operation on a key makes its next version: a relay that works from the one before is
/// refused.
pub async fn a_relay_is_refused_after_an_operator_changed_its_key<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&relay, LATER).await;
    let steps = || every_step(&hot, &parked);

    store.hold(&relay.route, &key).await.expect("a failing key is held");
    assert_refused(&relay, transitions(&relay, &key, Some(version), steps()), Transitioned::Stale).await;

    store.release(&relay.route, &key).await.expect("a held key is released");
    let released = relay.due().await.keys[0].version;
    assert_ne!(released, version);
    store.release(&relay.route, &key).await.expect("a failing key is released");
    assert_refused(&relay, transitions(&relay, &key, Some(released), steps()), Transitioned::Stale).await;

    let before_skip = relay.due().await.keys[0].version;
    store.skip(&relay.route, &key).await.expect("a failing key's first message is skipped");
    assert_refused(&relay, transitions(&relay, &key, Some(before_skip), steps()), Transitioned::Stale).await;

    let before_discard = relay.due().await.keys[0].version;
    store.discard(&relay.route, &key).await.expect("a failing key's messages are discarded");
    assert_refused(&relay, transitions(&relay, &key, Some(before_discard), steps()), Transitioned::Stale)
        .await;
}

/// A key that failed, flowed and failed again does not return to an earlier version.
pub async fn a_version_does_not_come_back<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let written = messages("orders", "a", 2);
    let key = written[0].key_id();
    write(&*store, written).await;
    let stored = relay.read_key(&key).await;
    let first = relay.fail(&stored[..1], LATER).await;
    let done = Step::Resume { delivered: vec![stored[0].row()] };
    assert_eq!(relay.step(&key, Some(first), done).await, None);
    let second = relay.fail(&stored[1..], LATER).await;
    assert_ne!(first, second, "a late step of the first life would be taken for one of the second");
}

/// Returns true for each message that waits, as seen by a transaction that begins now.
async fn fenced<S: Transactional>(store: &S, route: &Route, stored: &[Arc<Stored>]) -> Vec<bool> {
    let mut tx = store.begin().await.expect("a transaction begins");
    let asked: Vec<&Stored> = stored.iter().map(|stored| &**stored).collect();
    let wait = store.fence(&mut tx, route, &asked).await.expect("the question is answered");
    store.rollback(tx).await.expect("the transaction is rolled back");
    wait
}

/// A process that slept behind its look at the lease handles nothing that another one has settled,
/// buried or moved meanwhile: newer messages of the key may be handled by then.
pub async fn a_stored_message_that_others_have_finished_is_found_out<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let (_, route) = consumer();
    let relay = Relay::on(&store, route.clone(), LONG).await;
    let written = messages("orders", "a", 4);
    let key = written[0].key_id();
    write(&*store, written.into_iter().map(|message| Outgoing::from(message).by(route.clone()))).await;
    let stored = relay.read_key(&key).await;
    assert_eq!(fenced(&*store, &route, &stored).await, [true; 4]);
    assert_eq!(fenced(&*store, &Route::default(), &stored[..1]).await, [false], "on another route");
    let version = relay.fail(&stored[..2], LATER).await;
    assert_eq!(fenced(&*store, &route, &stored).await, [true; 4], "parked ones wait as well");
    relay.step(&key, Some(version), bury_step(&stored[0], "exhausted")).await;
    relay.settle(&stored[3..]).await;
    assert_eq!(fenced(&*store, &route, &stored).await, [false, true, true, false]);
    store.requeue(&Filter::all_routes()).await.expect("dead letters are requeued");
    assert_eq!(fenced(&*store, &route, &stored[..1]).await, [false], "it joins again as another row");
    assert!(fenced(&*store, &route, &[]).await.is_empty());
}

/// No operation makes a dead letter of a message whose handler's transaction is open: either that
/// waits, or the handler's transaction comes to nothing.
pub async fn what_is_handled_behind_a_fence_is_not_finished_by_others<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let other_process = harness.as_another_process().await;
    let (inventory, route) = consumer();
    let relay = Arc::new(Relay::on(&other_process, route.clone(), LONG).await);
    for is_parked in [false, true] {
        let written = messages("orders", if is_parked { "parked" } else { "hot" }, 1);
        let key = written[0].key_id();
        write(&*store, written.into_iter().map(|message| Outgoing::from(message).by(route.clone()))).await;
        let stored = relay.read_key(&key).await.remove(0);
        let version = if is_parked { Some(relay.fail(&[Arc::clone(&stored)], LATER).await) } else { None };
        let mut tx = store.begin().await.expect("a transaction begins");
        let waits = store.fence(&mut tx, &route, &[&stored]).await.expect("the question is answered");
        assert_eq!(waits, [true]);
        let handled_ids =
            store.deduplicate(&mut tx, &inventory, &[&stored.message]).await.expect("is_handled");
        assert_eq!(handled_ids, [Dedup::New]);
        let bury = relay.key_transition(&key, version, bury_step(&stored, "rejected"));
        let burying = {
            let relay = Arc::clone(&relay);
            tokio::spawn(async move { relay.store.transition(&[bury]).await.map(|answers| answers[0]) })
        };
        // A store that does not wait has done it by then. One that is slow has more time, and shows
        // nothing.
        tokio::time::sleep(SHORT).await;
        let is_buried = burying.is_finished();
        let committed = store.commit(tx).await;
        let buried = burying.await.expect("the step comes to an end");
        if is_buried && matches!(buried, Ok(Transitioned::Done(_))) {
            assert!(!matches!(committed, Committed::Yes), "it was buried, and handled behind that");
        } else {
            committed.into_result().expect("nothing was in the way of the handler");
        }
    }
}

fn consumer() -> (Consumer, Route) {
    let consumer = Consumer::new("inventory").expect("a consumer of the suite is valid");
    let route = inbox_route(&consumer);
    (consumer, route)
}
