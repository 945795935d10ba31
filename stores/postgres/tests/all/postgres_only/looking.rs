//! Queries of stored messages, as operators and measurements run them: they delay no relay, and
//! their results are bounded.

use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::backend::RelayId;
use outbox_contract::{AdminExt, Route, Store};
use tokio::time::timeout;

use super::support::{Fixture, WAITING, due_request, pages, run};

/// Far longer than a query takes, and far shorter than the locks are held.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn who_looks_at_dead_letters_holds_up_no_relay() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut holder = fixture.connection().await;
    run(&mut holder, "begin; lock table outbox_dead").await;
    let (browsing, measuring) = (fixture.store.clone(), fixture.store.clone());
    let browsing = tokio::spawn(async move { browsing.dead_letters(&Filter::all_routes()).await });
    fixture.until_waiting(1).await;
    let measuring = tokio::spawn(async move { measuring.backlog(&Route::default()).await });

    timeout(SOON, fixture.store.frontier().writers()).await.expect("a relay asks who is writing").unwrap();
    timeout(SOON, fixture.store.due(&due_request(RelayId::new())))
        .await
        .expect("a relay asks what is due")
        .unwrap();
    assert!(!browsing.is_finished() && !measuring.is_finished());
    run(&mut holder, "rollback").await;
    assert!(browsing.await.unwrap().unwrap().is_empty());
    measuring.await.unwrap().unwrap();
}

#[tokio::test]
async fn who_looks_at_the_history_holds_up_no_measurement() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut holder = fixture.connection().await;
    run(&mut holder, "begin; lock table outbox_history").await;
    let store = fixture.store.clone();
    let browsing = tokio::spawn(async move { store.history(&Filter::all_routes()).await });
    fixture.until_waiting(1).await;
    let measured = timeout(SOON, fixture.store.backlog(&Route::default())).await;
    measured.expect("a relay measures").unwrap();
    assert!(!browsing.is_finished());
    run(&mut holder, "rollback").await;
    assert!(browsing.await.unwrap().unwrap().is_empty());
}

/// Neither a large history nor a lock keeps the server busy for a caller that is gone.
#[tokio::test]
async fn a_query_whose_caller_gave_up_ends_at_the_server() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut holder = fixture.connection().await;
    run(&mut holder, "begin; lock table outbox_history").await;
    let filter = Filter::all_routes();
    tokio::select! {
        listed = fixture.store.history(&filter) => panic!("the table is locked: {listed:?}"),
        () = fixture.until_waiting(1) => {}
    }
    let none_waits = format!("select 1 - least(1, ({WAITING}))");
    timeout(SOON, fixture.until(&none_waits, 1)).await.expect("nothing waits at the server any more");
    run(&mut holder, "rollback").await;
}

/// Fifteen messages of 5 MiB in each table that can be browsed.
const LARGE: &str = "
    set session_replication_role = replica;
    create temp table large as
    select n as position, 0 as at, 1 as version, gen_random_uuid() as id, 0::smallint as bucket, 'orders' as topic, 'a' as key,
           'x' as event_type, 'text/plain' as content_type, ''::bytea as headers, convert_to(repeat('x', 5 * 1024 * 1024), 'UTF8') as payload
    from generate_series(1, 15) n;
    insert into outbox_parked (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload,
                               occurred_at, appended_at, parked_at)
    select position, id, 'default', bucket, topic, key, key, event_type, version, content_type, headers, payload, at, at, at from large;
    insert into outbox_dead (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload,
                             occurred_at, appended_at, died_at, attempts, reason)
    select position, id, 'default', bucket, topic, key, key, event_type, version, content_type, headers, payload, at, at, at, 0, 'skipped'
    from large order by position;
    insert into outbox_history (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, payload,
                                occurred_at, appended_at, delivered_at)
    select position, id, 'default', bucket, topic, key, key, event_type, version, content_type, headers, payload, at, at, position
    from large order by position;
    insert into outbox_scheduled (due_at, id, topic, key, event_type, schema_version, content_type, headers, payload, occurred_at)
    select 4102444800000000 + position, id, topic, key, event_type, version, content_type, headers, payload, at
    from large order by position;";

#[tokio::test]
async fn a_page_of_large_messages_ends_behind_64_mib() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.run(LARGE).await;
    for table in ["outbox_parked", "outbox_dead", "outbox_history", "outbox_scheduled"] {
        assert_eq!(pages(&fixture.store, table).await, [12, 3], "{table}");
    }
    // Other programs' messages may be larger still: one of them is returned.
    fixture.run("update outbox_dead set payload = convert_to(repeat('x', 65 * 1024 * 1024), 'UTF8') where position in (1, 2)").await;
    assert_eq!(pages(&fixture.store, "outbox_dead").await, [1, 1, 12, 1]);
}
