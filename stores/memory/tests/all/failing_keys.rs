//! Failing keys: what is left open by the steps themselves, and is decided here.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::time::Duration;

use crate::support::{beat, builder, fetch, hot, key, message, published, relay, write};
use outbox_contract::backend::{
    BucketSet, Due, DueRequest, KeyTransition, Position, RowId, Scope, Step, Then, Transitioned,
};
use outbox_contract::{Admin, AdminExt, Failure, KeyId, Route, Store};
use outbox_store_memory::MemoryStore;

const LATER: Then = Then::RetryAfter(Duration::from_secs(5));

/// A store whose only relay has a lease, with these messages of each key: ids and positions count
/// from 1.
async fn with_messages(keys: &[&str]) -> MemoryStore {
    let store = builder().build();
    beat(&store, relay(1)).await;
    for (number, key) in (1..).zip(keys) {
        write(&store, message(key, number)).await;
    }
    store
}

fn row(number: i64) -> RowId {
    RowId { position: Position(number), id: message("a", number.unsigned_abs().into()).id }
}

fn failed(number: i64, attempts: u32, then: Then) -> Step {
    let failure = |words: &str| Failure::new("test", words);
    Step::Fail {
        row: row(number),
        attempts,
        first: failure("first"),
        last: failure("last"),
        then,
        behind: vec![],
    }
}

fn buried(number: i64) -> Step {
    let failure = Failure::new("test", "words");
    Step::Bury {
        row: row(number),
        discard: false,
        reason: "exhausted",
        attempts: 3,
        first: failure.clone(),
        last: failure,
    }
}

async fn step(store: &MemoryStore, key: &KeyId, version: Option<i64>, step: Step) -> Transitioned {
    let leased = beat(store, relay(1)).await;
    let bucket = key.bucket();
    let epoch = leased.leases[usize::from(bucket.0)].epoch;
    let transition =
        KeyTransition::new(Route::default(), relay(1), (bucket, epoch), key.clone(), version, step);
    store.transition(&[transition]).await.unwrap()[0]
}

async fn done(store: &MemoryStore, key: &KeyId, version: Option<i64>, what: Step) -> Option<i64> {
    match step(store, key, version, what).await {
        Transitioned::Done(version) => version,
        refused => panic!("{refused:?}"),
    }
}

fn due_request(keys: usize) -> DueRequest {
    let mut request = DueRequest::new(Route::default(), relay(1), BucketSet::ALL);
    request.keys = keys;
    request.messages = 10;
    request.bytes = 1_000;
    request
}

async fn due(store: &MemoryStore) -> Due {
    beat(store, relay(1)).await;
    store.due(&due_request(10)).await.unwrap()
}

fn parked(due: &Due) -> Vec<u128> {
    let keys = due.keys.iter().flat_map(|key| &key.parked);
    keys.map(|stored| stored.message.id.as_uuid().as_u128()).collect()
}

#[tokio::test(start_paused = true)]
async fn what_comes_behind_does_not_disturb_a_retry_under_way() {
    let store = with_messages(&["a", "a", "a"]).await;
    let version = done(&store, &key("a"), None, failed(1, 1, Then::RetryAfter(Duration::ZERO))).await;
    // While 1 is on its way, 3 and 2 are found behind it.
    assert_eq!(done(&store, &key("a"), None, Step::Park { rows: vec![row(3)] }).await, version);
    assert_eq!(
        done(&store, &key("a"), None, Step::Park { rows: vec![row(2), row(3), row(9)] }).await,
        version
    );
    let after = done(&store, &key("a"), version, Step::Resume { delivered: vec![row(1)] }).await;
    assert!(after > version);
    let due = due(&store).await;
    assert_eq!(parked(&due), [2, 3], "in order, and at once");
    assert_eq!((due.keys[0].failing, due.keys[0].attempts), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_parked_behind_a_key_that_flows() {
    let store = with_messages(&["a"]).await;
    assert_eq!(step(&store, &key("a"), None, Step::Park { rows: vec![row(1)] }).await, Transitioned::Stale);
    assert_eq!(hot(&store).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_version_never_comes_back() {
    let store = with_messages(&["a", "a"]).await;
    let first = done(&store, &key("a"), None, failed(1, 1, LATER)).await;
    assert_eq!(store.discard(&Route::default(), &key("a")).await.unwrap(), 1);
    let second = done(&store, &key("a"), None, failed(2, 1, LATER)).await;
    assert!(second > first);
    let stale = step(&store, &key("a"), first, Step::Resume { delivered: vec![row(2)] }).await;
    assert_eq!(stale, Transitioned::Stale);
}

#[tokio::test(start_paused = true)]
async fn a_later_message_that_fails_waits_behind_the_first() {
    let store = with_messages(&["a", "a"]).await;
    done(&store, &key("a"), None, failed(1, 4, LATER)).await;
    done(&store, &key("a"), None, failed(2, 1, Then::Hold)).await;
    let failing = store.failing_keys(&outbox_contract::admin::Filter::all_routes()).await.unwrap();
    assert_eq!((failing[0].attempts, failing[0].held, failing[0].parked), (4, false, 2));
    assert_eq!(failing[0].first, Some(row(1).id));
}

#[tokio::test(start_paused = true)]
async fn burying_another_message_leaves_the_retry_where_it_was() {
    let store = with_messages(&["a", "a", "a"]).await;
    done(&store, &key("a"), None, failed(1, 4, LATER)).await;
    done(&store, &key("a"), None, buried(3)).await;
    let waiting = due(&store).await;
    assert!(waiting.keys.is_empty() && waiting.next == Some(Duration::from_secs(5)), "{waiting:?}");
    done(&store, &key("a"), None, buried(1)).await;
    let now = due(&store).await;
    assert_eq!((now.keys[0].attempts, parked(&now).len()), (0, 0), "the first is gone, and the key is due");
    assert_eq!(store.snapshot().dead, 2);
}

#[tokio::test(start_paused = true)]
async fn a_key_stays_held_whatever_becomes_of_what_was_in_flight() {
    let store = with_messages(&["a", "a", "a"]).await;
    store.hold(&Route::default(), &key("a")).await.unwrap();
    assert_eq!(published(&fetch(&store, relay(1)).await), [0; 0], "flagged from now on");
    let steps = [
        failed(1, 1, LATER),
        Step::Resume { delivered: vec![row(1)] },
        failed(2, 1, LATER),
        buried(2),
        buried(3),
    ];
    for what in steps {
        assert!(done(&store, &key("a"), None, what.clone()).await.is_some(), "{what:?}");
        assert!(
            store.failing_keys(&outbox_contract::admin::Filter::all_routes()).await.unwrap()[0].held,
            "{what:?}"
        );
        assert!(due(&store).await.keys.is_empty(), "{what:?}");
    }
    AdminExt::release(&store, &Route::default(), &key("a")).await.unwrap();
    assert_eq!(due(&store).await.keys.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn keys_come_by_due_time_and_the_next_is_told() {
    let store = with_messages(&["a", "b", "c", "d"]).await;
    for (number, seconds) in [(1, 3), (2, 1), (3, 2), (4, 60)] {
        let key = key(["a", "b", "c", "d"][usize::try_from(number - 1).unwrap()]);
        done(&store, &key, None, failed(number, 1, Then::RetryAfter(Duration::from_secs(seconds)))).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let all = due(&store).await;
    assert_eq!((parked(&all), all.next), (vec![2, 3, 1], Some(Duration::from_secs(57))));

    let mut request = due_request(1);
    request.except = vec![key("b")];
    let two = store.due(&request).await.unwrap();
    assert_eq!((parked(&two), two.next), (vec![3], Some(Duration::ZERO)), "there are more now");
    request.muted = vec![Scope::Key(key("a")), Scope::Key(key("d"))];
    assert_eq!(store.due(&request).await.unwrap().next, None);
}

#[tokio::test(start_paused = true)]
async fn a_message_of_another_key_is_not_moved() {
    let store = with_messages(&["a"]).await;
    assert_eq!(step(&store, &key("b"), None, failed(1, 1, LATER)).await, Transitioned::Stale);
    assert_eq!(step(&store, &key("b"), None, buried(1)).await, Transitioned::Stale);
    assert_eq!(hot(&store), [(1, 1)]);
    assert_eq!(store.snapshot().failing_keys, 0);
}
