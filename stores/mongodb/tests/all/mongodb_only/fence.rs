//! Steps of keys commit only while the owners are still as the step has seen them. Conflicts in
//! them count against no message.

use std::sync::Arc;
use std::time::Duration;

use mongodb::bson::doc;
use outbox_contract::backend::{
    FetchedRow, KeyTransition, LowWater, RelayId, Step, Stored, Then, Transitioned,
};
use outbox_contract::{Admin, AdminExt, Failure, Route, Store, StoreErrorKind};
use outbox_servers::mongo_front::{Fault, Happens};

use super::commands::{name, noting, of_transactions};
use super::halting::Halting;
use super::support::{
    Fixture, LONG, append, epoch, fetch, lease_request, message, messages, open, options, relay,
};

async fn failing(fixture: &Fixture, relay: RelayId, stored: &Stored) -> KeyTransition {
    let key = stored.message.key_id();
    KeyTransition::new(
        Route::default(),
        relay,
        (key.bucket(), epoch(&fixture.store, relay, &key).await),
        key,
        None,
        Step::Fail {
            row: stored.row(),
            attempts: 3,
            first: Failure::new("test", "first"),
            last: Failure::new("test", "last"),
            then: Then::RetryAfter(Duration::from_secs(3_600)),
            behind: Vec::new(),
        },
    )
}

/// A relay, a message that it has read, and the step with which that fails.
async fn one_that_fails(fixture: &Fixture) -> (RelayId, Arc<Stored>, KeyTransition) {
    let relay = relay(&fixture.store).await;
    append(&fixture.store, [message("a")]).await;
    let stored = messages(fetch(&fixture.store, relay).await).remove(0);
    let step = failing(fixture, relay, &stored).await;
    (relay, stored, step)
}

#[tokio::test]
async fn a_conflict_in_a_step_is_tried_again_and_counts_for_nothing() {
    let Some(fixture) = Fixture::alone(options()).await else { return };
    let store = &fixture.store;
    let (_, _, step) = one_that_fails(&fixture).await;
    for command in ["findAndModify", "insert", "update", "delete", "commitTransaction"] {
        let labels = vec!["TransientTransactionError".to_owned()];
        fixture.server.fail_next(Fault::of(&[command], Happens::Error { code: 112, labels }));
    }
    let answers = store.transition(&[step]).await.unwrap();
    assert!(matches!(answers[..], [Transitioned::Done(Some(_))]), "{answers:?}");
    let keys = store.failing_keys(&outbox_contract::admin::Filter::all_routes()).await.unwrap();
    assert_eq!((keys.len(), keys[0].attempts, keys[0].parked), (1, 3, 1));
}

#[tokio::test]
async fn a_step_that_meets_others_for_too_long_is_unavailable() {
    let Some(fixture) = Fixture::alone(options()).await else { return };
    let mut impatient = options();
    impatient.conflict_timeout = Duration::from_millis(200);
    let store = open(&fixture.url, impatient).await;
    let key = message("a").key_id();
    let labels = vec!["TransientTransactionError".to_owned()];
    let always = Fault::of(&["findAndModify"], Happens::Error { code: 112, labels }).times(u32::MAX);
    fixture.server.fail_next(always);
    let error = store.hold(&Route::default(), &key).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("conflict_timeout"), "{error}");
    fixture.server.fail_no_more();
    fixture.store.hold(&Route::default(), &key).await.unwrap();
}

/// A step and a change of who owns what never go side by side: whoever comes second waits, or
/// starts again.
#[tokio::test]
async fn a_step_waits_for_whoever_changes_the_owners() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = fixture.store.clone();
    let (_, _, step) = one_that_fails(&fixture).await;

    // Somebody takes every bucket over, and has not committed it yet.
    let routes = fixture.collection("outbox_route");
    let mut takeover = fixture.session().await;
    let changed = routes
        .update_one(
            doc! { "_id": "default" },
            doc! { "$set": { "relays": [] }, "$inc": { "version": 1_i64 } },
        )
        .session(&mut takeover)
        .await
        .unwrap();
    assert_eq!(changed.modified_count, 1);
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.transition(&[step]).await }
    });
    // However far it has come: it can't be done.
    tokio::task::yield_now().await;
    assert!(store.failing_keys(&outbox_contract::admin::Filter::all_routes()).await.unwrap().is_empty());
    takeover.commit_transaction().await.unwrap();
    let answers = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(answers, [Transitioned::LeaseLost]);
    assert!(store.failing_keys(&outbox_contract::admin::Filter::all_routes()).await.unwrap().is_empty());
}

/// Heartbeats decide from what they have read, and write only if that is still so.
#[tokio::test]
async fn a_heartbeat_that_was_overtaken_decides_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, other) = (&fixture.store, fixture.another().await);
    let relays: Vec<RelayId> = (0..8).map(|_| RelayId::new()).collect();
    for _ in 0..5 {
        let beats = relays.iter().enumerate().map(|(at, relay)| {
            let store = if at % 2 == 0 { store.clone() } else { other.clone() };
            let request = lease_request(*relay);
            async move { store.lease(&request).await.unwrap() }
        });
        let leased = futures_util::future::join_all(beats).await;
        let owned: usize = leased.iter().map(|leased| leased.leases.len()).sum();
        assert!(owned <= 256, "{owned} leases of 256 buckets");
    }
    let all: usize = futures_util::future::join_all(
        relays.iter().map(|relay| async { store.lease(&lease_request(*relay)).await.unwrap().leases.len() }),
    )
    .await
    .into_iter()
    .sum();
    assert_eq!(all, 256);
}

/// Locked from its beginning, it would be locked for as long as the transaction is open.
#[tokio::test]
async fn a_transaction_of_a_key_changes_its_route_last() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, noted) = noting(&fixture).await;
    let (relay, route) = (relay(&store).await, Route::default());
    append(&store, (0..3).map(|_| message("a"))).await;
    let read = messages(fetch(&store, relay).await);
    let key = read[0].message.key_id();
    let first = failing(&fixture, relay, &read[0]).await;
    noted.lock().unwrap().clear();
    store.transition(&[first]).await.unwrap();
    store.hold(&route, &key).await.unwrap();
    store.release(&route, &key).await.unwrap();
    store.skip(&route, &key).await.unwrap();
    store.discard(&route, &key).await.unwrap();
    let transactions = of_transactions(&std::mem::take(&mut *noted.lock().unwrap()));
    assert!(transactions.len() >= 5, "{transactions:?}");
    for transaction in transactions {
        let names: Vec<String> = transaction.iter().map(name).collect();
        let [first, between @ .., fence, commit] = &names[..] else { panic!("{names:?}") };
        assert_eq!(
            [first.as_str(), fence.as_str(), commit.as_str()],
            ["aggregate outbox_route", "findAndModify outbox_route", "commitTransaction "],
            "{names:?}"
        );
        assert!(!between.iter().any(|name| name.ends_with(" outbox_route")), "{names:?}");
    }
}

/// MongoDB keeps the transaction of a program that has died open for a minute.
#[tokio::test]
async fn a_relay_that_died_in_a_step_holds_up_no_lease() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let (relay, stored, step) = one_that_fails(&fixture).await;
    let mut dies = Halting::before(&fixture, "insert", "outbox_parked").await;
    let dying = dies.store.clone();
    drop(dies.begin(async move { dying.transition(&[step]).await }).await);

    let in_time = Duration::from_secs(30);
    let other = RelayId::new();
    for who in [relay, other] {
        let beat = tokio::time::timeout(in_time, store.lease(&lease_request(who))).await;
        beat.expect("heartbeats wait for a program that is gone").unwrap();
    }
    let elsewhere = message("b").key_id();
    let held = tokio::time::timeout(in_time, store.hold(&Route::default(), &elsewhere)).await;
    held.expect("verbs wait for a program that is gone").unwrap();
    assert_eq!(messages(fetch(store, relay).await), [stored], "nothing of it has happened");
}

/// Neither writes what the other reads, and together they would leave a message behind a flowing
/// key, where it is never found.
#[tokio::test]
async fn of_two_steps_that_have_seen_the_same_state_one_begins_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    append(store, [message("a"), message("a")]).await;
    let read = messages(fetch(store, relay).await);
    let fails = failing(&fixture, relay, &read[0]).await;
    let Transitioned::Done(Some(version)) = store.transition(std::slice::from_ref(&fails)).await.unwrap()[0]
    else {
        panic!()
    };
    let mut parks = fails.clone();
    parks.step = Step::Park { rows: vec![read[1].row()] };
    let mut resumes = fails.clone();
    (resumes.version, resumes.step) = (Some(version), Step::Resume { delivered: vec![read[0].row()] });

    let mut halting = Halting::before(&fixture, "findAndModify", "outbox_route").await;
    let slow = halting.store.clone();
    let parking = halting.begin(async move { slow.transition(&[parks]).await }).await;
    assert_eq!(store.transition(&[resumes]).await.unwrap(), [Transitioned::Done(None)]);
    halting.go_on();
    let parked = tokio::time::timeout(LONG, parking).await.unwrap().unwrap().unwrap();
    assert_eq!(parked, [Transitioned::Stale], "the key flows again");
    assert_eq!(messages(fetch(store, relay).await)[..], read[1..]);
    assert!(store.parked(&outbox_contract::admin::Filter::all_routes()).await.unwrap().is_empty());
}

/// A takeover that was committed while a step was under way.
#[tokio::test]
async fn a_step_whose_lease_is_lost_under_way_does_nothing() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let (relay, stored, step) = one_that_fails(&fixture).await;
    let mut halting = Halting::before(&fixture, "findAndModify", "outbox_route").await;
    let slow = halting.store.clone();
    let late = halting.begin(async move { slow.transition(&[step]).await }).await;
    let leases = store.lease(&lease_request(relay)).await.unwrap().leases;
    store.give_back(relay, &Route::default(), &leases, &LowWater::default(), true).await.unwrap();
    let new = super::support::relay(store).await;
    halting.go_on();
    let answer = tokio::time::timeout(LONG, late).await.unwrap().unwrap().unwrap();
    assert_eq!(answer, [Transitioned::LeaseLost]);
    let rows = fetch(store, new).await;
    assert!(matches!(&rows[..], [FetchedRow::Message(message)] if *message == stored), "{rows:?}");
}

/// Where others come often, a long transaction would never get through.
#[tokio::test]
async fn steps_that_met_others_are_done_in_shorter_transactions() {
    let Some(fixture) = Fixture::alone(options()).await else { return };
    let (store, noted) = noting(&fixture).await;
    let relay = relay(&store).await;
    append(&store, (0..8).map(|at| message(&format!("key-{at}")))).await;
    let mut steps = Vec::new();
    for stored in messages(fetch(&store, relay).await) {
        steps.push(failing(&fixture, relay, &stored).await);
    }
    let labels = vec!["TransientTransactionError".to_owned()];
    fixture.server.fail_next(Fault::of(&["findAndModify"], Happens::Error { code: 112, labels }).times(2));
    noted.lock().unwrap().clear();
    let answers = store.transition(&steps).await.unwrap();
    assert!(answers.len() == 8 && answers.iter().all(|answer| matches!(answer, Transitioned::Done(Some(_)))));
    let transactions = of_transactions(&std::mem::take(&mut *noted.lock().unwrap()));
    let parked = |transaction: &Vec<mongodb::bson::Document>| {
        transaction.iter().filter(|command| name(command) == "insert outbox_parked").count()
    };
    assert_eq!(transactions.iter().map(parked).collect::<Vec<_>>(), [8, 4, 2, 2, 2, 2]);
}
