use mongodb::bson::{Document, doc};
use outbox_servers::mongo_front::Options;
use outbox_servers::{MongoDb, OrSkip as _};

use crate::{client, code};

#[tokio::test]
async fn a_standalone_server_has_no_set_name_and_no_transactions() {
    let Some(shared) = MongoDb::newest().shared().or_skip() else { return };
    if !shared.is_own() {
        return;
    }
    let server = MongoDb::newest().options(Options::default().standalone()).beside(&shared).unwrap();
    let client = client(&server).await;
    let database = client.database(&server.fresh_database());
    let hello = database.run_command(doc! { "hello": 1 }).await.unwrap();
    assert_eq!(hello.get("setName"), None, "{hello}");
    let collection = database.collection::<Document>("a");
    let mut session = client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let error = collection.insert_one(doc! {}).session(&mut session).await.unwrap_err();
    assert_eq!(code(&error), Some(20), "{error:?}");
}

#[tokio::test]
async fn another_version_is_played() {
    let Some(shared) = MongoDb::newest().shared().or_skip() else { return };
    if !shared.is_own() {
        return;
    }
    let server = MongoDb::newest().options(Options::default().version("4.4.1", 9)).beside(&shared).unwrap();
    let client = client(&server).await;
    let database = client.database("admin");
    let info = database.run_command(doc! { "buildInfo": 1 }).await.unwrap();
    assert_eq!(info.get_str("version").unwrap(), "4.4.1");
    let hello = database.run_command(doc! { "hello": 1 }).await.unwrap();
    assert_eq!(hello.get_i32("maxWireVersion").unwrap(), 9);
}
