//! Programs in other languages: the statements of the book, run by the server's own command line
//! client, and what they get wrong.

use outbox_contract::admin::{Edit, Filter};
use outbox_contract::backend::{BucketSet, FetchedRow};
use outbox_contract::{
    Admin, AdminExt, AppendSql, Key, Message, Outgoing, Route, Store, StoreErrorKind, Timestamp,
};
use sqlx::Connection;
use sqlx::mysql::MySqlConnection;

use super::support::{append, both, fetch, message, messages, relay};

/// The statements as the page of the book has them.
fn statements() -> &'static str {
    let page = include_str!("../../../../../book/src/mysql.md");
    let (_, from) = page.split_once("```sql\nset @topic").unwrap();
    let (statements, _) = from.split_once("```").unwrap();
    let at = page.len() - from.len() - "set @topic".len();
    &page[at..at + "set @topic".len() + statements.len()]
}

#[tokio::test]
async fn the_statements_of_the_book_append_a_message() {
    for fixture in both().await {
        let first = message("order-1");
        append(&fixture.store, [first.clone()]).await;
        for _ in 0..2 {
            fixture.server.query(
                &fixture.url,
                &format!("set names utf8mb4; start transaction; {}; commit", statements()),
            );
        }
        let marks = fixture.store.frontier().stripes(&Route::default(), &BucketSet::ALL).await.unwrap();
        let last = message("order-1");
        append(&fixture.store, [last.clone()]).await;
        let relay = relay(&fixture.store).await;
        let read = messages(&fetch(&fixture.store, relay).await);
        let numbers: Vec<i64> = read.iter().map(|stored| stored.stripe.unwrap().number).collect();
        assert_eq!(numbers, [1, 2, 3, 4], "one line, whoever writes");
        assert_eq!((marks[0].position, marks[0].first_position), (read[2].position, read[2].position));
        assert_eq!(marks[0].previous_position, read[1].position, "the marks are a chain, too");
        assert_eq!((read[0].message.id, read[3].message.id), (first.id, last.id));
        let foreign = &read[1].message;
        assert_eq!(foreign.key.as_ref().unwrap().as_str(), "order-1");
        assert_eq!((foreign.topic.as_str(), &*foreign.event_type), ("orders", "order.placed"));
        assert_eq!(&foreign.payload[..], br#"{"total_cents":4200}"#);
        assert_eq!(foreign.schema_version, 1);
    }
}

#[tokio::test]
async fn the_statements_of_the_book_append_messages_without_a_key() {
    for fixture in both().await {
        let statements = statements().replace("@key = 'order-1'", "@key = null");
        for _ in 0..4 {
            fixture.server.query(&fixture.url, &format!("start transaction; {statements}; commit"));
        }
        let relay = relay(&fixture.store).await;
        let read = messages(&fetch(&fixture.store, relay).await);
        let ids: std::collections::BTreeSet<_> = read.iter().map(|stored| stored.message.id).collect();
        assert_eq!(ids.len(), 4);
        assert!(read.iter().all(|stored| stored.message.key.is_none()));
    }
}

/// On a route whose stripes do not exist yet.
#[tokio::test]
async fn the_statements_of_the_book_make_the_stripe_of_a_new_route() {
    for fixture in both().await {
        let statements = statements().replace("@route = 'default'", "@route = 'new'");
        fixture.server.query(&fixture.url, &format!("start transaction; {statements}; commit"));
        let marks = fixture
            .store
            .frontier()
            .stripes(&Route::new("new").unwrap(), &outbox_contract::backend::BucketSet::ALL)
            .await;
        assert_eq!(marks.unwrap()[0].last.number, 1);
    }
}

#[tokio::test]
async fn a_wrong_stripe_is_said_and_put_right_by_a_requeue() {
    for fixture in both().await {
        fixture
            .run(
                "insert into outbox_message (position, stripe, number, id, topic, `key`, event_type) \
                 values (1031, 7, 1, unhex(replace(uuid(), '-', '')), 'orders', 'a', 'x')",
            )
            .await;
        let relay = relay(&fixture.store).await;
        let fetched = fetch(&fixture.store, relay).await;
        let [FetchedRow::Malformed(waiting, reason)] = &fetched.rows[..] else { panic!("{fetched:?}") };
        assert!(reason.contains("its stripe is 7"), "{reason}");
        fixture
            .run(
                "insert into outbox_dead (position, stripe, number, id, route, topic, `key`, order_key, event_type, schema_version, \
                 content_type, headers, payload, occurred_at, appended_at, reason, attempts, died_at) \
                 select position, stripe, number, id, route, topic, `key`, order_key, event_type, schema_version, content_type, headers, \
                 payload, occurred_at, appended_at, 'malformed', 1, 1 from outbox_message; delete from outbox_message",
            )
            .await;
        assert_eq!(fixture.store.requeue(&Filter::all_routes()).await.unwrap(), 1);
        let read = messages(&fetch(&fixture.store, relay).await);
        assert_eq!((read.len(), read[0].message.id), (1, waiting.at.id));
    }
}

/// The tables refuse rows that could never be a message; an invalid row that is there anyway
/// becomes a dead letter.
#[tokio::test]
async fn nonsense_is_refused_or_named() {
    for fixture in both().await {
        for values in ["(0, 7, 1, 'a')", "(1, 1024, 1, 'a')", "(1, -1, 1, 'a')"] {
            let insert = format!(
                "insert into outbox_message (position, stripe, number, topic, id, event_type) values {}",
                values.replace(")", ", unhex(replace(uuid(), '-', '')), 'x')")
            );
            assert!(fixture.server.try_query(&fixture.url, &insert).is_err(), "{values}");
        }
        // A control character beyond ASCII, which no check looks for.
        fixture
            .run(
                "insert into outbox_message (position, stripe, number, topic, id, event_type) \
                 values (1, 7, 1, x'61c285', unhex(replace(uuid(), '-', '')), 'x')",
            )
            .await;
        let relay = relay(&fixture.store).await;
        let fetched = fetch(&fixture.store, relay).await;
        assert!(matches!(fetched.rows[..], [FetchedRow::Malformed(..)]), "{fetched:?}");
    }
}

/// The name of the check says which column and what is wrong with it; a column that is too long, or
/// bytes that are no text, the server itself names.
#[tokio::test]
async fn what_could_never_be_a_message_is_refused_with_its_column() {
    const NAME: &str = "_is_empty_or_has_control_characters";
    for fixture in both().await {
        let mut connection = fixture.connection().await;
        for table in ["outbox_message", "outbox_scheduled"] {
            let place = if table == "outbox_message" { "position = 1, number = 1" } else { "due_at = 0" };
            for (set, says) in [
                ("topic = ''", "topic_is_empty"),
                ("topic = x'610a'", NAME),
                ("`key` = 'a\tb'", "key_is_empty_or_has_control_characters"),
                ("`key` = ''", "key_is_empty"),
                ("event_type = x'7f'", "event_type_is_empty_or_has_control_characters"),
                ("content_type = x'6100'", "content_type_is_empty_or_has_control_characters"),
                ("route = x'1f'", "route_is_empty_or_has_control_characters"),
                ("schema_version = 0", "schema_version_counts_from_1"),
                ("headers = '[1]'", "headers_are_no_json_object"),
                ("headers = '{'", "headers_are_no_json_object"),
                ("occurred_at = 253402300800000000", "occurred_at_is_no_microsecond"),
                ("payload = repeat('x', 15728641)", "payload_is_over_15_mib"),
                ("`key` = repeat('x', 256)", "key"),
            ] {
                let given = set.split(" = ").next().unwrap();
                let others =
                    ["topic = 't'", "event_type = 'x'"].into_iter().filter(|other| !other.starts_with(given));
                let others: Vec<&str> = others.collect();
                let insert = format!(
                    "insert into {table} set {place}, stripe = 7, id = unhex(replace(uuid(), '-', '')), {set}, {}",
                    others.join(", ")
                );
                let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(insert)).execute(&mut connection).await;
                let refused = refused.expect_err(set).to_string();
                assert!(refused.contains(says), "{table}, {set}: {refused}");
            }
        }
    }
}

/// Characters that JSON escapes, or does not: none of them is a control character.
#[tokio::test]
async fn every_name_that_the_contract_takes_is_taken() {
    for fixture in both().await {
        let keys = ["\"", "\\", "a\\\"/<>&'`", "ключ", "\u{1f600}\u{2028}\u{feff}", " ", "\u{a0}"];
        append(&fixture.store, keys.map(message)).await;
        let relay = relay(&fixture.store).await;
        assert_eq!(messages(&fetch(&fixture.store, relay).await).len(), keys.len());
    }
}

/// A row that got in anyway, and could never be sent, is sent once it was corrected.
#[tokio::test]
async fn a_dead_letter_that_was_no_message_is_corrected() {
    for fixture in both().await {
        fixture
            .run(
                "insert into outbox_dead (position, stripe, number, id, route, topic, `key`, order_key, event_type, schema_version, \
                 content_type, headers, payload, occurred_at, appended_at, reason, attempts, died_at) \
                 values (1, 7, 1, unhex(replace(uuid(), '-', '')), 'default', 'orders', x'610a62', x'610a62', 'x', 1, 'text/plain', '', '', \
                 1, 1, 'malformed', 1, 1)",
            )
            .await;
        let refused =
            fixture.store.requeue_edited(&Filter::all_routes(), &Edit::default()).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Invalid);
        assert!(
            refused.to_string().contains("the key") && refused.to_string().contains("U+000A"),
            "{refused}"
        );
        let edit = Edit { key: Some(Some(Key::new("a").unwrap())), ..Edit::default() };
        let id = fixture.store.requeue_edited(&Filter::all_routes(), &edit).await.unwrap();
        let relay = relay(&fixture.store).await;
        let read = messages(&fetch(&fixture.store, relay).await);
        assert_eq!((read.len(), Some(read[0].message.id)), (1, id));
        assert_eq!(read[0].message.key.as_ref().unwrap().as_str(), "a");
    }
}

/// Appends by `AppendSql` in a transaction of the connection.
async fn append_sql(connection: &mut MySqlConnection, outgoing: impl Into<Outgoing>) {
    let append = AppendSql::new(outgoing).unwrap();
    let mut tx = connection.begin().await.unwrap();
    for statement in append.mysql() {
        let query = sqlx::query(*statement).bind(&append.payload).bind(&append.fields);
        query.execute(&mut *tx).await.unwrap();
    }
    tx.commit().await.unwrap();
}

/// By `AppendSql`, whose statements any driver runs.
#[tokio::test]
async fn a_message_of_another_driver_is_the_message_that_was_given() {
    for fixture in both().await {
        let mut connection = fixture.connection().await;
        let unusual = message("Zürich \"1\\2\"")
            .with_payload(vec![0x00, 0x5c, 0xff])
            .with_schema_version(u32::MAX)
            .with_content_type("application/octet-stream")
            .with_header("tenant", "a\"b\\c ü \u{1f4a1}")
            .unwrap()
            .with_occurred_at(Timestamp::from_micros(253_402_300_799_999_999));
        let keyless = Message::new("orders", "order.placed").unwrap();
        let large = message("large").with_payload("x".repeat(3_000_000));
        let given = vec![unusual, keyless, large];
        for message in given.clone() {
            append_sql(&mut connection, message).await;
        }
        let relay = relay(&fixture.store).await;
        let read = messages(&fetch(&fixture.store, relay).await);
        assert_eq!(read.iter().map(|stored| stored.message.clone()).collect::<Vec<_>>(), given);
    }
}

/// They are one line with those of the store, and lock no other stripe.
#[tokio::test]
async fn a_key_keeps_its_order_whichever_driver_writes_it() {
    for fixture in both().await {
        let mut connection = fixture.connection().await;
        let given = [(); 4].map(|()| message("order-1"));
        let new = Route::new("new").unwrap();
        let frontier = fixture.store.frontier();
        let mark = async || frontier.stripes(&Route::default(), &BucketSet::ALL).await.unwrap()[0];
        append(&fixture.store, [given[0].clone()]).await;
        let before = mark().await;
        append_sql(&mut connection, given[1].clone()).await;
        let after = mark().await;
        assert_eq!((after.first_number, after.last.number), (2, 2));
        let stripe = i64::from(after.last.stripe.0);
        assert_eq!(after.position.0 % 1_024, stripe, "no other stripe has this position");
        assert_eq!((after.previous_position, after.first_position), (before.position, after.position));
        append_sql(&mut connection, Outgoing::from(message("order-1")).by(new.clone())).await;
        // As when the clock is set back by an hour.
        let ahead = "update outbox_stripe set position = position + 3686400000000 where route = 'default'";
        sqlx::raw_sql(ahead).execute(&mut connection).await.unwrap();
        let before = mark().await;
        append_sql(&mut connection, given[2].clone()).await;
        assert!(mark().await.position > before.position, "positions of a stripe grow");
        append(&fixture.store, [given[3].clone()]).await;
        let marks = fixture.store.frontier().stripes(&new, &BucketSet::ALL).await.unwrap();
        assert_eq!(marks[0].last.number, 1, "a route without stripes");
        let relay = relay(&fixture.store).await;
        let read = messages(&fetch(&fixture.store, relay).await);
        assert_eq!(read.iter().map(|stored| stored.message.clone()).collect::<Vec<_>>(), given);
        let numbers: Vec<i64> = read.iter().map(|stored| stored.stripe.unwrap().number).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);

        let append = AppendSql::new(message("order-1")).unwrap();
        let mut tx = connection.begin().await.unwrap();
        for statement in append.mysql() {
            let query = sqlx::query(*statement).bind(&append.payload).bind(&append.fields);
            query.execute(&mut *tx).await.unwrap();
        }
        // All other stripes of the route are free: each is locked and left again.
        let others = "select stripe from outbox_stripe where route = 'default' for update skip locked";
        let mut other = fixture.connection().await;
        let free = sqlx::raw_sql(others).fetch_all(&mut other).await.unwrap().len();
        assert_eq!(free, 1_023, "it holds its own stripe alone");
        tx.commit().await.unwrap();
    }
}

#[tokio::test]
async fn a_scheduled_message_of_another_driver_comes_when_it_is_due() {
    for fixture in both().await {
        let mut connection = fixture.connection().await;
        let due = message("due");
        append_sql(&mut connection, Outgoing::from(due.clone()).due_at(Timestamp::from_micros(1))).await;
        let hour = std::time::Duration::from_secs(3_600);
        append_sql(&mut connection, Outgoing::from(message("later")).after(hour)).await;
        let done = fixture.store.maintain(100).await.unwrap();
        assert_eq!(done.promoted, 1);
        assert!(done.next_due.is_some_and(|next| next <= hour && next > hour / 2), "{:?}", done.next_due);
        let relay = relay(&fixture.store).await;
        let read = messages(&fetch(&fixture.store, relay).await);
        assert_eq!((read.len(), &read[0].message), (1, &due));
    }
}
