//! Bounds: of what one answer holds in memory (promise P6), and of how long one transaction keeps
//! others waiting.

use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::backend::{BucketSet, Due, DueRequest, RelayId};
use outbox_contract::{Admin, AdminExt, Route, Store, StoreErrorKind};
use outbox_store_mysql::MySqlStore;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Connection, Row};

use super::support::{append, both, both_with, fails, fetch, message, messages, options, relay, run};

async fn due(store: &MySqlStore, relay: RelayId, bytes: usize) -> Due {
    let mut request = DueRequest::new(Route::default(), relay, BucketSet::ALL);
    request.keys = 10;
    request.messages = 10;
    request.bytes = bytes;
    store.due(&request).await.unwrap()
}

/// Twenty failing keys with a large message each are no reason to hold twenty large messages at
/// once.
#[tokio::test]
async fn of_all_due_keys_one_message_alone_comes_whatever_it_has() {
    for fixture in both().await {
        let store = &fixture.store;
        let thousand = |key| message(key).with_payload(vec![b'7'; 1_000]);
        append(store, ["a", "b", "c"].map(thousand)).await;
        let relay = relay(store).await;
        for stored in messages(&fetch(store, relay).await) {
            store.transition(&[fails(relay, &[stored])]).await.unwrap();
        }
        for (bytes, keys) in [(1, 1), (1_999, 1), (2_000, 2), (3_000, 3)] {
            let due = due(store, relay, bytes).await;
            assert_eq!(due.keys.len(), keys, "within {bytes} bytes");
            assert!(due.keys.iter().all(|key| key.parked.len() == 1));
            assert_eq!(due.next, (keys < 3).then_some(Duration::ZERO), "the others are due as well");
        }
        // One that can't be read leaves its room to the next.
        fixture.run("update outbox_parked set event_type = '' order by position limit 1").await;
        assert_eq!(due(store, relay, 1).await.keys[0].parked.len(), 1);
    }
}

/// A key with very many parked messages is discarded in steps, between which a relay that parks
/// another one gets its turn: what is in the way of a later step is in the way of that one only,
/// and meanwhile the key is held.
#[tokio::test]
async fn a_long_key_is_discarded_in_steps() {
    let mut hasty = options();
    hasty.lock_timeout = Duration::from_secs(4);
    for fixture in both_with(hasty).await {
        let store = &fixture.store;
        append(store, (0..2_500).map(|_| message("long"))).await;
        let relay = relay(store).await;
        let mut request =
            outbox_contract::backend::FetchRequest::new(Route::default(), relay, BucketSet::ALL);
        request.limit = 2_500;
        let read = messages(&store.fetch(&request).await.unwrap());
        store.transition(&[fails(relay, &read)]).await.unwrap();
        let key = read[0].message.key_id();

        let mut holder = fixture.connection().await;
        let mut holder = holder.begin().await.unwrap();
        let last = read[2_499].position.0;
        run(&mut holder, &format!("select 1 from outbox_parked where route = 'default' and topic = 'orders' and order_key = 'long' and position = {last} for update")).await;
        let refused = store.discard(&Route::default(), &key).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Conflict, "{refused}");
        let listed = store.failing_keys(&Filter::all_routes()).await.unwrap();
        assert_eq!((listed[0].held, listed[0].parked), (true, 500));
        assert_eq!((listed[0].attempts, &listed[0].first_failure), (0, &None), "of one that has left");
        holder.rollback().await.unwrap();

        assert_eq!(store.discard(&Route::default(), &key).await.unwrap(), 500);
        assert_eq!(store.failing_keys(&Filter::all_routes()).await.unwrap(), []);
        let dead = "select count(distinct id) from outbox_dead where reason = 'discarded'";
        assert_eq!(fixture.number(dead).await, 2_500);
        assert_eq!(
            fixture.number("select entry from outbox_dead where attempts = 1").await,
            1,
            "the one that failed"
        );
    }
}

/// A page ends before it is too large to be held in memory; the next one goes on behind it.
#[tokio::test]
async fn a_page_of_large_messages_ends_before_its_limit() {
    for fixture in both().await {
        let store = &fixture.store;
        append(store, [message("a").with_payload(vec![7; 7 * 1024 * 1024])]).await;
        let relay = relay(store).await;
        store.transition(&[fails(relay, &messages(&fetch(store, relay).await))]).await.unwrap();
        // Ten of them, 70 MiB.
        for at in 1..10 {
            fixture
                .run(&format!(
                    "insert into outbox_parked select route, topic, order_key, position + {at}, stripe, number, id, `key`, event_type, schema_version, \
                     content_type, headers, payload, occurred_at, appended_at, parked_at from outbox_parked order by position limit 1"
                ))
                .await;
        }
        let mut filter = Filter::all_routes();
        let first = store.parked(&filter).await.unwrap();
        assert_eq!(first.len(), 9, "63 MiB");
        filter.offset = first.len();
        let rest = store.parked(&filter).await.unwrap();
        assert_eq!(rest.len(), 1);
        assert!(first.last().unwrap().position < rest[0].position);
        filter.offset += 1;
        assert_eq!(store.parked(&filter).await.unwrap(), []);
        filter = Filter { limit: Some(2), ..Filter::all_routes() };
        assert_eq!(store.parked(&filter).await.unwrap().len(), 2);
    }
}

/// Fills a route with empty messages of one stripe, oldest first: a multiple of 100.
fn fill(route: &str, rows: u32) -> String {
    format!(
        "insert into outbox_message (route, position, stripe, number, id, topic, event_type, appended_at)
         with recursive some (n) as (select 0 union all select n + 1 from some where n < 99)
         select '{route}', 1 + a.n + 100 * b.n, 0, 1 + a.n + 100 * b.n, unhex(lpad(hex(a.n + 100 * b.n), 32, '0')), 'orders', 'x', a.n
         from some a cross join (select x.n + 100 * y.n as n from some x cross join some y) b
         where b.n < {rows} / 100"
    )
}

/// Number of rows that a connection has read since `flush status`.
async fn reads(connection: &mut MySqlConnection, shown: &str) -> u64 {
    let status = format!("show session status like '{shown}'");
    let rows = sqlx::raw_sql(AssertSqlSafe(status)).fetch_all(connection).await.unwrap();
    let value = |row: &MySqlRow| row.try_get_unchecked::<String, _>(1).unwrap().parse::<u64>().unwrap();
    rows.iter().map(value).sum()
}

/// Rows have their payloads beside them, so reading one more often than needed is dear. MariaDB
/// does so for each mention of a common table expression.
#[tokio::test]
async fn the_backlog_reads_each_message_once() {
    for fixture in both().await {
        fixture.run(&fill("default", 1_000)).await;
        let mut connection = fixture.connection().await;
        let statement = include_str!("../../../src/queries/backlog.sql");
        // At first the server reads its own tables, too.
        for _ in ["first", "again"] {
            run(&mut connection, "flush status").await;
            let mut query = sqlx::query(statement).bind("default").bind("default").bind(600);
            query = query.bind("default").bind(600).bind("default");
            for _ in ["parked", "retrying", "held", "dead", "scheduled"] {
                query = query.bind("default").bind(600);
            }
            let row = query.bind(600).bind("default").fetch_one(&mut connection).await.unwrap();
            assert_eq!(row.try_get_unchecked::<i64, _>(0).unwrap(), 600);
        }
        let reads = reads(&mut connection, "Handler_read_next").await;
        assert!((500..700).contains(&reads), "{reads}");
    }
}

/// The check of a store is a part of each command of the program.
#[tokio::test]
async fn a_check_looks_at_the_ends_of_a_backlog() {
    for fixture in both().await {
        fixture.run(&fill("default", 101_000)).await;
        let counter = |number: u32| format!("update outbox_stripe set number = {number} where stripe = 0");
        fixture.run(&counter(101_000)).await;
        assert_eq!(fixture.store.misplaced().await.unwrap(), []);
        // Beyond what any count reads.
        fixture.run(&counter(100_500)).await;
        let misplaced = fixture.store.misplaced().await.unwrap();
        assert!(misplaced.len() == 1 && misplaced[0].text.contains("position 100501"), "{misplaced:?}");
        let statement = include_str!("../../../src/queries/below.sql");
        let mut connection = fixture.connection().await;
        run(&mut connection, "flush status").await;
        let query = sqlx::query(statement).bind("default").bind(50).bind("default").bind(50).bind("default");
        query.fetch_one(&mut connection).await.unwrap();
        let reads = reads(&mut connection, "Handler_read_next").await
            + reads(&mut connection, "Handler_read_prev").await;
        assert!(reads < 200, "{reads}");
    }
}

/// However much waits on served routes: the search for unserved ones walks over none of it.
#[tokio::test]
async fn routes_that_nobody_serves_are_found_without_walking_over_what_others_have() {
    for fixture in both().await {
        for (route, rows) in
            [("audit", 5_000), ("bills", 200), ("carts", 200), ("default", 5_000), ("zz", 200)]
        {
            fixture.run(&fill(route, rows)).await;
        }
        let serve = "insert into outbox_relay (route, relay, label, expires_at, lasts, fingerprint)
                     select r, repeat('r', 16), '', timestampdiff(microsecond, timestamp'1970-01-01 00:00:00', utc_timestamp(6)) + 3600000000, 3600000000, 0
                     from (select 'audit' as r union all select 'default') r";
        fixture.run(serve).await;
        let unserved = fixture.store.unserved(Duration::from_secs(60)).await.unwrap();
        let mut routes: Vec<&str> = unserved.iter().map(|unserved| unserved.route.as_str()).collect();
        routes.sort_unstable();
        assert_eq!(routes, ["bills", "carts", "zz"]);

        let mut connection = fixture.connection().await;
        let next = include_str!("../../../src/queries/unserved_next.sql");
        let end = vec![u8::MAX; 64];
        for (last, end, found) in [
            (&b""[..], &b"audit"[..], None),
            (b"audit", b"default", Some("bills")),
            (b"carts", b"default", None),
            (b"default", &end, Some("zz")),
            (b"zz", &end, None),
        ] {
            run(&mut connection, "flush status").await;
            let row = sqlx::query(next).bind(last).bind(end).fetch_optional(&mut connection).await.unwrap();
            let route: Option<Vec<u8>> = row.map(|row| row.try_get_unchecked(0).unwrap());
            assert_eq!(route.as_deref(), found.map(str::as_bytes));
            let reads = reads(&mut connection, "Handler_read%").await;
            assert!(reads <= 4, "{reads} rows between {last:?} and {end:?}");
        }
    }
}
