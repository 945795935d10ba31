//! The user's transaction: what it must be, and what ends it.

use mongodb::bson::doc;
use mongodb::options::WriteConcern;
use outbox_contract::backend::{Committed, StripeId};
use outbox_contract::{
    AppendError, Consumer, Message, Outgoing, Route, Store, StoreErrorKind, Topic, Transactional,
};
use outbox_servers::mongo_front::{Fault, Happens};

use super::support::{Fixture, append, collection_of, fetch, message, messages, open, options, relay};

fn outgoing(key: &str) -> [Outgoing; 1] {
    [message(key).into()]
}

#[track_caller]
fn assert_conflict(appended: &Result<(), AppendError>) {
    assert!(matches!(appended, Err(AppendError::Conflict(_))), "{appended:?}");
}

#[tokio::test]
async fn a_session_that_is_in_no_transaction_is_refused() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    let consumer = Consumer::new("inventory").unwrap();
    let mut session = store.client().start_session().await.unwrap();
    let mut foreign = fixture.another().await.begin().await.unwrap();
    let error = store.append(&mut foreign, &outgoing("a")).await.unwrap_err();
    assert!(error.to_string().contains("another client"), "{error}");
    // Never in one, and not any more.
    for _ in 0..3 {
        let Err(AppendError::Store(error)) = store.append(&mut session, &outgoing("a")).await else {
            panic!("a session without a transaction was taken")
        };
        assert_eq!(error.kind(), StoreErrorKind::NotInTransaction);
        assert!(error.to_string().contains("start_transaction"), "{error}");
        let error = store.deduplicate(&mut session, &consumer, &[&message("a")]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::NotInTransaction);
        assert!(fetch(store, relay).await.is_empty(), "nothing was written");

        session.start_transaction().await.unwrap();
        store.append(&mut session, &outgoing("a")).await.unwrap();
        session.commit_transaction().await.unwrap();
        let read = messages(fetch(store, relay).await);
        assert_eq!(read.len(), 1, "and what was written in one is there");
        store.settle(&Route::default(), &[read[0].row()]).await.unwrap();
    }
}

/// The driver refuses to begin a transaction for more reasons than that there is one.
#[tokio::test]
async fn a_forgotten_transaction_is_found_out_on_a_client_that_asks_for_no_confirmation_and_in_a_snapshot() {
    let Some(fixture) = Fixture::new().await else { return };
    let relay = relay(&fixture.store).await;
    let consumer = Consumer::new("inventory").unwrap();
    let unconfirmed = open(&format!("{}&w=0", fixture.url), options()).await;
    for (store, snapshot) in [(&unconfirmed, false), (&unconfirmed, true), (&fixture.store, true)] {
        let mut session = store.client().start_session().snapshot(snapshot).await.unwrap();
        let Err(AppendError::Store(error)) = store.append(&mut session, &outgoing("a")).await else {
            panic!("a session without a transaction was taken")
        };
        assert_eq!(error.kind(), StoreErrorKind::NotInTransaction, "{error}");
        let error = store.deduplicate(&mut session, &consumer, &[&message("a")]).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::NotInTransaction, "{error}");
        assert!(fetch(&fixture.store, relay).await.is_empty(), "nothing was written");
    }
    let mut session = unconfirmed.client().start_session().await.unwrap();
    session.start_transaction().write_concern(WriteConcern::majority()).await.unwrap();
    unconfirmed.append(&mut session, &outgoing("a")).await.unwrap();
    session.commit_transaction().await.unwrap();
    assert_eq!(fetch(&fixture.store, relay).await.len(), 1);
}

/// MongoDB aborts a transaction at the first error in it, and a program may go on all the same.
#[tokio::test]
async fn an_append_in_an_aborted_transaction_is_a_conflict() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, orders) = (&fixture.store, fixture.collection("orders"));
    let relay = relay(store).await;
    orders.insert_one(doc! { "_id": 1 }).await.unwrap();
    let mut session = fixture.session().await;
    orders.insert_one(doc! { "_id": 2 }).session(&mut session).await.unwrap();
    orders.insert_one(doc! { "_id": 1 }).session(&mut session).await.unwrap_err();
    assert_conflict(&store.append(&mut session, &outgoing("a")).await);
    session.commit_transaction().await.unwrap_err();
    assert!(fetch(store, relay).await.is_empty(), "no message without the rest");
    assert_eq!(orders.count_documents(doc! {}).await.unwrap(), 1);
}

#[tokio::test]
async fn of_two_writers_of_a_stripe_the_second_conflicts() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, other) = (&fixture.store, fixture.another().await);
    let relay = relay(store).await;
    let (mut first, mut second) = (fixture.session().await, other.begin().await.unwrap());
    store.append(&mut first, &outgoing("a")).await.unwrap();
    assert_conflict(&other.append(&mut second, &outgoing("a")).await);
    // Nothing was tried again: the transaction is over.
    assert!(matches!(other.commit(second).await, Committed::No(_)));

    // It began before the first one committed, so it knows nothing of it.
    let mut stale = other.begin().await.unwrap();
    collection_of(&other, "orders").find_one(doc! {}).session(&mut stale).await.unwrap();
    first.commit_transaction().await.unwrap();
    assert_conflict(&other.append(&mut stale, &outgoing("a")).await);
    drop(stale);

    append(&other, [message("a")]).await;
    let read = messages(fetch(store, relay).await);
    let numbers: Vec<i64> = read.iter().map(|stored| stored.stripe.unwrap().number).collect();
    assert_eq!(numbers, [1, 2], "what was aborted left no gap");
    assert_eq!(read[0].stripe.unwrap().stripe, StripeId::of("orders", "a"));
}

#[tokio::test]
async fn a_conflict_is_known_by_its_code_alone() {
    let Some(fixture) = Fixture::alone(options()).await else { return };
    let store = &fixture.store;
    for (command, code) in [("findAndModify", 112), ("insert", 112), ("insert", 251), ("insert", 290)] {
        let mut session = fixture.session().await;
        fixture.server.fail_next(Fault::of(&[command], Happens::Error { code, labels: Vec::new() }));
        assert_conflict(&store.append(&mut session, &outgoing("a")).await);
    }
    let mut session = fixture.session().await;
    let orders = fixture.collection("orders");
    fixture.server.fail_next(Fault::of(&["insert"], Happens::Error { code: 112, labels: Vec::new() }));
    let error = orders.insert_one(doc! {}).session(&mut session).await.unwrap_err();
    assert!(store.is_conflict(&error), "also in a statement of the user's");
    drop(session);
    let error = orders.insert_one(doc! { "_id": { "$in": 1 } }).await.unwrap_err();
    assert!(!store.is_conflict(&error), "{error}");
}

/// The stripes of a route are made when it is first appended to; a transaction that has read before
/// does not see them.
#[tokio::test]
async fn a_route_that_is_new_is_at_most_a_conflict() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let audit = Route::new("audit").unwrap();
    let to_audit = [Outgoing::from(message("a")).by(audit.clone())];
    let mut session = fixture.session().await;
    fixture.collection("orders").find_one(doc! {}).session(&mut session).await.unwrap();
    assert_conflict(&store.append(&mut session, &to_audit).await);
    drop(session);
    let mut session = fixture.session().await;
    store.append(&mut session, &to_audit).await.unwrap();
    session.commit_transaction().await.unwrap();
    let marks = store.frontier().stripes(&audit, &outbox_contract::backend::BucketSet::ALL).await.unwrap();
    assert_eq!(marks.len(), 1);
}

#[tokio::test]
async fn a_commit_without_an_answer_is_unknown_and_can_be_asked_about() {
    let Some(fixture) = Fixture::alone(options()).await else { return };
    let store = &fixture.store;
    let consumer = Consumer::new("inventory").unwrap();
    // The driver asks a second time by itself.
    for (times, is_known) in [(1, true), (2, false)] {
        let handled = message("a");
        let mut tx = store.begin().await.unwrap();
        store.deduplicate(&mut tx, &consumer, &[&handled]).await.unwrap();
        fixture.server.fail_next(Fault::of(&["commitTransaction"], Happens::CloseAfter).times(times));
        match store.commit(tx).await {
            Committed::Yes => assert!(is_known),
            Committed::Unknown(error) => assert!(!is_known && error.is_retryable(), "{error}"),
            Committed::No(error) => panic!("it was committed: {error}"),
        }
        assert!(store.is_handled(&consumer, handled.id).await.unwrap());
    }
    // A server that does not know the transaction may be one that has forgotten its commit; it says
    // so when it is sure that there was none.
    let transient = || vec!["TransientTransactionError".to_owned()];
    for (key, code, labels, is_known) in [
        ("a", 112, transient(), true),
        ("b", 251, transient(), true),
        ("c", 290, transient(), true),
        ("d", 251, Vec::new(), false),
        ("e", 290, Vec::new(), false),
    ] {
        let mut tx = store.begin().await.unwrap();
        // The one before is still open.
        store.append(&mut tx, &outgoing(key)).await.unwrap();
        fixture.server.fail_next(Fault::of(&["commitTransaction"], Happens::Error { code, labels }));
        match store.commit(tx).await {
            Committed::No(error) => assert!(is_known && error.is_retryable(), "{code}: {error}"),
            Committed::Unknown(error) => {
                assert!(!is_known && error.kind() == StoreErrorKind::Unavailable, "{code}: {error}");
            }
            Committed::Yes => panic!("{code}"),
        }
    }
}

#[tokio::test]
async fn what_does_not_fit_in_a_document_is_refused_when_it_is_appended() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    let largest = || message("a").with_payload(vec![7; Message::MAX_PAYLOAD_BYTES]);
    let mut too_large = largest();
    for number in 0..200 {
        too_large = too_large.with_header(format!("h{number}"), "x".repeat(8_000)).unwrap();
    }
    let mut session = fixture.session().await;
    let Err(AppendError::Store(error)) = store.append(&mut session, &[too_large.into()]).await else {
        panic!("17 MB went into a document")
    };
    assert_eq!(error.kind(), StoreErrorKind::Invalid);
    assert!(error.to_string().contains("16 MiB"), "{error}");
    // Nothing was sent, so the transaction goes on.
    store.append(&mut session, &[largest().into()]).await.unwrap();
    session.commit_transaction().await.unwrap();
    let read = messages(fetch(store, relay).await);
    assert_eq!(read[0].message.payload.len(), Message::MAX_PAYLOAD_BYTES);
}

#[tokio::test]
async fn a_topic_that_looks_like_an_expression_is_a_topic() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    let strange = |key: &str| Message::new("$topic", "x").unwrap().with_key(key).unwrap();
    append(store, [strange("$key"), strange("$$NOW"), message("a")]).await;
    let mut request = super::support::everything(relay);
    request.muted = vec![
        outbox_contract::backend::Scope::Topic(Topic::new("$other").unwrap()),
        outbox_contract::backend::Scope::Key(strange("$key").key_id()),
    ];
    let rows = store.fetch(&request).await.unwrap().rows;
    let muted: Vec<bool> =
        rows.iter().map(|row| matches!(row, outbox_contract::backend::FetchedRow::Muted(_))).collect();
    assert_eq!(muted, [true, false, false]);
}
