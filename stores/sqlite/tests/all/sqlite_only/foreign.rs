//! Programs in other languages: plain SQL is all they need, and their invalid rows delay no other
//! messages.

use outbox_contract::admin::{Edit, Filter};
use outbox_contract::backend::{Bucket, FetchedRow};
use outbox_contract::{
    Admin, AppendSql, Key, Message, MessageId, Outgoing, Store, StoreErrorKind, Timestamp,
};
use outbox_store_sqlite::SqliteStore;
use sqlx::Row;

use super::support::{Fixture, append, due_request, fetch, message, messages, relay};

async fn insert(store: &SqliteStore, columns: &'static str, values: &str) -> Result<(), sqlx::Error> {
    let statement = format!("insert into outbox_message ({columns}) values ({values})");
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(store.pool()).await.map(drop)
}

#[tokio::test]
async fn four_columns_are_enough() {
    let fixture = Fixture::new().await;
    insert(
        &fixture.store,
        "topic, key, event_type, payload",
        "'orders', 'order-1', 'order.placed', '{\"a\":1}'",
    )
    .await
    .unwrap();
    let relay = relay(&fixture.store).await;
    let fetched = messages(&fetch(&fixture.store, relay).await);
    let stored = &fetched[0];
    assert_eq!(stored.bucket, Bucket(62));
    assert_eq!((stored.message.topic.as_str(), &*stored.message.event_type), ("orders", "order.placed"));
    assert_eq!(stored.message.key, Some(Key::new("order-1").unwrap()));
    assert_eq!((&*stored.message.content_type, stored.message.schema_version), ("application/json", 1));
    assert_eq!(&stored.message.payload[..], br#"{"a":1}"#);
    let age = outbox_contract::Timestamp::now().since(stored.appended_at);
    assert!(age < std::time::Duration::from_secs(60), "{age:?}");
}

/// By the statement of the book.
#[tokio::test]
async fn a_due_time_is_enough_to_schedule_a_message() {
    let page = include_str!("../../../../../book/src/sqlite.md");
    let (_, statement) = page.split_once("```sql\ninsert into outbox_scheduled").unwrap();
    let statement = format!("insert into outbox_scheduled{}", statement.split("```").next().unwrap());
    let fixture = Fixture::new().await;
    for statement in [statement.as_str(), &statement.replace("+ 3600000000", "- 1")] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement.to_owned())).execute(fixture.store.pool()).await.unwrap();
    }
    let done = fixture.store.maintain(100).await.unwrap();
    assert_eq!(done.promoted, 1, "the one that is due");
    let hour = std::time::Duration::from_secs(3_600);
    let due = done.next_due.unwrap();
    assert!(due <= hour && due > hour / 2, "{due:?}");
    let relay = relay(&fixture.store).await;
    let fetched = messages(&fetch(&fixture.store, relay).await);
    assert_eq!(fetched.len(), 1);
    assert_eq!((&*fetched[0].message.event_type, fetched[0].bucket), ("order.reminded", Bucket(62)));
}

#[tokio::test]
async fn a_message_without_key_and_bucket_is_placed_by_its_id() {
    let fixture = Fixture::new().await;
    insert(&fixture.store, "topic, event_type", "'orders', 'order.placed'").await.unwrap();
    let relay = relay(&fixture.store).await;
    let fetched = messages(&fetch(&fixture.store, relay).await);
    assert_eq!(fetched[0].bucket, fetched[0].message.bucket());
}

#[tokio::test]
async fn a_key_keeps_its_order_whoever_writes_it() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let relay = relay(store).await;
    for round in 0..3 {
        append(store, [message("a", &format!("{round}.1"))]).await;
        let text = format!("'orders', 'a', 'order.placed', '{round}.2'");
        insert(store, "topic, key, event_type, payload", &text).await.unwrap();
        append(store, [message("a", &format!("{round}.3"))]).await;
    }
    let texts: Vec<String> = messages(&fetch(store, relay).await)
        .iter()
        .map(|stored| String::from_utf8(stored.message.payload.to_vec()).unwrap())
        .collect();
    assert_eq!(texts, ["0.1", "0.2", "0.3", "1.1", "1.2", "1.3", "2.1", "2.2", "2.3"]);
}

/// No row behind a row without a bucket is read before that row has one, however small the limit.
#[tokio::test]
async fn a_row_without_a_bucket_is_not_overtaken() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    insert(store, "topic, key, event_type, payload", "'orders', 'a', 'order.placed', '1'").await.unwrap();
    append(store, [message("a", "2")]).await;
    let relay = relay(store).await;
    let mut request = outbox_contract::backend::FetchRequest::new(
        Default::default(),
        relay,
        outbox_contract::backend::BucketSet::ALL,
    );
    request.limit = 1;
    let first = messages(&store.fetch(&request).await.unwrap());
    assert_eq!(first[0].position.0, 1);
}

#[tokio::test]
async fn many_rows_without_a_bucket_are_all_read_in_order() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    sqlx::raw_sql(
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 2500)
         insert into outbox_message (topic, key, event_type, payload) select 'orders', 'k' || (i % 7), 'e', i from n",
    )
    .execute(store.pool())
    .await
    .unwrap_err();
    sqlx::raw_sql(
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 2500)
         insert into outbox_message (topic, key, event_type, payload)
         select 'orders', 'k' || (i % 7), 'e', cast(i as text) from n",
    )
    .execute(store.pool())
    .await
    .unwrap();
    append(store, [message("k1", "last")]).await;
    let relay = relay(store).await;
    let mut request = outbox_contract::backend::FetchRequest::new(
        Default::default(),
        relay,
        outbox_contract::backend::BucketSet::ALL,
    );
    let mut read = 0;
    loop {
        let fetched = store.fetch(&request).await.unwrap();
        for stored in messages(&fetched) {
            read += 1;
            assert_eq!(stored.position.0, read);
            request.after = stored.position;
        }
        if !fetched.full {
            break;
        }
    }
    assert_eq!(read, 2501);
}

#[tokio::test]
async fn what_can_be_no_message_is_refused_where_it_is_written() {
    let fixture = Fixture::new().await;
    for (columns, values, constraint) in [
        ("topic, event_type", "'', 'e'", "topic_is_text_of_1_to_249_bytes"),
        ("topic, event_type", "'t', ''", "event_type_is_text_of_1_to_255_bytes"),
        ("topic, event_type, key", "'t', 'e', ''", "key_is_null_or_text_of_1_to_255_bytes"),
        ("topic, event_type, key", "'t', 'e', replace(hex(zeroblob(64)), '00', 'éé')", "key_is_null"),
        ("topic, event_type, key", "'t', 'e', x'61'", "key_is_null_or_text"),
        ("topic, event_type, payload", "'t', 'e', 5", "payload_is_text_or_a_blob"),
        (
            "topic, event_type, id",
            "'t', 'e', '0190b6a0-0000-7000-8000-000000000000'",
            "id_is_a_uuid_of_16_bytes",
        ),
        ("topic, event_type, bucket", "'t', 'e', 256", "bucket_is_null_or_0_to_255"),
        ("topic, event_type, schema_version", "'t', 'e', 0", "schema_version_counts_from_1"),
        ("topic, event_type, occurred_at", "'t', 'e', '2026-11-21'", "occurred_at_is_in_microseconds"),
        (
            "topic, event_type, payload",
            "'t', 'e', zeroblob(15728641)",
            "payload_is_text_or_a_blob_of_at_most_15_mib",
        ),
        (
            "topic, event_type, payload",
            "'t', 'e', replace(hex(zeroblob(4194304)), '00', 'éé')",
            "payload_is_text",
        ),
        (
            "topic, event_type, payload",
            "'t', 'e', 'x' || char(0) || replace(hex(zeroblob(10485760)), '00', 'xx')",
            "payload_is_text_or_a_blob_of_at_most_15_mib",
        ),
        ("topic, event_type, route", "'t', 'e', ''", "route_is_text_of_1_to_64_bytes"),
        ("topic, event_type, position", "'t', 'e', -5", "position_is_given_by_the_database"),
        ("topic, event_type", "'t' || char(10), 'e'", "topic_has_no_control_characters"),
        ("topic, event_type", "'t', 'e' || char(127)", "event_type_has_no_control_characters"),
        ("topic, event_type, key", "'t', 'e', 'a' || char(133)", "key_has_no_control_characters"),
        ("topic, event_type, key", "'t', 'e', 'a' || char(10)", "key_has_no_control_characters"),
        ("topic, event_type, key", "'t', 'e', 'a' || char(0) || 'b'", "key_has_no_control_characters"),
        ("topic, event_type, content_type", "'t', 'e', char(9)", "content_type_has_no_control_characters"),
        ("topic, event_type, route", "'t', 'e', char(31)", "route_has_no_control_characters"),
        ("topic, event_type, headers", "'t', 'e', '[1]'", "headers_are_a_json_object"),
        ("topic, event_type, occurred_at", "'t', 'e', 253402300800000000", "occurred_at_is_in_microseconds"),
    ] {
        let error = insert(&fixture.store, columns, values).await.unwrap_err().to_string();
        assert!(error.contains(constraint), "{columns} {values}: {error}");
    }
}

/// A scheduled message that could not join its key would delay all that are due behind it.
#[tokio::test]
async fn what_can_be_no_message_is_not_scheduled() {
    let fixture = Fixture::new().await;
    let columns = "due_at, id, route, topic, key, event_type, schema_version, content_type, headers, payload";
    for (values, constraint) in [
        ("'r', 't', char(10), 'e', 1, 'c', '', ''", "key_has_no_control_characters"),
        ("'r', '', 'k', 'e', 1, 'c', '', ''", "topic_is_text_of_1_to_249_bytes"),
        ("'r', 't', 'k', 'e', 0, 'c', '', ''", "schema_version_counts_from_1"),
        ("'r', 't', 'k', 'e', 1, 'c', '[1]', ''", "headers_are_a_json_object"),
    ] {
        let statement =
            format!("insert into outbox_scheduled ({columns}) values (0, randomblob(16), {values})");
        let refused =
            sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(fixture.store.pool()).await.unwrap_err();
        assert!(refused.to_string().contains(constraint), "{values}: {refused}");
    }
}

/// The size of a text is its bytes, including NUL.
#[tokio::test]
async fn a_text_with_nul_in_it_is_measured_whole() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    for _ in 0..3 {
        let text = "'orders', 'a', 'e', 'x' || char(0) || replace(hex(zeroblob(500000)), '00', 'xx')";
        insert(store, "topic, key, event_type, payload", text).await.unwrap();
    }
    let relay = relay(store).await;
    let mut request = outbox_contract::backend::FetchRequest::new(
        Default::default(),
        relay,
        outbox_contract::backend::BucketSet::ALL,
    );
    request.bytes = 2_500_000;
    let fetched = store.fetch(&request).await.unwrap();
    let sizes: Vec<usize> = messages(&fetched).iter().map(|stored| stored.message.payload.len()).collect();
    assert_eq!((sizes, fetched.full), (vec![1_000_002, 1_000_002], true));
}

#[tokio::test]
async fn a_row_that_is_no_message_is_malformed_and_holds_nobody_up() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    let columns = "topic, key, event_type, headers, bucket";
    for (values, reason) in [
        ("'orders', 'a', 'e', '{1}', null", "headers are not a JSON object of strings"),
        ("'orders', 'a', 'e', '{\"b\":1}', null", "headers are not a JSON object of strings"),
        ("'orders', 'a', 'e', '{\"b\":\"\\n\"}', null", "control character"),
        ("'orders', cast(x'ff' as text), 'e', '', null", "not UTF-8"),
        ("'orders', 'order-1', 'e', '', 63", "its bucket is 63, but its topic and key give 62"),
    ] {
        insert(store, columns, values).await.unwrap();
        append(store, [message("a", "good")]).await;
        let relay = relay(store).await;
        let fetched = fetch(store, relay).await;
        let [FetchedRow::Malformed(row, said), FetchedRow::Message(good)] = &fetched.rows[..] else {
            panic!("{values}: {fetched:?}");
        };
        assert!(said.contains(reason), "{values}: {said}");
        bury(store, relay, row, said).await;
        store.settle(&Default::default(), &[good.row()]).await.unwrap();
        assert!(fetch(store, relay).await.rows.is_empty(), "{values}");
        let dead = outbox_contract::AdminExt::dead_letters(store, &Filter::all_routes()).await.unwrap();
        assert_eq!((dead.len(), dead[0].stored.message.id), (1, row.at.id));
        outbox_contract::Admin::purge(store, &Filter::all_routes()).await.unwrap();
        store.give_back(relay, &Default::default(), &[], &Default::default(), true).await.unwrap();
    }
}

/// Buries a malformed row, as a relay does.
async fn bury(
    store: &SqliteStore,
    relay: outbox_contract::backend::RelayId,
    row: &outbox_contract::backend::Waiting,
    reason: &str,
) {
    let leased = super::support::lease(store, relay).await;
    let failure = outbox_contract::Failure::new("malformed", reason);
    let transition = outbox_contract::backend::KeyTransition::new(
        Default::default(),
        relay,
        (row.bucket, leased.leases[usize::from(row.bucket.0)].epoch),
        row.key.clone(),
        None,
        outbox_contract::backend::Step::Bury {
            discard: false,
            row: row.at,
            reason: "malformed",
            attempts: 1,
            first: failure.clone(),
            last: failure,
        },
    );
    let answer = store.transition(&[transition]).await.unwrap();
    assert_eq!(answer, [outbox_contract::backend::Transitioned::Done(None)]);
}

#[tokio::test]
async fn a_message_that_died_of_a_wrong_bucket_is_well_when_requeued() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    insert(store, "topic, key, event_type, bucket", "'orders', 'order-1', 'e', 63").await.unwrap();
    let relay = relay(store).await;
    let fetched = fetch(store, relay).await;
    let FetchedRow::Malformed(row, said) = &fetched.rows[0] else { panic!("{fetched:?}") };
    bury(store, relay, row, said).await;
    assert_eq!(outbox_contract::AdminExt::requeue(store, &Filter::all_routes()).await.unwrap(), 1);
    assert_eq!(messages(&fetch(store, relay).await)[0].message.id, row.at.id);
}

/// The users' own tables can write messages by a trigger.
#[tokio::test]
async fn a_trigger_of_the_users_can_append() {
    let fixture = Fixture::new().await;
    sqlx::raw_sql(
        "create table orders (id text primary key, total integer);
         create trigger orders_placed after insert on orders begin
             insert into outbox_message (topic, key, event_type, payload)
             values ('orders', new.id, 'order.placed', json_object('total', new.total));
         end;
         insert into orders values ('order-1', 42);",
    )
    .execute(fixture.store.pool())
    .await
    .unwrap();
    let relay = relay(&fixture.store).await;
    assert_eq!(&messages(&fetch(&fixture.store, relay).await)[0].message.payload[..], br#"{"total":42}"#);
}

/// Positions are the order of commits only as long as none comes back: also after everything was
/// settled, and in another process.
#[tokio::test]
async fn positions_do_not_come_back_in_a_file_that_is_opened_again() {
    let fixture = Fixture::new().await;
    append(&fixture.store, (0..5).map(|n| message("a", &n.to_string()))).await;
    let relay = relay(&fixture.store).await;
    let rows: Vec<_> =
        messages(&fetch(&fixture.store, relay).await).iter().map(|stored| stored.row()).collect();
    fixture.store.settle(&Default::default(), &rows).await.unwrap();
    fixture.store.pool().close().await;

    let again = SqliteStore::open(fixture.path()).await.unwrap();
    append(&again, [message("a", "next")]).await;
    assert_eq!(messages(&fetch(&again, relay).await)[0].position.0, 6);
}

#[tokio::test]
async fn the_migrations_can_be_run_by_another_tool() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("outbox.db")).await.unwrap();
    for migration in SqliteStore::migrations() {
        sqlx::raw_sql(migration.sql).execute(store.pool()).await.unwrap();
    }
    store.check().await.unwrap();
    store.migrate().await.unwrap();
    let row = sqlx::query("select count(*), max(version) from outbox_schema")
        .fetch_one(store.pool())
        .await
        .unwrap();
    assert_eq!((row.get::<i64, _>(0), row.get::<i64, _>(1)), (1, 1), "migrate found them there");
    append(&store, [message("a", "1").with_id(MessageId::new())]).await;
}

/// Its key waits for an operator, and delays no other key.
#[tokio::test]
async fn a_parked_row_that_is_no_message_takes_no_room_from_other_keys() {
    let fixture = Fixture::new().await;
    for (at, key, headers) in [(1, "a", "[1]"), (2, "b", ""), (3, "c", "")] {
        let bucket = Bucket::of("orders", key);
        let park = format!(
            "insert into outbox_key (route, topic, key, bucket, version, next_attempt_at, since)
             values ('default', 'orders', '{key}', {bucket}, {at}, {at}, 0);
             insert into outbox_parked (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type,
                                        headers, payload, occurred_at, appended_at, parked_at)
             values ({at}, randomblob(16), 'default', {bucket}, 'orders', '{key}', '{key}', 'x', 1, 'text/plain',
                     '{headers}', zeroblob(1000), 0, 0, 0)"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(park)).execute(fixture.store.pool()).await.unwrap();
    }
    let mut request = due_request(relay(&fixture.store).await);
    for bytes in [1, 1_500] {
        request.bytes = bytes;
        let due = fixture.store.due(&request).await.unwrap();
        let keys: Vec<_> = due.keys.iter().map(|due| due.key.key.as_str()).collect();
        assert_eq!((keys, due.next), (vec!["b"], Some(std::time::Duration::ZERO)), "{bytes} bytes");
    }
}

/// A malformed message that could never be sent is sent when it is corrected.
#[tokio::test]
async fn a_dead_letter_that_was_no_message_is_corrected() {
    let fixture = Fixture::new().await;
    sqlx::raw_sql(
        "insert into outbox_dead (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, \
         payload, occurred_at, appended_at, reason, attempts, died_at) \
         values (1, randomblob(16), 'default', 7, 'orders', 'a' || char(10), 'a' || char(10), 'x', 1, 'text/plain', '', '', 1, 1, \
         'malformed', 1, 1)",
    )
    .execute(fixture.store.pool())
    .await
    .unwrap();
    let refused = fixture.store.requeue_edited(&Filter::all_routes(), &Edit::default()).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Invalid);
    assert!(refused.to_string().contains("the key") && refused.to_string().contains("U+000A"), "{refused}");
    let edit = Edit { key: Some(Some(Key::new("a").unwrap())), ..Edit::default() };
    let id = fixture.store.requeue_edited(&Filter::all_routes(), &edit).await.unwrap();
    let relay = relay(&fixture.store).await;
    let read = messages(&fetch(&fixture.store, relay).await);
    assert_eq!((read.len(), Some(read[0].message.id)), (1, id));
    assert_eq!(read[0].message.key.as_ref().unwrap().as_str(), "a");
}

/// By `AppendSql`, whose statement any driver runs.
#[tokio::test]
async fn a_message_of_another_driver_is_the_message_that_was_given() {
    let fixture = Fixture::new().await;
    let unusual = message("Zürich \"1\\2\"", "")
        .with_payload(vec![0x00, 0x5c, 0xff])
        .with_schema_version(u32::MAX)
        .with_content_type("application/octet-stream")
        .with_header("tenant", "a\"b\\c ü \u{1f4a1}")
        .unwrap()
        .with_occurred_at(Timestamp::from_micros(253_402_300_799_999_999));
    let keyless = Message::new("orders", "order.placed").unwrap();
    let due = Outgoing::from(message("due", "")).due_at(Timestamp::from_micros(1));
    let later = Outgoing::from(message("later", "")).after(std::time::Duration::from_secs(3_600));
    for outgoing in [Outgoing::from(unusual.clone()), keyless.clone().into(), due.clone(), later] {
        let append = AppendSql::new(outgoing).unwrap();
        let mut tx = fixture.store.pool().begin_with("begin immediate").await.unwrap();
        let query = sqlx::query(append.sqlite()).bind(&append.payload).bind(&append.fields);
        assert_eq!(query.execute(&mut *tx).await.unwrap().rows_affected(), 1);
        tx.commit().await.unwrap();
    }
    let unplaced = "select count(*) from outbox_message where bucket is null";
    let unplaced = sqlx::query(unplaced).fetch_one(fixture.store.pool()).await.unwrap();
    assert_eq!(unplaced.get::<i64, _>(0), 0, "the relay has nothing to fill in");
    let done = fixture.store.maintain(100).await.unwrap();
    assert_eq!(done.promoted, 1);
    let hour = std::time::Duration::from_secs(3_600);
    assert!(done.next_due.is_some_and(|next| next <= hour && next > hour / 2), "{:?}", done.next_due);
    let relay = relay(&fixture.store).await;
    let read = messages(&fetch(&fixture.store, relay).await);
    let read: Vec<_> = read.iter().map(|stored| stored.message.clone()).collect();
    assert_eq!(read, [unusual, keyless, due.message]);
}
