//! The stand-in as the official driver sees it: the features that the MongoDB store relies on.

#![allow(clippy::unwrap_used)]

mod access;
mod bytes;
mod cursors;
mod faults;
mod kinds;
mod life;
mod transactions;
mod writes;

use std::time::Duration;

use mongodb::bson::{Document, doc};
use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::options::ClientOptions;
use mongodb::{Client, Collection, Database};
use outbox_servers::{MongoDb, MongoDbServer, OrSkip as _};

/// A fresh database on the server that all tests share; `None` if there is none.
async fn database() -> Option<(Client, Database)> {
    let server = MongoDb::newest().shared().or_skip()?;
    let client = client(&server).await;
    let database = client.database(&server.fresh_database());
    Some((client, database))
}

async fn options(server: &MongoDbServer) -> ClientOptions {
    let mut options = ClientOptions::parse(server.url()).await.unwrap();
    // A limit for slow machines; no test waits for it to pass.
    options.server_selection_timeout = Some(Duration::from_secs(60));
    options
}

async fn client(server: &MongoDbServer) -> Client {
    Client::with_options(options(server).await).unwrap()
}

async fn all(collection: &Collection<Document>) -> Vec<Document> {
    use futures_util::TryStreamExt as _;
    let found = collection.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap();
    found.try_collect().await.unwrap()
}

/// MongoDB's number of an error.
fn code(error: &Error) -> Option<i32> {
    match error.kind.as_ref() {
        ErrorKind::Command(command) => Some(command.code),
        ErrorKind::Write(WriteFailure::WriteError(error)) => Some(error.code),
        ErrorKind::Write(WriteFailure::WriteConcernError(error)) => Some(error.code),
        ErrorKind::InsertMany(error) => {
            error.write_errors.as_ref().and_then(|errors| Some(errors.first()?.code))
        }
        _ => None,
    }
}

#[track_caller]
fn is_conflict(error: &Error) {
    assert_eq!(code(error), Some(112), "{error:?}");
    assert!(error.contains_label("TransientTransactionError"), "{error:?}");
}
