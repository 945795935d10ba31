//! One writer at a time: behavior of the others.

use std::time::{Duration, Instant};

use outbox_contract::admin::Filter;
use outbox_contract::backend::{Bucket, RelayId};
use outbox_contract::{Admin, AdminExt, AppendError, Outgoing, Route, Store, StoreErrorKind, Transactional};
use outbox_store_sqlite::{SqliteOptions, SqliteStore};

use super::support::{Fixture, append, fetch, lease_request, message, messages, relay};

async fn impatient(fixture: &Fixture) -> SqliteStore {
    let mut options = SqliteOptions::default();
    options.busy_timeout = Duration::from_millis(100);
    SqliteStore::open_with(fixture.path(), options).await.unwrap()
}

#[tokio::test]
async fn a_writer_that_does_not_let_go_makes_ours_unavailable_and_reading_goes_on() {
    let fixture = Fixture::new().await;
    let store = impatient(&fixture).await;
    append(&store, [message("a", "1")]).await;
    let relay = relay(&store).await;
    let writer = fixture.store.begin().await.unwrap();

    let row = messages(&fetch(&store, relay).await)[0].row();
    let error = store.settle(&Default::default(), &[row]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable() && error.to_string().contains("busy timeout"), "{error}");

    fixture.store.rollback(writer).await.unwrap();
    store.settle(&Default::default(), &[row]).await.unwrap();
    assert!(fetch(&store, relay).await.rows.is_empty());
}

/// The user's transaction read before another one wrote: SQLite can't let it write any more,
/// however long it waits.
#[tokio::test]
async fn an_append_in_a_transaction_that_has_become_old_is_a_conflict() {
    let fixture = Fixture::new().await;
    let mut tx = fixture.store.pool().begin().await.unwrap();
    sqlx::query("select count(*) from outbox_message").fetch_one(&mut *tx).await.unwrap();
    append(&fixture.store, [message("a", "1")]).await;

    let error = fixture.store.append(&mut tx, &[Outgoing::from(message("a", "2"))]).await.unwrap_err();
    assert!(matches!(error, AppendError::Conflict(_)), "{error}");
    assert!(error.is_retryable() && error.to_string().contains("BEGIN IMMEDIATE"), "{error}");
}

#[tokio::test]
async fn an_append_that_waits_for_the_lock_in_vain_is_a_conflict() {
    let fixture = Fixture::new().await;
    let store = impatient(&fixture).await;
    let writer = fixture.store.begin().await.unwrap();
    let mut tx = store.pool().begin().await.unwrap();
    let error = store.append(&mut tx, &[Outgoing::from(message("a", "1"))]).await.unwrap_err();
    assert!(matches!(error, AppendError::Conflict(_)), "{error}");
    fixture.store.rollback(writer).await.unwrap();
}

#[tokio::test]
async fn users_that_hold_all_of_their_connections_do_not_stop_a_relay() {
    let fixture = Fixture::new().await;
    append(&fixture.store, [message("a", "1")]).await;
    let mut held = Vec::new();
    for _ in 0..fixture.store.options().connections {
        held.push(fixture.store.pool().begin().await.unwrap());
    }
    let relay = relay(&fixture.store).await;
    assert_eq!(messages(&fetch(&fixture.store, relay).await).len(), 1);
    assert_eq!(held.len(), 8);
}

/// A bucket that is being given up expires when it would have, however often its relay extends its
/// life.
#[tokio::test]
async fn a_heartbeat_does_not_prolong_what_the_relay_gives_up() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let relay = RelayId::new();
    let given_up = Bucket(7);
    let mut request = lease_request(relay);
    request.lasts = Duration::from_millis(400);
    store.lease(&request).await.unwrap();
    request.yielding.insert(given_up);
    request.lasts = Duration::from_secs(60);
    let owned = store.lease(&request).await.unwrap().leases;
    assert_eq!(owned.len(), 256, "it still has what it had");

    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let owned = store.lease(&request).await.unwrap().leases;
        if owned.len() == 255 {
            assert!(owned.iter().all(|lease| lease.bucket != given_up));
            break;
        }
        assert!(Instant::now() < deadline, "the bucket did not run out");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Another one acquires it, and nothing else.
    let other = store.lease(&lease_request(RelayId::new())).await.unwrap().leases;
    assert_eq!(other.iter().map(|lease| lease.bucket).collect::<Vec<_>>(), [given_up]);
}

/// A fetch that stops early, for its bytes, leaves no read transaction open: otherwise the log
/// could never be truncated, and the next fetch of that connection would see an old state.
#[tokio::test]
async fn a_fetch_that_stops_early_leaves_nothing_open() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    append(store, (0..200).map(|n| message("a", &format!("{n:01000}")))).await;
    let relay = relay(store).await;
    let mut request = outbox_contract::backend::FetchRequest::new(
        Default::default(),
        relay,
        outbox_contract::backend::BucketSet::ALL,
    );
    request.bytes = 5_000;
    for _ in 0..4 {
        let fetched = store.fetch(&request).await.unwrap();
        assert_eq!((fetched.rows.len(), fetched.full), (5, true));
    }
    let (busy, log, moved): (i64, i64, i64) =
        sqlx::query_as("pragma wal_checkpoint(truncate)").fetch_one(store.pool()).await.unwrap();
    assert_eq!((busy, log, moved), (0, 0, 0), "the whole log was written back");
}

#[tokio::test]
async fn rows_too_large_to_read_ahead_come_whole_and_in_order() {
    let fixture = Fixture::new().await;
    let sizes = [10, 200_000, 20, 70_000, 65_536, 65_537];
    append(&fixture.store, sizes.map(|size| message("a", &"x".repeat(size)))).await;
    let relay = relay(&fixture.store).await;
    let fetched = messages(&fetch(&fixture.store, relay).await);
    let read: Vec<usize> = fetched.iter().map(|stored| stored.message.payload.len()).collect();
    assert_eq!(read, sizes);
}

/// A key with very many parked messages: others write in between.
#[tokio::test]
async fn a_key_is_discarded_in_steps_and_held_until_the_last_of_them() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    sqlx::raw_sql(
        "insert into outbox_key (route, topic, key, bucket, version, next_attempt_at, since) values ('default', 'orders', 'a', 0, 1, 0, 0);
         insert into outbox_parked (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload,
                                    occurred_at, appended_at, parked_at)
         with recursive n(value) as (select 1 union all select value + 1 from n where value < 2500)
         select value, randomblob(16), 'default', 0, 'orders', 'a', 'a', 'x', 1, 'text/plain', '', '', 0, 0, 0 from n;
         -- Somebody stops it in the second step.
         create trigger stop before insert on outbox_dead when new.position > 1500 begin select raise(abort, 'enough'); end",
    )
    .execute(store.pool())
    .await
    .unwrap();
    let key = message("a", "1").key_id();
    store.discard(&Route::default(), &key).await.unwrap_err();
    let failing = store.failing_keys(&Filter::all_routes()).await.unwrap();
    assert_eq!(
        (failing.len(), failing[0].held, failing[0].parked),
        (1, true, 1_500),
        "the first step is done"
    );

    sqlx::query("drop trigger stop").execute(store.pool()).await.unwrap();
    assert_eq!(store.discard(&Route::default(), &key).await.unwrap(), 1_500);
    assert!(store.failing_keys(&Filter::all_routes()).await.unwrap().is_empty());
    let backlog = store.backlog(&Route::default()).await.unwrap();
    assert_eq!((backlog.parked, backlog.dead), (0, 2_500));
}
