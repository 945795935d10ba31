//! Documents that programs in other languages write, and their mistakes.

use std::time::Duration;

use mongodb::ClientSession;
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document, doc, oid::ObjectId};
use mongodb::options::ReturnDocument;
use outbox_contract::admin::{Edit, Filter};
use outbox_contract::backend::{
    BucketSet, DueRequest, FetchedRow, KeyTransition, RelayId, Scope, Step, Stored, StripeId, Then,
    Transitioned,
};
use outbox_contract::{
    Admin, AdminExt, Failure, Headers, Key, KeyId, MessageId, Route, Store, StoreErrorKind, Topic,
};

use super::support::{Fixture, append, epoch, everything, fetch, message, messages, open, options, relay};

/// As the book tells programs in other languages, with changes to the document. Says under which
/// name.
async fn write(fixture: &Fixture, session: &mut ClientSession, key: &str, change: Document) -> Document {
    let mut written = document(fixture, session, key).await;
    written.extend(change);
    insert(fixture, session, written).await
}

/// A document with a name of another kind, committed.
async fn write_as(fixture: &Fixture, key: &str, rename: impl FnOnce(&mut Document)) -> Document {
    let mut session = fixture.session().await;
    let mut written = document(fixture, &mut session, key).await;
    rename(written.get_document_mut("_id").unwrap());
    let name = insert(fixture, &mut session, written).await;
    session.commit_transaction().await.unwrap();
    name
}

async fn insert(fixture: &Fixture, session: &mut ClientSession, written: Document) -> Document {
    let name = written.get_document("_id").cloned().unwrap_or_default();
    fixture.collection("outbox_message").insert_one(written).session(session).await.unwrap();
    name
}

async fn document(fixture: &Fixture, session: &mut ClientSession, key: &str) -> Document {
    let stripe = StripeId::of("orders", key);
    let update = vec![
        doc! { "$set": {
            "at": "$$NOW",
            "number": { "$add": ["$number", 1] },
            "first_number": { "$add": ["$number", 1] },
            "previous_position": "$position",
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
    let id = binary(BinarySubtype::Uuid, MessageId::new().as_uuid().as_bytes());
    doc! {
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
    }
}

fn binary(subtype: BinarySubtype, bytes: &[u8]) -> Bson {
    Bson::Binary(Binary { subtype, bytes: bytes.to_vec() })
}

/// Gives the id of a name another kind of binary, with the same bytes: 0 is what Go and Python
/// write, 3 what older drivers do.
fn of_subtype(subtype: BinarySubtype) -> impl FnOnce(&mut Document) {
    move |name| {
        let Some(Bson::Binary(id)) = name.get_mut("id") else { panic!("{name}") };
        id.subtype = subtype;
    }
}

const OTHER_SUBTYPES: [BinarySubtype; 2] = [BinarySubtype::Generic, BinarySubtype::UuidOld];

#[tokio::test]
async fn what_the_book_tells_other_languages_is_a_message() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    append(store, [message("a")]).await;
    let mut session = fixture.session().await;
    write(&fixture, &mut session, "a", Document::new()).await;
    session.commit_transaction().await.unwrap();
    let mark = async || store.frontier().stripes(&Route::default(), &BucketSet::ALL).await.unwrap()[0];
    let foreign_mark = mark().await;
    append(store, [message("a")]).await;

    let read = super::support::messages(fetch(store, relay).await);
    assert_eq!(read.iter().map(|stored| stored.stripe.unwrap().number).collect::<Vec<_>>(), [1, 2, 3]);
    let foreign = &read[1].message;
    assert_eq!(
        (&foreign.payload[..], foreign.headers.get("tenant")),
        (&br#"{"total_cents":4200}"#[..], Some("acme"))
    );
    assert_eq!((foreign_mark.position, foreign_mark.previous_position), (read[1].position, read[0].position));
    let mark = mark().await;
    assert_eq!((mark.last.number, mark.position, mark.first_number), (3, read[2].position, 3));
    assert_eq!(mark.previous_position, read[1].position, "the marks are a chain, whoever writes");
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
        (doc! { "headers": { "tenant": 7 } }, "tenant is not a string"),
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

/// A step of a key, from whatever state it is in.
async fn transition(
    fixture: &Fixture,
    relay: RelayId,
    key: &KeyId,
    version: Option<i64>,
    step: Step,
) -> Transitioned {
    let epoch = epoch(&fixture.store, relay, key).await;
    let (route, bucket, key) = (Route::default(), key.bucket(), key.clone());
    let transition = KeyTransition::new(route, relay, (bucket, epoch), key, version, step);
    fixture.store.transition(&[transition]).await.unwrap().remove(0)
}

fn fails(stored: &Stored) -> Step {
    Step::Fail {
        row: stored.row(),
        attempts: 1,
        first: Failure::new("test", "first"),
        last: Failure::new("test", "last"),
        then: Then::RetryAfter(Duration::ZERO),
        behind: Vec::new(),
    }
}

fn bury(row: outbox_contract::backend::RowId) -> Step {
    let failure = || Failure::new("test", "last");
    Step::Bury { row, discard: false, reason: "exhausted", attempts: 1, first: failure(), last: failure() }
}

#[tokio::test]
async fn what_was_delivered_is_removed_whatever_binary_its_id_is() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut with_history = options();
    with_history.history = Some(Duration::from_secs(3_600));
    let keeping = open(&fixture.url, with_history).await;
    let relay = relay(&fixture.store).await;
    for store in [&fixture.store, &keeping] {
        // Beside some that are the store's own.
        append(store, [message("a"), message("b")]).await;
        for subtype in OTHER_SUBTYPES {
            write_as(&fixture, "a", of_subtype(subtype)).await;
        }
        append(store, [message("a")]).await;
        let read = messages(fetch(store, relay).await);
        assert_eq!(read.len(), 5);
        let rows: Vec<_> = read.iter().map(|stored| stored.row()).collect();
        store.settle(&Route::default(), &rows).await.unwrap();
        assert!(fetch(store, relay).await.is_empty(), "what was settled came again");
    }
    let past = keeping.history(&Filter::all_routes()).await.unwrap();
    assert_eq!(past.len(), 5);
    let one = outbox_contract::admin::Filter {
        ids: Some(vec![past[1].message.message.id]),
        ..Filter::all_routes()
    };
    assert_eq!(keeping.history(&one).await.unwrap().len(), 1, "it is found by its id");
}

#[tokio::test]
async fn what_fails_is_moved_whatever_binary_its_id_is() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    let key = message("a").key_id();
    for subtype in OTHER_SUBTYPES {
        for _ in 0..3 {
            write_as(&fixture, "a", of_subtype(subtype)).await;
        }
        let read = messages(fetch(store, relay).await);
        let failed = transition(&fixture, relay, &key, None, fails(&read[0])).await;
        let Transitioned::Done(Some(version)) = failed else { panic!("{subtype:?}: {failed:?}") };
        let park = Step::Park { rows: vec![read[1].row(), read[2].row()] };
        assert_eq!(transition(&fixture, relay, &key, None, park).await, Transitioned::Done(Some(version)));
        assert!(fetch(store, relay).await.is_empty(), "{subtype:?}: what was parked came again");

        let mut request = DueRequest::new(Route::default(), relay, BucketSet::ALL);
        request.keys = 10;
        request.messages = 10;
        request.bytes = 1_000_000;
        let due = store.due(&request).await.unwrap().keys.remove(0);
        let parked: Vec<_> = due.parked.iter().map(|stored| stored.row()).collect();
        assert_eq!(parked, read.iter().map(|stored| stored.row()).collect::<Vec<_>>());
        let buried = transition(&fixture, relay, &key, Some(version), bury(parked[0])).await;
        let Transitioned::Done(Some(version)) = buried else { panic!("{subtype:?}: {buried:?}") };
        let resume = Step::Resume { delivered: parked[1..].to_vec() };
        assert_eq!(transition(&fixture, relay, &key, Some(version), resume).await, Transitioned::Done(None));
        assert!(store.failing_keys(&Filter::all_routes()).await.unwrap().is_empty());
        assert_eq!(store.purge(&Filter::all_routes()).await.unwrap(), 1);
    }
}

/// Its key is its id, so the id is asked for in more than one way.
#[tokio::test]
async fn a_message_without_a_key_is_one_whatever_binary_its_id_is() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    for subtype in OTHER_SUBTYPES {
        let id = MessageId::new();
        let mut session = fixture.session().await;
        let mut written = document(&fixture, &mut session, &id.to_string()).await;
        written.remove("key");
        written.get_document_mut("_id").unwrap().insert("id", binary(subtype, id.as_uuid().as_bytes()));
        insert(&fixture, &mut session, written).await;
        session.commit_transaction().await.unwrap();

        let stored = messages(fetch(store, relay).await).remove(0);
        let key = stored.message.key_id();
        let mut of_key = everything(relay);
        of_key.scope = Scope::Key(key.clone());
        assert_eq!(messages(store.fetch(&of_key).await.unwrap().rows).len(), 1, "{subtype:?}");
        let mut muted = everything(relay);
        muted.muted = vec![Scope::Key(key.clone())];
        let rows = store.fetch(&muted).await.unwrap().rows;
        assert!(matches!(rows[..], [FetchedRow::Muted(_)]), "{subtype:?}: {rows:?}");
        let failed = transition(&fixture, relay, &key, None, fails(&stored)).await;
        assert!(matches!(failed, Transitioned::Done(Some(_))), "{subtype:?}: {failed:?}");
        assert!(fetch(store, relay).await.is_empty());
    }
}

/// A step finds a row by its name alone: what else is wrong with it may be wrong with its topic and
/// its key.
#[tokio::test]
async fn what_is_no_message_becomes_a_dead_letter_whatever_is_wrong_with_it() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    for change in [
        doc! { "topic": 1 },
        doc! { "topic": "" },
        doc! { "topic": "new\nline" },
        doc! { "key": 1 },
        doc! { "key": "x".repeat(300) },
        doc! { "stripe": "none" },
    ] {
        let mut session = fixture.session().await;
        write(&fixture, &mut session, "a", change.clone()).await;
        session.commit_transaction().await.unwrap();
        let rows = fetch(store, relay).await;
        let [FetchedRow::Malformed(waiting, _)] = &rows[..] else { panic!("{rows:?}") };
        let buried = transition(&fixture, relay, &waiting.key, None, bury(waiting.at)).await;
        assert_eq!(buried, Transitioned::Done(None), "{change}");
        assert!(fetch(store, relay).await.is_empty(), "{change} came again");
        assert_eq!(store.purge(&Filter::all_routes()).await.unwrap(), 1);
    }
}

/// Corrected messages are sent; a message that is still invalid is reported with the reason.
#[tokio::test]
async fn a_dead_letter_that_was_no_message_is_corrected() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    let any = Filter::all_routes();
    let right = Edit {
        topic: Some(Topic::new("orders").unwrap()),
        key: Some(Some(Key::new("a").unwrap())),
        schema_version: Some(1),
        headers: Some(Headers::new()),
        payload: Some("right".into()),
        ..Edit::default()
    };
    for (change, says) in [
        (doc! { "topic": "new\nline" }, "the topic"),
        (doc! { "key": "new\nline" }, "the key"),
        (doc! { "schema_version": "two" }, "schema_version"),
        (doc! { "headers": { "tenant": 7 } }, "headers"),
        (doc! { "payload": 7 }, "payload"),
    ] {
        let mut session = fixture.session().await;
        write(&fixture, &mut session, "a", change.clone()).await;
        session.commit_transaction().await.unwrap();
        let rows = fetch(store, relay).await;
        let [FetchedRow::Malformed(waiting, _)] = &rows[..] else { panic!("{rows:?}") };
        let buried = transition(&fixture, relay, &waiting.key, None, bury(waiting.at)).await;
        assert_eq!(buried, Transitioned::Done(None), "{change}");
        let refused = store.requeue_edited(&any, &Edit::default()).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Invalid);
        assert!(refused.to_string().contains(says), "{refused}");
        assert_eq!(store.requeue_edited(&any, &right).await.unwrap(), Some(waiting.at.id));
        let read = messages(fetch(store, relay).await);
        assert_eq!((read.len(), &read[0].message.payload[..]), (1, &b"right"[..]));
        store.settle(&Route::default(), &[read[0].row()]).await.unwrap();
        assert!(store.dead_letters(&any).await.unwrap().is_empty());
    }
}

/// A document whose id no statement can name would be found at each look, and never be removed.
#[tokio::test]
async fn what_can_not_be_named_is_never_read() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    let position = |name: &Document| name.get_i64("position").unwrap();
    let renames: [fn(&mut Document); 8] = [
        |name| drop(name.insert("id", "0190a3c4-0000-7000-8000-000000000000")),
        |name| drop(name.insert("id", ObjectId::new())),
        |name| drop(name.insert("id", binary(BinarySubtype::Uuid, &[7; 15]))),
        |name| drop(name.insert("id", binary(BinarySubtype::UserDefined(200), &[7; 16]))),
        |name| drop(name.remove("id")),
        |name| drop(name.insert("tenant", "acme")),
        |name| drop(name.insert("position", 1_234.5)),
        |name| drop(name.insert("position", "first")),
    ];
    for rename in renames {
        write_as(&fixture, "a", rename).await;
    }
    // Nor are they in the way of those behind them, though they alone would fill an answer.
    let id = binary(BinarySubtype::Generic, &[7; 16]);
    let small =
        write_as(&fixture, "a", |name| *name = doc! { "route": "default", "position": 5, "id": id }).await;
    let last = write_as(&fixture, "a", |_| {}).await;
    for limit in [1, 2, 3, 1_000] {
        let mut request = everything(relay);
        request.limit = limit;
        let first = store.fetch(&request).await.unwrap();
        assert_eq!(first.rows[0].position().0, i64::from(small.get_i32("position").unwrap()));
        assert_eq!(first.rows.len(), limit.min(2));
        assert!(first.full || limit == 1_000, "it was cut short: {first:?}");
        assert!(!first.full || limit < 1_000, "nothing is left: {first:?}");
        request.after = first.rows[0].position();
        let rest = messages(store.fetch(&request).await.unwrap().rows);
        assert_eq!(rest.iter().map(|stored| stored.position.0).collect::<Vec<_>>(), [position(&last)]);
    }
    let read = messages(fetch(store, relay).await);
    let rows: Vec<_> = read.iter().map(|stored| stored.row()).collect();
    store.settle(&Route::default(), &rows).await.unwrap();
    let empty = store.fetch(&everything(relay)).await.unwrap();
    assert!(empty.rows.is_empty() && !empty.full, "{empty:?}");
    assert_eq!(fixture.collection("outbox_message").count_documents(doc! {}).await.unwrap(), 8);
}
