//! Diversions lock the document that says who owns what, and conflicts in them are nobody's fault.

use std::time::Duration;

use mongodb::bson::doc;
use outbox_contract::divert::{Diversion, Diverted, Step, Then};
use outbox_contract::{Admin, Failure, RelayId, Route, Store, StoreErrorKind, Stored};
use outbox_servers::mongo_front::{Fault, Happens};

use super::support::{
    Fixture, LONG, append, epoch, fetch, lease_request, message, messages, open, options, relay,
};

async fn failing(fixture: &Fixture, relay: RelayId, stored: &Stored) -> Diversion {
    let key = stored.message.key_id();
    Diversion {
        route: Route::default(),
        relay,
        bucket: key.bucket(),
        epoch: epoch(&fixture.store, relay, &key).await,
        key,
        version: None,
        step: Step::Fail {
            row: stored.row(),
            attempts: 3,
            first: Failure::new("test", "first"),
            last: Failure::new("test", "last"),
            then: Then::RetryAfter(Duration::from_secs(3_600)),
            behind: Vec::new(),
        },
    }
}

#[tokio::test]
async fn a_conflict_in_a_step_is_tried_again_and_counts_for_nothing() {
    let Some(fixture) = Fixture::alone(options()).await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    append(store, [message("a")]).await;
    let stored = messages(fetch(store, relay).await).remove(0);
    let step = failing(&fixture, relay, &stored).await;
    for command in ["findAndModify", "insert", "update", "delete", "commitTransaction"] {
        let labels = vec!["TransientTransactionError".to_owned()];
        fixture.server.fail_next(Fault::of(&[command], Happens::Error { code: 112, labels }));
    }
    let answers = store.divert(&[step]).await.unwrap();
    assert!(matches!(answers[..], [Diverted::Done(Some(_))]), "{answers:?}");
    let keys = store.failing_keys(&Default::default()).await.unwrap();
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

/// A step and a change of who owns what never go side by side: whoever comes second waits, or starts again.
#[tokio::test]
async fn a_step_waits_for_whoever_changes_the_owners() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = fixture.store.clone();
    let relay = relay(&store).await;
    append(&store, [message("a")]).await;
    let stored = messages(fetch(&store, relay).await).remove(0);
    let step = failing(&fixture, relay, &stored).await;

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
        async move { store.divert(&[step]).await }
    });
    // However far it has come: it can't be done.
    tokio::task::yield_now().await;
    assert!(store.failing_keys(&Default::default()).await.unwrap().is_empty());
    takeover.commit_transaction().await.unwrap();
    let answers = tokio::time::timeout(LONG, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(answers, [Diverted::LeaseLost]);
    assert!(store.failing_keys(&Default::default()).await.unwrap().is_empty());
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
