//! Mistakes of operators and faults of servers: each a clear error with the remedy, and none that
//! shows a password.

use std::time::Duration;

use mongodb::Client;
use outbox_contract::{Consumer, Route, Store, StoreError, StoreErrorKind, Transactional};
use outbox_servers::mongo_front::{Fault, Happens, Options};
use outbox_servers::{MongoDb, MongoDbServer, OrSkip};
use outbox_store_mongodb::{MongoDbOptions, MongoDbStore};

use super::support::{
    Fixture, append, fetch, in_database, lease_request, message, messages, open, options, relay,
};

const SECRET: &str = "s3cr3t-pa55";

/// A front of another kind before the engine that tests share.
fn server(kind: Options) -> Option<MongoDbServer> {
    let engine = MongoDb::newest().options(Options::default()).shared().or_skip()?;
    MongoDb::newest().options(kind).beside(&engine).or_skip()
}

async fn refused(url: &str) -> StoreError {
    refused_with(url, options()).await
}

/// Returns the error of a server that is not there.
async fn waits_in_vain(url: &str) -> StoreError {
    let mut options = options();
    options.server_selection_timeout = Duration::from_secs(1);
    refused_with(url, options).await
}

async fn refused_with(url: &str, options: MongoDbOptions) -> StoreError {
    match MongoDbStore::connect_with(url, options).await {
        Ok(_) => panic!("expected a refusal"),
        Err(error) => error,
    }
}

#[track_caller]
fn assert_says(error: &StoreError, kind: StoreErrorKind, says: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    let text = format!("{error} {error:?}");
    assert!(text.contains(says), "{text}");
    assert!(!text.contains(SECRET), "a secret is shown");
}

#[tokio::test]
async fn a_server_without_transactions_is_refused() {
    let Some(server) = server(Options::default().standalone()) else { return };
    let url = in_database(&server.url(), "shop");
    assert_says(&refused(&url).await, StoreErrorKind::Unsupported, "start it as a replica set");
    // Where the user brings the client, whatever is done first says so.
    let store = MongoDbStore::new(Client::with_uri_str(&url).await.unwrap(), "shop");
    assert_says(&store.migrate().await.unwrap_err(), StoreErrorKind::Unsupported, "replica set");
    assert_says(&store.check().await.unwrap_err(), StoreErrorKind::Unsupported, "replica set");
    assert_says(&store.begin().await.unwrap_err(), StoreErrorKind::Unsupported, "replica set");
}

#[tokio::test]
async fn an_old_server_is_refused() {
    let Some(server) = server(Options::default().version("5.0.0", 13)) else { return };
    let error = refused(&in_database(&server.url(), "shop")).await;
    assert_says(&error, StoreErrorKind::Unsupported, "MongoDB 6.0 or later");
}

#[tokio::test]
async fn wrong_addresses_are_refused_with_the_remedy() {
    let Some(server) = server(Options::default().user("guest", SECRET)) else { return };
    let right = in_database(&server.url_of("guest", SECRET), &server.fresh_database());
    let store = open(&right, options()).await;
    store.migrate().await.unwrap();
    assert!(!format!("{store:?} {:?}", store.options()).contains(SECRET));

    let wrong = right.replace(SECRET, &format!("{SECRET}-not"));
    assert_says(&refused(&wrong).await, StoreErrorKind::NotPermitted, "the password");
    let other_set = right.replace("replicaSet=rs0", "replicaSet=other");
    assert_says(&waits_in_vain(&other_set).await, StoreErrorKind::Unavailable, "name of the replica set");
    let with_tls = format!("{right}&tls=true");
    assert_says(&waits_in_vain(&with_tls).await, StoreErrorKind::Unavailable, "require TLS");
    assert_says(
        &refused(&server.url_of("guest", SECRET)).await,
        StoreErrorKind::Invalid,
        "names no database",
    );
    assert_says(
        &refused(&format!("mongodb://guest:{SECRET}@127.0.0.1:notaport/x")).await,
        StoreErrorKind::Invalid,
        "the address",
    );
    server.stop();
    assert_says(&waits_in_vain(&right).await, StoreErrorKind::Unavailable, "no primary can be reached");
}

/// The driver takes what is not percent-encoded for a host, a port or an option, and says so.
#[tokio::test]
async fn no_part_of_a_mistyped_address_is_shown() {
    for address in [
        "mongodb://shop:s3cr?pa55@127.0.0.1/shop",
        "mongodb://shop:s3cr?pa55@127.0.0.1/shop?replicaSet=rs0",
        "mongodb://shop:s3crpa55/shop",
        "mongodb://shop:s3cr/pa55@127.0.0.1/shop",
        "mongodb://shop:s3cr@pa55@127.0.0.1/shop",
        "mongodb://shop:s3cr%pa55@127.0.0.1/shop",
        "mongodb+srv://shop:s3cr?pa55@cluster.invalid/shop",
        "s3crpa55",
    ] {
        let error = waits_in_vain(address).await;
        let text = format!("{error} {error:?} {error:#?}");
        assert!(text.contains("mongodb://USER:PASSWORD@HOST/DATABASE"), "{text}");
        assert!(text.contains("percent-encode"), "{text}");
        assert!(!text.contains("s3cr") && !text.contains("pa55"), "a part of {address} is shown: {text}");
        let source = std::error::Error::source(&error);
        assert!(source.is_none(), "whoever walks the sources sees it: {source:?}");
    }
}

#[tokio::test]
async fn what_the_server_says_has_a_kind() {
    let Some(fixture) = Fixture::alone(options()).await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    let request = super::support::everything(relay);
    for (code, kind, says) in [
        (13, StoreErrorKind::NotPermitted, "readWrite"),
        (18, StoreErrorKind::NotPermitted, "authSource"),
        (10_107, StoreErrorKind::Unavailable, "not the primary"),
        (13_435, StoreErrorKind::Unavailable, "not the primary"),
        (11_602, StoreErrorKind::Unavailable, "not the primary"),
        (50, StoreErrorKind::Unavailable, "the time limit"),
        (14_031, StoreErrorKind::Unavailable, "disk is full"),
        (8, StoreErrorKind::Other, "unexpected"),
    ] {
        // The driver itself tries again where it can.
        let error = Happens::Error { code, labels: Vec::new() };
        fixture.server.fail_next(Fault::of(&["aggregate"], error).times(u32::MAX));
        assert_says(&store.fetch(&request).await.unwrap_err(), kind, says);
        fixture.server.fail_no_more();
    }
    fixture.server.fail_next(Fault::of(&["aggregate"], Happens::CloseBefore).times(u32::MAX));
    assert_says(&store.fetch(&request).await.unwrap_err(), StoreErrorKind::Unavailable, "");
    fixture.server.fail_no_more();
    store.fetch(&request).await.unwrap();
}

/// A validator that somebody gave a collection refuses documents (121); to a role with the right to
/// read, the server refuses every write (13).
#[tokio::test]
async fn a_write_that_the_server_refuses_names_the_cause_and_loses_nothing() {
    const WRITES: [&str; 4] = ["insert", "update", "delete", "findAndModify"];
    let Some(fixture) = Fixture::alone(options()).await else { return };
    let (store, consumer) = (&fixture.store, Consumer::new("inventory").unwrap());
    let relay = relay(store).await;
    append(store, [message("a")]).await;
    let waiting = &messages(fetch(store, relay).await)[0];
    for (code, kind, says) in [
        (121, StoreErrorKind::SchemaAltered, "validator"),
        (13, StoreErrorKind::NotPermitted, "grant readWrite"),
    ] {
        let mut tx = store.begin().await.unwrap();
        let mut handling = store.begin().await.unwrap();
        let error = Happens::Error { code, labels: Vec::new() };
        fixture.server.fail_next(Fault::of(&WRITES, error).times(u32::MAX));
        let appended = store.append(&mut tx, &[message("b").into()]).await;
        let appended = appended.unwrap_err().to_string();
        assert!(appended.contains(says), "{appended}");
        let recorded = store.deduplicate(&mut handling, &consumer, &[&waiting.message]).await;
        assert_says(&recorded.unwrap_err(), kind, says);
        assert_says(&store.settle(&Route::default(), &[waiting.row()]).await.unwrap_err(), kind, says);
        assert_says(&store.lease(&lease_request(relay)).await.unwrap_err(), kind, says);
        fixture.server.fail_no_more();
        store.rollback(tx).await.unwrap();
        store.rollback(handling).await.unwrap();
    }
    assert_eq!(messages(fetch(store, relay).await).len(), 1, "it is still there, and nothing else");
    assert!(!store.is_handled(&consumer, waiting.message.id).await.unwrap());
    store.settle(&Route::default(), &[waiting.row()]).await.unwrap();
    append(store, [message("b")]).await;
    assert_eq!(messages(fetch(store, relay).await).len(), 1);
}

#[tokio::test]
async fn a_server_that_was_killed_is_used_again_when_it_is_back() {
    let Some(fixture) = Fixture::alone(options()).await else { return };
    let store = &fixture.store;
    let relay = relay(store).await;
    append(store, [message("a")]).await;
    let mut lost = store.begin().await.unwrap();
    store.append(&mut lost, &[message("b").into()]).await.unwrap();
    fixture.server.kill();

    fixture.server.start_again();
    let outcome = store.commit(lost).await;
    assert!(!matches!(outcome, outbox_contract::backend::Committed::Yes), "{outcome:?}");
    let read = messages(wait_for(store, relay).await);
    assert_eq!(read.len(), 1, "what was committed is there, and nothing else");
    store.settle(&Route::default(), &[read[0].row()]).await.unwrap();
    append(store, [message("a")]).await;
    assert_eq!(messages(fetch(store, relay).await)[0].stripe.unwrap().number, 2);
}

/// The driver notices within seconds that a server is back.
async fn wait_for(
    store: &MongoDbStore,
    relay: outbox_contract::backend::RelayId,
) -> Vec<outbox_contract::backend::FetchedRow> {
    let request = super::support::everything(relay);
    let back = async {
        loop {
            match store.fetch(&request).await {
                Ok(fetched) => return fetched.rows,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(super::support::LONG, back).await.unwrap()
}
