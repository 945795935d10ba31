use mongodb::Client;
use mongodb::bson::{Document, doc};
use mongodb::error::ErrorKind;
use outbox_servers::mongo_front::Options;
use outbox_servers::{MongoDb, OrSkip as _};

use crate::code;

#[tokio::test]
async fn only_the_user_with_the_password_is_let_in() {
    let Some(shared) = MongoDb::newest().shared().or_skip() else { return };
    if !shared.is_own() {
        return;
    }
    let server = MongoDb::newest().options(Options::default().user("me", "secret")).beside(&shared).unwrap();
    let name = server.fresh_database();
    let insert = |url: String| {
        let name = name.clone();
        async move {
            let client = Client::with_uri_str(url).await.unwrap();
            client.database(&name).collection::<Document>("a").insert_one(doc! {}).await
        }
    };
    insert(server.url_of("me", "secret")).await.unwrap();
    for (user, password) in [("me", "guess"), ("you", "secret")] {
        let error = insert(server.url_of(user, password)).await.unwrap_err();
        assert!(matches!(*error.kind, ErrorKind::Authentication { .. }), "{error}");
    }
    assert_eq!(code(&insert(server.url()).await.unwrap_err()), Some(13));
}
