//! Query plans: rows that a statement scans, whatever the tables hold and whatever the server's
//! statistics say.

use outbox_contract::admin::Filter;
use outbox_contract::backend::View;
use outbox_contract::{Admin, Key, Store};
use outbox_store_sql::statements::newest_first;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use super::support::{Fixture, assert_fetches_walk, run};

/// The settings of the store's own connections.
pub(super) const PINNED: &str = "set enable_seqscan = off; set enable_bitmapscan = off; set jit = off; set plan_cache_mode = force_generic_plan";

/// The plan of a statement of the store, one line for each step.
async fn plan(connection: &mut PgConnection, statement: &str, arguments: &str) -> Vec<String> {
    run(connection, &format!("deallocate all; prepare s as {statement}")).await;
    let explain = format!("explain (costs off) execute s({arguments})");
    let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.try_get_unchecked::<String, _>(0).unwrap()).collect()
}

fn assert_has(plan: &[String], step: &str) {
    assert!(plan.iter().any(|line| line.contains(step)), "no {step} in {plan:#?}");
}

/// Asserts that no step reads a table from end to end.
fn assert_no_scan(plan: &[String]) {
    let scans = plan.iter().find(|line| line.contains("Seq Scan on outbox_"));
    assert!(scans.is_none(), "{plan:#?}");
}

const FETCH: &str = include_str!("../../../src/queries/fetch.sql");
const ARGUMENTS: &str = "'default', gen_random_uuid(), decode(repeat('ff', 32), 'hex'), null, null, 5000, 9223372036854775807, '{}', false, \
                         '{}', '{}', '{}', 1000, 8000, 256, 200000";

#[tokio::test]
async fn a_fetch_is_one_range_of_the_primary_key_and_sorts_nothing() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut connection = fixture.connection().await;
    run(&mut connection, PINNED).await;
    for rows in [0, 20_000] {
        let fill = format!(
            "insert into outbox_message (position, bucket, topic, key, event_type) \
             select nextval('outbox_message_position'), n % 256, 'orders', 'key-' || n, 'x' from generate_series(1, {rows}) n"
        );
        run(&mut connection, &fill).await;
        // Also with the statistics of an empty table, and of this one.
        for analyze in [false, true] {
            if analyze {
                run(&mut connection, "analyze outbox_message").await;
            }
            let plan = plan(&mut connection, FETCH, ARGUMENTS).await;
            assert_has(&plan, "Index Scan using outbox_message_pkey on outbox_message m");
            // Before PostgreSQL 17 the end is shown as a parameter, since then as the plan that it
            // comes from.
            assert_has(&plan, "Index Cond: ((\"position\" > $6) AND (\"position\" <= ");
            assert_no_scan(&plan);
            assert!(!plan.iter().any(|line| line.contains("Sort")), "{plan:#?}");
        }
    }
}

/// Waiting messages are listed from either end along the primary key, which stops behind the page.
#[tokio::test]
async fn a_page_of_what_waits_reads_no_more_than_the_page() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut connection = fixture.connection().await;
    run(&mut connection, PINNED).await;
    let fill = "insert into outbox_message (position, bucket, topic, key, event_type) \
                select nextval('outbox_message_position'), n % 256, 'orders', 'key-' || n, 'x' from generate_series(1, 20000) n; \
                analyze outbox_message";
    run(&mut connection, fill).await;
    let arguments = "'default', null, null, null, null, null, 100, 0, 1000000, null, 10000";
    let list = include_str!("../../../src/queries/browse_waiting.sql");
    for (statement, way) in [
        (list.to_owned(), "Index Scan using outbox_message_pkey"),
        (newest_first(list), "Index Scan Backward using outbox_message_pkey"),
    ] {
        run(&mut connection, &format!("deallocate all; prepare s as {statement}")).await;
        let explain = format!("explain (analyze, costs off, timing off, summary off) execute s({arguments})");
        let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut connection).await.unwrap();
        let plan: Vec<String> = rows.iter().map(|row| row.try_get_unchecked(0).unwrap()).collect();
        assert_no_scan(&plan);
        let walks: Vec<&String> = plan.iter().filter(|line| line.contains(way)).collect();
        assert!(!walks.is_empty(), "no {way} in {plan:#?}");
        let counts = plan.iter().filter_map(|line| line.split_once("actual rows=")?.1.split(' ').next());
        let most = counts.filter_map(|count| count.parse::<f64>().ok()).fold(0.0, f64::max);
        assert!(most <= 100.0, "a step reads {most} rows: {plan:#?}");
    }
}

/// Dead rows below the cursor are not scanned.
#[tokio::test]
async fn a_fetch_reads_no_more_pages_with_many_dead_rows_below_its_cursor() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut connection = fixture.connection().await;
    run(&mut connection, PINNED).await;
    // An old snapshot, so that no dead row can be cleaned up.
    let mut snapshot = fixture.connection().await;
    run(&mut snapshot, "begin isolation level repeatable read; select count(*) from outbox_message").await;
    run(
        &mut connection,
        "insert into outbox_message (position, bucket, topic, key, event_type) \
         select nextval('outbox_message_position'), n % 256, 'orders', 'key-' || n, 'x' from generate_series(1, 50000) n; \
         delete from outbox_message where position <= 49000",
    )
    .await;
    super::support::relay(&fixture.store).await;
    let relay = super::support::text(fixture.store.pool(), "select relay::text from outbox_relay").await;
    run(&mut connection, &format!("deallocate all; prepare s as {FETCH}")).await;
    let arguments = ARGUMENTS.replace("gen_random_uuid()", &format!("'{relay}'")).replace("5000", "49000");
    let explain =
        format!("explain (analyze, buffers, costs off, timing off, summary off) execute s({arguments})");
    let rows = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_all(&mut connection).await.unwrap();
    let plan: Vec<String> = rows.iter().map(|row| row.try_get_unchecked(0).unwrap()).collect();
    let pages: u64 = plan
        .iter()
        .skip_while(|line| !line.contains("Index Scan using outbox_message_pkey"))
        .find_map(|line| line.split_once("shared hit=")?.1.split_whitespace().next()?.parse().ok())
        .unwrap();
    // A thousand rows are on some thirty pages of the table and of the index.
    assert!(pages < 200, "{pages} pages: {plan:#?}");
}

#[tokio::test]
async fn settling_finds_each_row_by_the_primary_key() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut connection = fixture.connection().await;
    run(&mut connection, PINNED).await;
    for statement in [
        include_str!("../../../src/queries/settle.sql"),
        include_str!("../../../src/queries/settle_history.sql"),
    ] {
        let plan = plan(&mut connection, statement, "'{1}', array[gen_random_uuid()]").await;
        assert_has(&plan, "Index Scan using outbox_message_pkey on outbox_message m");
        // All positions in one scan, and the id of each at its place, without a list of pairs.
        assert_has(&plan, "Index Cond: (\"position\" = ANY ($1))");
        assert_has(&plan, "Filter: (id = ($2)[width_bucket(\"position\", $1)])");
        assert!(!plan.iter().any(|line| line.contains("SubPlan")), "{plan:#?}");
        assert_no_scan(&plan);
    }
}

#[tokio::test]
async fn what_is_due_is_found_by_an_index() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut connection = fixture.connection().await;
    run(&mut connection, PINNED).await;
    let due = include_str!("../../../src/queries/due_keys.sql");
    let due = plan(
        &mut connection,
        due,
        "'default', gen_random_uuid(), '\\x00', '{}', '{}', false, '{}', '{}', '{}', 10, 10, 0",
    )
    .await;
    assert_has(&due, "outbox_key_due");
    assert_has(&due, "outbox_parked_key");
    assert_no_scan(&due);
    fixture.store.check().await.unwrap();
}

/// On the user's connection, with the user's settings, and with a plan that is made while nothing
/// has been handled yet, and kept.
#[tokio::test]
async fn what_waits_in_front_of_a_message_is_found_by_indexes_however_much_was_handled() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut connection = fixture.connection().await;
    run(&mut connection, "set plan_cache_mode = force_generic_plan").await;
    let id = "gen_random_uuid()";
    for (statement, arguments) in [
        (
            include_str!("../../../src/queries/deduplicate.sql"),
            "'c', 'inbox/c', '{}', '{}', '{}', '{}'".to_owned(),
        ),
        (
            include_str!("../../../src/queries/deduplicate_single.sql"),
            format!("'c', 'inbox/c', {id}, 't', 'k', 'k'"),
        ),
        (
            include_str!("../../../src/queries/deduplicate_first.sql"),
            format!("'c', 'inbox/c', 't', 'k', 'k', {id}"),
        ),
    ] {
        let plan = plan(&mut connection, statement, &arguments).await;
        assert_has(&plan, "using outbox_message_inbox");
        assert_has(&plan, "using outbox_key_pkey on outbox_key k");
        assert_has(&plan, "Index Cond: ((consumer = $1) AND (id = m.id))");
        assert_no_scan(&plan);
    }
}

/// However many keys fail, a page of them reads those of the page.
#[tokio::test]
async fn a_list_of_failing_keys_is_read_along_an_index() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.run(FAILING_KEYS).await;
    let mut connection = fixture.connection().await;
    run(&mut connection, "update outbox_key set since = version").await;
    run(&mut connection, "analyze outbox_key; set plan_cache_mode = force_generic_plan").await;
    let list = include_str!("../../../src/queries/browse_keys.sql");
    let list = plan(&mut connection, list, "null, null, null, null, null, null, 50, 0").await;
    assert_has(&list, "using outbox_key_since on outbox_key k");
}

/// However many dead letters there are, those of one key are found by it.
#[tokio::test]
async fn dead_letters_of_a_key_are_found_by_an_index() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture
        .run(
            "insert into outbox_dead (position, id, route, bucket, topic, order_key, event_type, schema_version, content_type, headers, payload, \
                                      occurred_at, appended_at, reason, attempts, died_at) \
             select n, gen_random_uuid(), 'default', 0, 'orders', 'key-' || n, 'x', 1, 't', '', '', 0, 0, 'exhausted', 1, n \
             from generate_series(1, 20000) n; analyze outbox_dead",
        )
        .await;
    let mut connection = fixture.connection().await;
    let list = include_str!("../../../src/queries/browse_dead.sql");
    let arguments = "'default', 'orders', 'key-7', null, null, null, 50, 0, 1000000, null";
    let list = plan(&mut connection, list, arguments).await;
    assert_has(
        &list,
        "Index Cond: ((route = 'default'::text) AND (topic = 'orders'::text) AND (order_key = 'key-7'::text))",
    );
}

/// However many keys fail, the measurement looks at none by itself, and scans none to find those
/// that are held.
#[tokio::test]
async fn a_measurement_finds_what_it_counts_at_the_head_of_an_index() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut connection = fixture.connection().await;
    run(&mut connection, PINNED).await;
    let statement = include_str!("../../../src/queries/backlog.sql");
    let backlog = plan(&mut connection, statement, "'default', 10000, 9223372036854775807").await;
    assert_has(&backlog, "Index Scan using outbox_parked_route on outbox_parked p");
    assert_has(&backlog, "using outbox_key_held on outbox_key k");
    let statement = include_str!("../../../src/queries/topics.sql");
    let topics = plan(&mut connection, statement, "'default', 10000").await;
    assert_has(&topics, "Index Scan using outbox_parked_route on outbox_parked p");
    assert_has(&topics, "using outbox_key_held on outbox_key k");
    assert_no_scan(&topics);
}

/// Fills the tables with 60,000 failing keys of one message each.
const FAILING_KEYS: &str = "insert into outbox_key (route, topic, key, bucket, version, next_attempt_at, since)
    select 'default', 'orders', 'key-' || n, n % 256, n, 0, 0 from generate_series(1, 60000) n;
    insert into outbox_parked (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers,
                               payload, occurred_at, appended_at, parked_at)
    select n, gen_random_uuid(), 'default', n % 256, 'orders', 'key-' || n, 'key-' || n, 'x', 1, 'text/plain', '', '', 0, n, 0
    from generate_series(1, 60000) n";

/// A page about one key reads that key and its messages, however many others fail.
#[tokio::test]
async fn a_key_is_looked_at_without_reading_others() {
    let Some(fixture) = Fixture::new().await else { return };
    let figure = |of: &str| {
        format!(
            "select coalesce(sum({of}), 0)::bigint from pg_stat_user_tables where relname in ('outbox_key', 'outbox_parked')"
        )
    };
    let (scans, rows) = (figure("seq_scan + idx_scan"), figure("seq_tup_read + idx_tup_fetch"));
    let key = Some(Key::new("key-7").unwrap());
    let filter = Filter::route("default").unwrap().with_topic("orders").unwrap();
    let filter = Filter { key, limit: Some(20), ..filter };
    fixture.run(FAILING_KEYS).await;
    // With the statistics of empty tables, and of these.
    for analyze in ["", "analyze outbox_key, outbox_parked"] {
        fixture.run(analyze).await;
        let store = fixture.another().await;
        let before = (fixture.number(&scans).await, fixture.number(&rows).await);
        assert_eq!(store.failing_keys(&filter).await.unwrap().len(), 1);
        assert_eq!(store.browse(View::Parked, &filter).await.unwrap().len(), 1);
        // A session reports what it has read at its end.
        drop(store);
        fixture.until(&scans, before.0 + 2).await;
        let read = fixture.number(&rows).await - before.1;
        assert!(read < 100, "{read} rows are read for one key");
    }
}

/// A measurement scans a limited number of rows of each kind, however many there are.
#[tokio::test]
async fn a_measurement_is_bounded_however_many_keys_fail() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.run(FAILING_KEYS).await;
    let mut connection = fixture.connection().await;
    run(
        &mut connection,
        &format!(
            "{PINNED}; begin; deallocate all; prepare s as {}",
            include_str!("../../../src/queries/backlog.sql")
        ),
    )
    .await;
    run(&mut connection, "execute s('default', 10000, 9223372036854775807)").await;
    let entries = "select sum(pg_stat_get_xact_tuples_returned(i.indexrelid))::bigint from pg_index i
                   where i.indrelid in ('outbox_key'::regclass, 'outbox_parked'::regclass)";
    let entries = super::support::number(&mut connection, entries).await;
    // Parked messages, keys that are tried again, keys that are held, and the buckets of them all.
    assert!(entries <= 45_000, "{entries} entries of indexes");
    let backlog = fixture.store.backlog(&Default::default()).await.unwrap();
    assert_eq!((backlog.parked, backlog.retrying_keys), (60_000, 60_000));
    assert!(backlog.oldest_age.is_some_and(|age| age > std::time::Duration::from_secs(3_600)), "{backlog:?}");
}

/// However many messages wait on served routes: the search scans a limited number of rows of the
/// hot table, and one parked row for each route.
#[tokio::test]
async fn routes_that_nobody_serves_are_found_without_walking_over_what_others_have() {
    let Some(fixture) = Fixture::new().await else { return };
    let served = "insert into outbox_relay (route, relay, label, expires_at, lasts, fingerprint)
                  select r, gen_random_uuid(), 'test', outbox_now() + 3600000000, 3600000000, 0 from unnest(array['default', 'b', 'd']) r";
    fixture.run(served).await;
    let fill = |route: &str, from: u32, rows: u32| {
        format!(
            "insert into outbox_message (position, bucket, route, topic, key, event_type, appended_at)
             select {from} + n, 0, '{route}', 'orders', 'key-' || n, 'x', n from generate_series(1, {rows}) n;
             insert into outbox_parked (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers,
                                        payload, occurred_at, appended_at, parked_at)
             select {from} + n, gen_random_uuid(), '{route}', 0, 'orders', 'key-' || n, 'key-' || n, 'x', 1, 'text/plain', '', '', 0, n, 0
             from generate_series(1, {rows}) n"
        )
    };
    let rows = [("default", 50_000), ("b", 20_000), ("c", 3), ("d", 20_000), ("e", 3)];
    for (at, (route, rows)) in (0..).zip(rows) {
        fixture.run(&fill(route, at * 100_000, rows)).await;
    }
    let mut connection = fixture.connection().await;
    let statement = include_str!("../../../src/queries/unserved.sql");
    // Also with the statistics of empty tables, and of these.
    for analyze in ["", "analyze outbox_message, outbox_parked"] {
        run(&mut connection, PINNED).await;
        run(&mut connection, analyze).await;
        let plan = plan(&mut connection, statement, "10000, 0, 1000").await;
        assert_has(&plan, "Index Scan using outbox_message_pkey on outbox_message m");
        assert_has(&plan, "Index Cond: (\"position\" > $2)");
        assert_has(&plan, "using outbox_parked_route on outbox_parked p");
        assert_no_scan(&plan);

        let entries =
            "select coalesce(sum(pg_stat_get_xact_tuples_returned(i.indexrelid)), 0)::bigint from pg_index i
                       where i.indrelid in ('outbox_message'::regclass, 'outbox_parked'::regclass)";
        // In one transaction, in which the counts are not reset.
        run(&mut connection, "begin").await;
        let before = super::support::number(&mut connection, entries).await;
        let found = sqlx::raw_sql("execute s(10000, 0, 1000)").fetch_all(&mut connection).await.unwrap();
        let entries = super::support::number(&mut connection, entries).await - before;
        run(&mut connection, "commit").await;
        let found: Vec<(Option<String>, Option<i64>)> = found
            .iter()
            .map(|row| (row.try_get_unchecked(0).unwrap(), row.try_get_unchecked(1).unwrap()))
            .collect();
        let expected = [Some("c"), Some("e"), None].map(|route| (route.map(str::to_owned), route.map(|_| 1)));
        assert_eq!(found, expected, "what is parked is found by its index");
        assert!(entries <= 10_100, "{entries} entries of indexes");
    }
}

/// Unserved messages are scanned again each time, and so are new ones; rows that served routes have
/// passed are not.
#[tokio::test]
async fn a_look_for_routes_that_nobody_serves_begins_where_the_last_one_had_to() {
    let Some(fixture) = Fixture::new().await else { return };
    super::support::relay(&fixture.store).await;
    let append = |position: u32, route: &str| {
        format!(
            "insert into outbox_message (position, bucket, route, topic, key, event_type, appended_at)
             values ({position}, 0, '{route}', 'orders', 'a', 'x', 0)"
        )
    };
    let through =
        |position: u32| format!("update outbox_lease set low_water = {position} where route = 'default'");
    let look = async || {
        let unserved = fixture.store.unserved(std::time::Duration::ZERO).await.unwrap();
        let mut routes: Vec<String> = unserved.into_iter().map(|unserved| unserved.route.into()).collect();
        routes.sort();
        routes
    };
    fixture.run(&append(10, "default")).await;
    assert_eq!(look().await, [""; 0]);
    fixture.run(&format!("{}; {}", append(20, "attic"), through(30))).await;
    for _ in 0..3 {
        assert_eq!(look().await, ["attic"], "however far the relay is meanwhile");
    }
    fixture.run(&format!("delete from outbox_message where position = 20; {}", append(40, "bills"))).await;
    assert_eq!(look().await, ["bills"]);
    fixture.run(&format!("delete from outbox_message where position = 40; {}", through(50))).await;
    assert_eq!(look().await, [""; 0]);
    // No position is that late: this shows where the next search began.
    fixture.run(&append(45, "late")).await;
    assert_eq!(look().await, [""; 0], "nothing is walked over again");
    fixture.run(&append(51, "carts")).await;
    assert_eq!(look().await, ["carts"]);
    assert_eq!(
        fixture.another().await.unserved(std::time::Duration::ZERO).await.unwrap().len(),
        2,
        "the first look is whole"
    );
}

/// A route begins to be read behind a backlog of other routes of any size: no fetch scans all of
/// it, and each continues where the one before it stopped.
#[tokio::test]
async fn a_fetch_walks_over_so_many_positions_and_the_next_one_goes_on_from_there() {
    let Some(fixture) = Fixture::new().await else { return };
    let rows = "insert into outbox_message (position, bucket, route, topic, key, event_type)
                values (1, 0, 'other', 'orders', 'a', 'x'), (3, 0, 'other', 'orders', 'a', 'x'), (900000, 0, 'other', 'orders', 'a', 'x'),
                       (1100001, 1, 'default', 'orders', 'a', 'x'), (1300001, 1, 'default', 'orders', 'a', 'x')";
    fixture.run(rows).await;
    assert_fetches_walk(&fixture.store).await;
}
