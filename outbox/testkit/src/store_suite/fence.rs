//! Promise P7: a relay that lost its lease, or works from an old state of a key, changes nothing.

use std::sync::Arc;

use outbox_contract::admin::Filter;
use outbox_contract::divert::{Diversion, Diverted, Step};
use outbox_contract::{Admin, Epoch, KeyId, MessageId, RelayId, Store, Stored};

use super::StoreHarness;
use super::support::{
    LATER, NOW, OVER, Relay, SHORT, bury_step, divert, fail_step, messages, prepared, stored_ids, write,
};

/// Everything that a diversion could change.
#[derive(Debug, PartialEq)]
struct Everything {
    failing: Vec<outbox_contract::admin::FailingKey>,
    parked: Vec<Arc<Stored>>,
    dead: Vec<MessageId>,
    hot: Vec<MessageId>,
    pending: u64,
}

async fn everything<S: Store>(relay: &Relay<S>) -> Everything {
    let all = Filter::default();
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
                outbox_contract::FetchedRow::Message(stored) => stored.message.id,
                outbox_contract::FetchedRow::Failing(row) => row.at.id,
                other => panic!("unexpected row {other:?}"),
            })
            .collect(),
        pending: backlog.pending,
    }
}

/// Every step there is, for a hot message and for a failing key.
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

/// A key with two parked messages and two hot ones; the version that it has.
async fn failing_key<S: outbox_contract::Transactional>(
    relay: &Relay<S>,
) -> (KeyId, i64, Vec<Arc<Stored>>, Vec<Arc<Stored>>) {
    let written = messages("orders", "a", 4);
    let key = written[0].key_id();
    write(&*relay.store, written).await;
    let stored = relay.read_key(&key).await;
    let version = relay.fail(&stored[..2], LATER).await;
    (key, version, stored[..2].to_vec(), stored[2..].to_vec())
}

/// Asserts that each of these diversions is refused as said, and that nothing of what `observer` sees has changed.
async fn assert_refused<S: Store>(observer: &Relay<S>, diversions: Vec<Diversion>, refusal: Diverted) {
    let before = everything(observer).await;
    for diversion in diversions {
        let told = format!("{diversion:?}");
        assert_eq!(divert(&*observer.store, diversion).await, refusal, "{told}");
    }
    assert_eq!(everything(observer).await, before, "a refused step changes nothing");
}

fn diversions<S: Store>(
    relay: &Relay<S>,
    key: &KeyId,
    version: Option<i64>,
    steps: Vec<Step>,
) -> Vec<Diversion> {
    steps.into_iter().map(|step| relay.diversion(key, version, step)).collect()
}

/// The lease ran out, and nobody took it: refused all the same.
pub async fn an_expired_lease_is_refused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let slept = Relay::on(&store, Default::default(), SHORT).await;
    let written = messages("orders", "a", 2);
    let key = written[0].key_id();
    write(&*store, written).await;
    let stored = slept.read_key(&key).await;
    harness.advance(OVER).await;
    for step in [fail_step(&stored, 1, NOW), bury_step(&stored[0], "rejected")] {
        assert_eq!(slept.divert(slept.diversion(&key, None, step)).await, Diverted::LeaseLost);
    }
    let next = Relay::start(&store).await;
    let now = everything(&next).await;
    assert!(now.failing.is_empty() && now.parked.is_empty() && now.dead.is_empty(), "{now:?}");
    assert_eq!(now.hot, stored_ids(&stored));
}

/// Another relay took over: every step of the first is refused.
pub async fn a_relay_that_was_replaced_can_divert_nothing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let slept = Relay::on(&store, Default::default(), SHORT).await;
    harness.advance(OVER).await;
    let next = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&next).await;
    let late = diversions(&slept, &key, Some(version), every_step(&hot, &parked));
    assert_refused(&next, late, Diverted::LeaseLost).await;
    let late = diversions(&slept, &key, None, every_step(&hot, &parked));
    assert_refused(&next, late, Diverted::LeaseLost).await;
}

/// An epoch before, an epoch behind: only the very lease will do.
pub async fn another_epoch_is_refused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&relay).await;
    for difference in [-1, 1] {
        let mut wrong = diversions(&relay, &key, Some(version), every_step(&hot, &parked));
        for diversion in &mut wrong {
            diversion.epoch = Epoch(diversion.epoch.0 + difference);
        }
        assert_refused(&relay, wrong, Diverted::LeaseLost).await;
    }
}

/// A relay that never owned the bucket, even with its owner's epoch.
pub async fn another_relay_is_refused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&relay).await;
    let mut foreign = diversions(&relay, &key, Some(version), every_step(&hot, &parked));
    for diversion in &mut foreign {
        diversion.relay = RelayId::new();
    }
    assert_refused(&relay, foreign, Diverted::LeaseLost).await;
}

/// What was given back is no longer one's own.
pub async fn a_released_lease_is_refused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&relay).await;
    let late = diversions(&relay, &key, Some(version), every_step(&hot, &parked));
    relay.leave().await;
    let next = Relay::start(&store).await;
    assert_refused(&next, late, Diverted::LeaseLost).await;
}

/// A step that starts from another state of the key than it is in.
pub async fn an_old_version_of_a_key_is_refused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, old, parked, hot) = failing_key(&relay).await;
    let new = relay.step(&key, Some(old), fail_step(&parked[..1], 2, LATER)).await;
    assert_ne!(new, Some(old));
    let late = diversions(&relay, &key, Some(old), every_step(&hot, &parked));
    assert_refused(&relay, late, Diverted::Stale).await;
}

/// A step that starts from a state, of a key that has none.
pub async fn a_version_of_a_key_that_flows_is_refused<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let written = messages("orders", "a", 2);
    let key = written[0].key_id();
    write(&*store, written).await;
    let stored = relay.read_key(&key).await;
    let steps = every_step(&stored[1..], &stored[..1]);
    assert_refused(&relay, diversions(&relay, &key, Some(1), steps), Diverted::Stale).await;
}

/// Every verb of an operator on a key makes its next version: a relay that works from the one before is refused.
pub async fn a_relay_is_refused_after_an_operator_changed_its_key<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, version, parked, hot) = failing_key(&relay).await;
    let steps = || every_step(&hot, &parked);

    store.hold(&relay.route, &key).await.expect("a failing key is held");
    assert_refused(&relay, diversions(&relay, &key, Some(version), steps()), Diverted::Stale).await;

    store.release(&relay.route, &key).await.expect("a held key is released");
    let released = relay.due().await.keys[0].version;
    assert_ne!(released, version);
    store.release(&relay.route, &key).await.expect("a failing key is released");
    assert_refused(&relay, diversions(&relay, &key, Some(released), steps()), Diverted::Stale).await;

    let before_skip = relay.due().await.keys[0].version;
    store.skip(&relay.route, &key).await.expect("a failing key's first message is skipped");
    assert_refused(&relay, diversions(&relay, &key, Some(before_skip), steps()), Diverted::Stale).await;

    let before_discard = relay.due().await.keys[0].version;
    store.discard(&relay.route, &key).await.expect("a failing key's messages are discarded");
    assert_refused(&relay, diversions(&relay, &key, Some(before_discard), steps()), Diverted::Stale).await;
}

/// A key that failed, flowed and failed again is not in a state that it was in before.
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
