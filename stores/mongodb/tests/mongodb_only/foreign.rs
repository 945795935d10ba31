//! What programs in other languages write, and what they get wrong.

use mongodb::ClientSession;
use mongodb::bson::{Bson, Document, doc};
use mongodb::options::ReturnDocument;
use outbox_contract::fetch::FetchedRow;
use outbox_contract::{Store, StripeId};

use super::support::{Fixture, append, fetch, message, relay};

/// As the README tells programs in other languages, with changes to the document.
async fn write(fixture: &Fixture, session: &mut ClientSession, key: &str, change: Document) {
    let stripe = StripeId::of("orders", key);
    let update = vec![
        doc! { "$set": {
            "at": "$$NOW",
            "number": { "$add": ["$number", 1] },
            "first_number": { "$add": ["$number", 1] },
            "first_position": { "$add": [
                { "$max": [
                    { "$multiply": [{ "$toLong": "$$NOW" }, 1_024_000_i64] },
                    { "$add": ["$position", 1_024 - i32::from(stripe.0)] },
                ] },
                i32::from(stripe.0),
            ] },
        } },
        doc! { "$set": { "position": "$first_position" } },
    ];
    let taken = fixture
        .collection("outbox_stripe")
        .find_one_and_update(doc! { "_id": format!("default/{}", stripe.0) }, update)
        .return_document(ReturnDocument::After)
        .session(&mut *session)
        .await
        .unwrap()
        .unwrap();
    let position = taken.get_i64("position").unwrap();
    let id =
        Bson::from(mongodb::bson::Uuid::from_bytes(*outbox_contract::MessageId::new().as_uuid().as_bytes()));
    let mut written = doc! {
        "_id": { "route": "default", "position": position, "id": id },
        "bucket": i32::from(stripe.bucket().0),
        "stripe": i32::from(stripe.0),
        "number": taken.get("number"),
        "topic": "orders",
        "key": key,
        "event_type": "order.placed",
        "schema_version": 1,
        "content_type": "application/json",
        "payload": r#"{"total_cents":4200}"#,
        "headers": { "tenant": "acme" },
        "occurred_at": 1_700_000_000_000_000_i64,
        "appended_at": taken.get_datetime("at").unwrap().timestamp_millis() * 1_000,
    };
    written.extend(change);
    fixture.collection("outbox_message").insert_one(written).session(session).await.unwrap();
}

#[tokio::test]
async fn what_the_readme_tells_other_languages_is_a_message() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    append(store, [message("a")]).await;
    let mut session = fixture.session().await;
    write(&fixture, &mut session, "a", Document::new()).await;
    session.commit_transaction().await.unwrap();
    append(store, [message("a")]).await;

    let read = super::support::messages(fetch(store, relay).await);
    assert_eq!(read.iter().map(|stored| stored.stripe.unwrap().number).collect::<Vec<_>>(), [1, 2, 3]);
    let foreign = &read[1].message;
    assert_eq!(
        (&foreign.payload[..], foreign.headers.get("tenant")),
        (&br#"{"total_cents":4200}"#[..], Some("acme"))
    );
    let mark = store.stripes(&Default::default(), &outbox_contract::BucketSet::ALL).await.unwrap()[0];
    assert_eq!((mark.last.number, mark.position, mark.first_number), (3, read[2].position, 3));
}

#[tokio::test]
async fn what_is_no_message_says_why() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    let wrong = [
        (doc! { "bucket": 300 }, "bucket is 300"),
        (doc! { "stripe": 5_000 }, "stripe is 5000"),
        (doc! { "topic": 1 }, "topic is not a string"),
        (doc! { "topic": "" }, "topic is empty"),
        (doc! { "event_type": Bson::Null }, "event_type is not a string"),
        (doc! { "schema_version": 0 }, "versions count from 1"),
        (doc! { "schema_version": -1_i64 }, "schema_version is -1"),
        (doc! { "payload": 7 }, "neither bytes nor a string"),
        (doc! { "headers": { "tenant": 7 } }, "tenant is no string"),
        (doc! { "headers": "[1]" }, "not a JSON object of strings"),
        (doc! { "occurred_at": "today" }, "occurred_at is not a whole number"),
        (doc! { "key": "x".repeat(300) }, "300 bytes"),
    ];
    for (change, says) in wrong {
        let mut session = fixture.session().await;
        write(&fixture, &mut session, "a", change).await;
        session.commit_transaction().await.unwrap();
        let rows = fetch(store, relay).await;
        let [FetchedRow::Malformed(waiting, reason)] = &rows[..] else { panic!("{rows:?}") };
        assert!(reason.contains(says), "{reason}");
        store.settle(&Default::default(), &[waiting.at]).await.unwrap();
        assert!(fetch(store, relay).await.is_empty(), "and it can be removed: {reason}");
    }
}
