//! Texts are bytes: no collation takes two keys for one, or two topics.

use outbox_contract::admin::Filter;
use outbox_contract::backend::FetchedRow;
use outbox_contract::{Admin, AdminExt, Key, KeyId, Message, Route, Topic};

use super::support::{append, both, fetch, message, relay};

/// Most collations take these for one; the better ones still the first and the last.
const ALIKE: [&str; 4] = ["a", "A", "á", "a "];

#[tokio::test]
async fn a_held_key_holds_no_other_that_reads_alike() {
    for fixture in both().await {
        append(&fixture.store, ALIKE.map(message)).await;
        fixture.store.hold(&Route::default(), &message("a").key_id()).await.unwrap();
        let relay = relay(&fixture.store).await;
        let mut flagged = Vec::new();
        for row in fetch(&fixture.store, relay).await.rows {
            if let FetchedRow::Failing(waiting) = row {
                flagged.push(waiting.key.key.as_str().to_owned());
            }
        }
        assert_eq!(flagged, ["a"]);
        let of_a = Filter { key: Some(Key::new("a ").unwrap()), ..Filter::all_routes() };
        assert_eq!(fixture.store.failing_keys(&of_a).await.unwrap().len(), 0);
    }
}

#[tokio::test]
async fn topics_that_read_alike_are_apart() {
    for fixture in both().await {
        let topics = ALIKE.map(|name| Topic::new(name).unwrap());
        append(
            &fixture.store,
            topics.iter().map(|topic| Message::new(topic.clone(), "x").unwrap().with_key("k").unwrap()),
        )
        .await;
        for topic in &topics {
            let key = KeyId::new(topic.as_str(), "k").unwrap();
            fixture.store.hold(&Route::default(), &key).await.unwrap();
        }
        assert_eq!(fixture.number("select count(*) from outbox_key").await, 4);
    }
}
