//! The history: partitions that are created ahead and dropped, and no work that waits for one.

use std::time::Duration;

use outbox_contract::{AdminExt, Route, Store};

use tokio::time::timeout;

use super::support::{Fixture, append, fetch, message, messages, open, options, relay, run};

const PARTITIONS: &str = "select count(*) from pg_inherits where inhparent = 'outbox_history'::regclass";
/// Partitions that end in the past, or begin a year ahead: foreign names stay.
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
    assert_eq!(fixture.store.history(&outbox_contract::admin::Filter::all_routes()).await.unwrap().len(), 11);
    let done = fixture.store.maintain(100).await.unwrap();
    assert_eq!(done.history_removed, 10, "about");
    // The default one, and two days ahead or three: a day may begin in between.
    let ahead = fixture.number(PARTITIONS).await - 1;
    assert!((2..=3).contains(&ahead), "{ahead}");
    assert_eq!(
        fixture.number("select count(*) from pg_class where relname like 'outbox_history_1000000000%'").await,
        0
    );
    assert_eq!(fixture.store.history(&outbox_contract::admin::Filter::all_routes()).await.unwrap().len(), 1);

    // Another program's rounds create none twice.
    fixture.another().await.maintain(100).await.unwrap();
    assert!(fixture.number(PARTITIONS).await > ahead);
    // Deliveries continue, in whichever partition.
    deliver(&fixture, "b").await;
    assert_eq!(fixture.store.history(&outbox_contract::admin::Filter::all_routes()).await.unwrap().len(), 2);
}

#[tokio::test]
async fn what_went_to_no_partition_is_removed_when_its_time_is_over() {
    let Some(fixture) = Fixture::with(kept(Duration::from_secs(10 * 24 * 3_600))).await else { return };
    deliver(&fixture, "a").await;
    fixture.run("update outbox_history_rest set delivered_at = 1").await;
    deliver(&fixture, "b").await;
    let done = fixture.store.maintain(100).await.unwrap();
    assert_eq!((done.history_removed, done.more), (1, false));
    assert_eq!(fixture.store.history(&outbox_contract::admin::Filter::all_routes()).await.unwrap().len(), 1);
}

/// A role that may not create partitions still keeps a history.
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
    assert_eq!(guest.store.history(&outbox_contract::admin::Filter::all_routes()).await.unwrap().len(), 1);
}

/// One role made a partition, and another owns the history now: the others are made and dropped all
/// the same.
#[tokio::test]
async fn a_partition_of_another_role_keeps_no_other_from_being_dropped() {
    let Some(fixture) = Fixture::with(kept(Duration::from_secs(10 * 24 * 3_600))).await else { return };
    let role = format!("role_{}", fixture.url.rsplit('/').next().unwrap());
    fixture.run(OLD).await;
    fixture
        .run(&format!(
            "create table outbox_history_1000086400_1000172800 partition of outbox_history
                 for values from (1000086400000000) to (1000172800000000);
             create role {role} login; grant usage, create on schema public to {role};
             grant select, insert, update, delete on all tables in schema public to {role};
             grant usage, select on all sequences in schema public to {role};
             alter table outbox_history owner to {role}; alter table outbox_history_1000086400_1000172800 owner to {role}"
        ))
        .await;
    let (_, address) = fixture.url.split_once('@').unwrap();
    let options = fixture.store.options().clone();
    let store = open(&format!("postgres://{role}@{address}"), options).await;
    store.check().await.unwrap();
    store.maintain(100).await.unwrap();
    let named = |name: &str| format!("select count(*) from pg_class where relname = 'outbox_history_{name}'");
    assert_eq!(fixture.number(&named("1000086400_1000172800")).await, 0);
    assert_eq!(fixture.number(&named("1000000000_1000086400")).await, 1, "it is another role's");
    assert!(fixture.number(PARTITIONS).await > 2, "and some are made ahead");
    fixture.run(&format!("alter table outbox_history_1000000000_1000086400 owner to {role}")).await;
    open(&format!("postgres://{role}@{address}"), store.options().clone()).await.maintain(100).await.unwrap();
    assert_eq!(fixture.number(&named("1000000000_1000086400")).await, 0);
}

/// Creating and dropping partitions locks the table exclusively for a moment. The store does not
/// wait for readers of the history: every settlement would queue up behind it.
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

    // The next attempt may succeed.
    run(&mut reader, "rollback").await;
    fixture.another().await.maintain(100).await.unwrap();
    assert!(fixture.number(PARTITIONS).await > 1);
}

/// A row in the default partition, delivered this many seconds from now.
fn rest(seconds: i64) -> String {
    format!(
        "insert into outbox_history (position, occurred_at, appended_at, delivered_at, schema_version, id, bucket, route, topic, order_key,
                                     event_type, content_type, headers, payload)
         values (1, 0, 0, outbox_now() + ({seconds})::bigint * 1000000, 1, gen_random_uuid(), 0, 'default', 'orders', 'a', 'x', 'text/plain', '', '')"
    )
}

const NOW: &str = "select outbox_now() / 1000000";
/// Returns true if there is a partition for a moment this many seconds from now.
fn has_partition(seconds: i64) -> String {
    format!(
        "select count(*) from pg_inherits i join pg_class c on c.oid = i.inhrelid
         where i.inhparent = 'outbox_history'::regclass and c.relname <> 'outbox_history_rest'
           and outbox_now() / 1000000 + {seconds} >= split_part(c.relname, '_', 3)::bigint
           and outbox_now() / 1000000 + {seconds} < split_part(c.relname, '_', 4)::bigint"
    )
}

/// Rows older than the first partition are in the default one, which is read from end to end for
/// each new partition, while deliveries wait.
#[tokio::test]
async fn the_first_partition_begins_within_seconds() {
    let Some(fixture) = Fixture::with(kept(Duration::from_secs(10 * 24 * 3_600))).await else { return };
    fixture.store.maintain(100).await.unwrap();
    let first = "select min(split_part(relname, '_', 3)::bigint) from pg_class where relname ~ '^outbox_history_[0-9]+_[0-9]+$'";
    let (first, now) = (fixture.number(first).await, fixture.number(NOW).await);
    assert!(first <= now + 5, "{first} is {} seconds ahead", first - now);
}

#[tokio::test]
async fn no_partition_is_made_while_the_default_one_is_large() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.run(&rest(-60)).await;
    let turn = |most: &str| {
        format!("select too_large::integer::bigint from outbox_turn_history(864000000000, {most})")
    };
    assert_eq!(fixture.number(&turn("0")).await, 1);
    assert_eq!(fixture.number(PARTITIONS).await, 1);
    for most in ["8192", "null"] {
        assert_eq!(fixture.number(&turn(most)).await, 0);
        assert!(fixture.number(PARTITIONS).await > 1);
    }
}

/// A clock that was ahead for a while, by a year and by a moment.
#[tokio::test]
async fn what_a_clock_left_in_the_future_keeps_no_partition_from_being_made() {
    let Some(fixture) = Fixture::with(kept(Duration::from_secs(10 * 24 * 3_600))).await else { return };
    const HOUR: i64 = 3_600;
    fixture.run(&rest(30 * HOUR)).await;
    for (from, to) in [(12 * HOUR, 20 * HOUR), (365 * 24 * HOUR, 366 * 24 * HOUR)] {
        let now = fixture.number(NOW).await;
        let (from, to) = (now + from, now + to);
        fixture
            .run(&format!(
                "create table outbox_history_{from}_{to} partition of outbox_history for values from ({from}000000) to ({to}000000)"
            ))
            .await;
    }
    fixture.store.maintain(100).await.unwrap();
    // Up to the existing one, in it, and behind it unless a row is in the way.
    for (hours, made) in [(1, 1), (13, 1), (21, 0), (45, 1)] {
        assert_eq!(fixture.number(&has_partition(hours * HOUR)).await, made, "in {hours} hours");
    }
}
