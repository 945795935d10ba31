//! The history: in partitions that are made ahead and dropped, and nothing that waits for one.

use std::time::Duration;

use outbox_contract::{Admin, Route, Store};

use tokio::time::timeout;

use super::support::{Fixture, append, fetch, message, messages, open, options, relay, run};

const PARTITIONS: &str = "select count(*) from pg_inherits where inhparent = 'outbox_history'::regclass";
/// Partitions that end in the past, or begin a year ahead: what is no name of ours stays.
const OLD: &str = "
    create table outbox_history_1000000000_1000086400 partition of outbox_history
        for values from (1000000000000000) to (1000086400000000);
    insert into outbox_history (position, occurred_at, appended_at, delivered_at, schema_version, id, bucket, route, topic, order_key,
                                event_type, content_type, headers, payload)
    select 1, 0, 0, 1000000000000001, 1, gen_random_uuid(), 0, 'default', 'orders', 'a', 'x', 'text/plain', '', ''
    from generate_series(1, 10);
    analyze outbox_history";

fn kept(for_how_long: Duration) -> outbox_store_postgres::PostgresOptions {
    let mut options = options();
    options.history = Some(for_how_long);
    options
}

async fn deliver(fixture: &Fixture, key: &str) {
    append(&fixture.store, [message(key)]).await;
    let relay = relay(&fixture.store).await;
    let rows: Vec<_> =
        messages(&fetch(&fixture.store, relay).await).iter().map(|stored| stored.row()).collect();
    fixture.store.settle(&Route::default(), &rows).await.unwrap();
    fixture.store.give_back(relay, &Route::default(), &[], &Default::default(), true).await.unwrap();
}

#[tokio::test]
async fn partitions_are_made_ahead_and_dropped_whole() {
    let Some(fixture) = Fixture::with(kept(Duration::from_secs(10 * 24 * 3_600))).await else { return };
    fixture.run(OLD).await;
    deliver(&fixture, "a").await;
    assert_eq!(fixture.store.history(&Default::default()).await.unwrap().len(), 11);
    let done = fixture.store.maintain(100).await.unwrap();
    assert_eq!(done.history_removed, 10, "about");
    // The default one, and two days ahead or three: a day may begin in between.
    let ahead = fixture.number(PARTITIONS).await - 1;
    assert!((2..=3).contains(&ahead), "{ahead}");
    assert_eq!(
        fixture.number("select count(*) from pg_class where relname like 'outbox_history_1000000000%'").await,
        0
    );
    assert_eq!(fixture.store.history(&Default::default()).await.unwrap().len(), 1);

    // Another program's rounds make none twice.
    fixture.another().await.maintain(100).await.unwrap();
    assert!(fixture.number(PARTITIONS).await > ahead);
    // Deliveries go on, wherever they land.
    deliver(&fixture, "b").await;
    assert_eq!(fixture.store.history(&Default::default()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn what_went_to_no_partition_is_removed_when_its_time_is_over() {
    let Some(fixture) = Fixture::with(kept(Duration::from_secs(10 * 24 * 3_600))).await else { return };
    deliver(&fixture, "a").await;
    fixture.run("update outbox_history_rest set delivered_at = 1").await;
    deliver(&fixture, "b").await;
    let done = fixture.store.maintain(100).await.unwrap();
    assert_eq!((done.history_removed, done.more), (1, false));
    assert_eq!(fixture.store.history(&Default::default()).await.unwrap().len(), 1);
}

/// Whoever may not make partitions still keeps a history.
#[tokio::test]
async fn a_role_that_owns_nothing_keeps_a_history_all_the_same() {
    let Some(fixture) = Fixture::with(kept(Duration::from_secs(3_600))).await else { return };
    let role = format!("role_{}", fixture.url.rsplit('/').next().unwrap());
    fixture
        .run(&format!(
            "create role {role} login; grant select, insert, update, delete on all tables in schema public to {role}; \
             grant usage, select on all sequences in schema public to {role}"
        ))
        .await;
    let (_, address) = fixture.url.split_once('@').unwrap();
    let store = open(&format!("postgres://{role}@{address}"), kept(Duration::from_secs(3_600))).await;
    let guest = Fixture { server: fixture.server.clone(), url: fixture.url.clone(), store };
    guest.store.maintain(100).await.unwrap();
    assert_eq!(fixture.number(PARTITIONS).await, 1);
    deliver(&guest, "a").await;
    assert_eq!(guest.store.history(&Default::default()).await.unwrap().len(), 1);
}

/// Making and dropping partitions needs the table for itself for a moment. Whoever reads the history is not waited for: every settlement would
/// stand in line behind.
#[tokio::test]
async fn a_long_look_at_the_history_holds_up_neither_maintenance_nor_deliveries() {
    let Some(fixture) = Fixture::with(kept(Duration::from_secs(3_600))).await else { return };
    deliver(&fixture, "a").await;
    let mut reader = fixture.connection().await;
    run(&mut reader, "begin isolation level repeatable read; select count(*) from outbox_history").await;
    let soon = Duration::from_secs(30);
    let done = timeout(soon, fixture.store.maintain(100)).await.expect("nobody waits for a reader").unwrap();
    assert_eq!(done.history_removed, 0);
    timeout(soon, deliver(&fixture, "b")).await.expect("nobody waits for a reader");
    assert_eq!(fixture.number(PARTITIONS).await, 1);

    // The next time it may be done.
    run(&mut reader, "rollback").await;
    fixture.another().await.maintain(100).await.unwrap();
    assert!(fixture.number(PARTITIONS).await > 1);
}
