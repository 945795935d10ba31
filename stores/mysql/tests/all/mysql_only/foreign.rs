//! Programs in other languages: the statements of the README, run by the server's own command line client, and what they get wrong.

use outbox_contract::admin::Filter;
use outbox_contract::{Admin, FetchedRow, Route, Store};

use super::support::{append, both, fetch, message, messages, relay};

/// The statements as the README has them.
fn statements() -> &'static str {
    let readme = include_str!("../../../README.md");
    let (_, from) = readme.split_once("```sql\nset @topic").unwrap();
    let (statements, _) = from.split_once("```").unwrap();
    let at = readme.len() - from.len() - "set @topic".len();
    &readme[at..at + "set @topic".len() + statements.len()]
}

#[tokio::test]
async fn the_statements_of_the_readme_append_a_message() {
    for fixture in both().await {
        let first = message("order-1");
        append(&fixture.store, [first.clone()]).await;
        for _ in 0..2 {
            fixture.server.query(
                &fixture.url,
                &format!("set names utf8mb4; start transaction; {}; commit", statements()),
            );
        }
        let last = message("order-1");
        append(&fixture.store, [last.clone()]).await;
        let relay = relay(&fixture.store).await;
        let read = messages(&fetch(&fixture.store, relay).await);
        let numbers: Vec<i64> = read.iter().map(|stored| stored.stripe.unwrap().number).collect();
        assert_eq!(numbers, [1, 2, 3, 4], "one line, whoever writes");
        assert_eq!((read[0].message.id, read[3].message.id), (first.id, last.id));
        let foreign = &read[1].message;
        assert_eq!(foreign.key.as_ref().unwrap().as_str(), "order-1");
        assert_eq!((foreign.topic.as_str(), &*foreign.event_type), ("orders", "order.placed"));
        assert_eq!(&foreign.payload[..], br#"{"total_cents":4200}"#);
        assert_eq!(foreign.schema_version, 1);
    }
}

/// In a route that nobody has made the stripes of.
#[tokio::test]
async fn the_statements_of_the_readme_make_the_stripe_of_a_new_route() {
    for fixture in both().await {
        let statements = statements().replace("@route = 'default'", "@route = 'new'");
        fixture.server.query(&fixture.url, &format!("start transaction; {statements}; commit"));
        let marks =
            fixture.store.stripes(&Route::new("new").unwrap(), &outbox_contract::BucketSet::ALL).await;
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
        assert_eq!(fixture.store.requeue(&Filter::default()).await.unwrap(), 1);
        let read = messages(&fetch(&fixture.store, relay).await);
        assert_eq!((read.len(), read[0].message.id), (1, waiting.at.id));
    }
}

/// What could never be a message is refused by the tables; what is none all the same becomes a dead letter.
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
        fixture
            .run(
                "insert into outbox_message (position, stripe, number, topic, id, event_type) \
                 values (1, 7, 1, x'ff00', unhex(replace(uuid(), '-', '')), '')",
            )
            .await;
        let relay = relay(&fixture.store).await;
        let fetched = fetch(&fixture.store, relay).await;
        assert!(matches!(fetched.rows[..], [FetchedRow::Malformed(..)]), "{fetched:?}");
    }
}
