use std::sync::Arc;
use std::time::Duration;

use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use outbox_servers::mongo_front::Options;
use outbox_servers::{MongoDb, OrSkip as _};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::{all, client, code, options};

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_ends_transactions_and_a_start_finds_what_was_committed() {
    let Some(shared) = MongoDb::newest().shared().or_skip() else { return };
    if !shared.is_own() {
        return;
    }
    let server = MongoDb::newest().beside(&shared).unwrap();
    let client = client(&server).await;
    let database = client.database(&server.fresh_database());
    let collection = database.collection::<Document>("a");
    collection.insert_one(doc! { "_id": 0 }).await.unwrap();
    let mut committed = client.start_session().await.unwrap();
    committed.start_transaction().await.unwrap();
    collection.insert_one(doc! { "_id": 1 }).session(&mut committed).await.unwrap();
    committed.commit_transaction().await.unwrap();
    let mut open = client.start_session().await.unwrap();
    open.start_transaction().await.unwrap();
    collection.insert_one(doc! { "_id": 2 }).session(&mut open).await.unwrap();

    server.kill();
    server.start_again();

    // The commit is known, though the server that performed it is gone; the open transaction is
    // not.
    committed.commit_transaction().await.unwrap();
    let error = open.commit_transaction().await.unwrap_err();
    assert_eq!(code(&error), Some(251), "{error:?}");
    // Its lock is gone too: a plain write would wait for it forever.
    collection.insert_one(doc! { "_id": 2, "new": true }).await.unwrap();
    let expected = [doc! { "_id": 0 }, doc! { "_id": 1 }, doc! { "_id": 2, "new": true }];
    assert_eq!(all(&collection).await, expected);

    server.stop();
    server.start_again();
    assert_eq!(all(&collection).await.len(), 3);
}

/// A remnant of a killed server would hold its locks against the next start. A stopped process
/// can't end: a kill that did not wait for it would return early.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_is_over_when_nothing_of_the_server_is_left_in_the_engine() {
    let Some(server) = MongoDb::newest().start().or_skip() else { return };
    let client = client(&server).await;
    let collection = client.database(&server.fresh_database()).collection::<Document>("a");
    let mut open = client.start_session().await.unwrap();
    open.start_transaction().await.unwrap();
    collection.insert_one(doc! { "_id": 0 }).session(&mut open).await.unwrap();
    let left = {
        let engine = server.engine().clone();
        let sql = "select pid from pg_stat_activity where application_name like 'mongo-front-%'";
        move || engine.query(&engine.url(), sql)
    };
    let processes: Vec<Pid> =
        left().lines().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect();
    assert!(!processes.is_empty(), "the transaction is open in the engine");

    processes.iter().for_each(|process| kill_process(*process, Signal::STOP).unwrap());
    let mut killing = tokio::task::spawn_blocking({
        let server = server.clone();
        move || server.kill()
    });
    // Too short a wait would only let a mistake pass; it never fails a correct server.
    let early = timeout(Duration::from_secs(1), &mut killing).await;
    processes.iter().for_each(|process| kill_process(*process, Signal::CONT).unwrap());
    assert!(early.is_err(), "it did not wait for what it ends");
    killing.await.unwrap();
    assert_eq!(left(), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_server_answers_nothing_and_then_everything() {
    let Some(shared) = MongoDb::newest().shared().or_skip() else { return };
    if !shared.is_own() {
        return;
    }
    let server = MongoDb::newest().beside(&shared).unwrap();
    let sent = Arc::new(Notify::new());
    let mut options = options(&server).await;
    let tell = Arc::clone(&sent);
    options.command_event_handler = Some(EventHandler::callback(move |event| {
        if matches!(event, CommandEvent::Started(_)) {
            tell.notify_one();
        }
    }));
    let client = Client::with_options(options).unwrap();
    let collection = client.database(&server.fresh_database()).collection::<Document>("a");
    collection.insert_one(doc! { "_id": 0 }).await.unwrap();
    sent.notified().await;
    server.pause();
    let mut asked = tokio::spawn({
        let collection = collection.clone();
        async move { collection.insert_one(doc! { "_id": 1 }).await }
    });
    sent.notified().await;
    // Too short a wait would only let a mistake pass; it never fails a correct server.
    let answer = timeout(Duration::from_millis(200), &mut asked).await;
    assert!(answer.is_err(), "{answer:?}");
    server.resume();
    asked.await.unwrap().unwrap();
    assert_eq!(all(&collection).await.len(), 2);
}

#[tokio::test]
async fn a_transaction_that_nobody_ends_is_aborted() {
    let Some(shared) = MongoDb::newest().shared().or_skip() else { return };
    if !shared.is_own() {
        return;
    }
    let options = Options::default().transaction_lifetime(Duration::from_secs(1));
    let server = MongoDb::newest().options(options).beside(&shared).unwrap();
    let client = client(&server).await;
    let collection = client.database(&server.fresh_database()).collection::<Document>("a");
    collection.insert_one(doc! { "_id": 0, "n": 0 }).await.unwrap();
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let raise = doc! { "$inc": { "n": 1 } };
    collection.update_one(doc! { "_id": 0 }, raise.clone()).session(&mut session).await.unwrap();
    // Waits for the document until the server has aborted the transaction that holds it.
    let waits = async { collection.update_one(doc! { "_id": 0 }, raise).await };
    tokio::time::timeout(Duration::from_secs(120), waits).await.unwrap().unwrap();
    let error = session.commit_transaction().await.unwrap_err();
    assert_eq!(code(&error), Some(251), "{error:?}");
    assert_eq!(all(&collection).await, [doc! { "_id": 0, "n": 1 }]);
}
