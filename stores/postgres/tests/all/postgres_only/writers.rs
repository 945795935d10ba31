//! Writers that may still commit below a position: by the locks on the table of this outbox,
//! sessions or not.

use outbox_contract::backend::Position;
use outbox_contract::{Store, Transactional};

use super::support::{Fixture, append, message, options, run};

#[tokio::test]
async fn an_open_writer_is_known_until_it_is_over() {
    let Some(fixture) = Fixture::new().await else { return };
    let store = &fixture.store;
    assert_eq!(store.frontier().writers().await.unwrap().last, Position::START);
    let mut tx = store.begin().await.unwrap();
    assert!(store.frontier().writers().await.unwrap().open.is_empty(), "it has not written yet");
    store.append(&mut tx, &[message("a").into()]).await.unwrap();
    let writers = store.frontier().writers().await.unwrap();
    assert_eq!((writers.open.len(), writers.last), (1, Position(1)));
    store.rollback(tx).await.unwrap();
    let writers = store.frontier().writers().await.unwrap();
    assert_eq!((writers.open.len(), writers.last), (0, Position(1)), "the position is gone for good");
}

/// It holds its locks without a session: a restart of the server does not end it.
#[tokio::test]
async fn a_prepared_transaction_is_a_writer_until_it_is_decided() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut connection = fixture.connection().await;
    let name = fixture.url.rsplit('/').next().unwrap().to_owned();
    run(&mut connection, "begin").await;
    run(&mut connection, "insert into outbox_message (topic, key, event_type) values ('orders', 'a', 'x')")
        .await;
    run(&mut connection, &format!("prepare transaction '{name}'")).await;
    drop(connection);
    let before = fixture.store.frontier().writers().await.unwrap();
    assert_eq!((before.open.len(), before.last), (1, Position(1)), "{before:?}");
    let mut connection = fixture.connection().await;
    run(&mut connection, &format!("commit prepared '{name}'")).await;
    let after = fixture.store.frontier().writers().await.unwrap();
    assert!(before.open.is_disjoint(&after.open), "{before:?} {after:?}");
}

#[tokio::test]
async fn writers_of_other_tables_schemas_and_databases_are_none() {
    let Some(fixture) = Fixture::new().await else { return };
    let Some(elsewhere) = Fixture::new().await else { return };
    let mut here = options();
    here.schema = Some("other".to_owned());
    let other = super::support::open(&fixture.url, here).await;
    other.migrate().await.unwrap();
    fixture.run("create table orders (id text)").await;

    let mut in_schema = other.begin().await.unwrap();
    other.append(&mut in_schema, &[message("a").into()]).await.unwrap();
    let mut in_database = elsewhere.store.begin().await.unwrap();
    elsewhere.store.append(&mut in_database, &[message("a").into()]).await.unwrap();
    let mut in_table = fixture.connection().await;
    run(&mut in_table, "begin; insert into orders values ('1')").await;

    assert!(fixture.store.frontier().writers().await.unwrap().open.is_empty());
    assert_eq!(other.frontier().writers().await.unwrap().open.len(), 1);
    append(&fixture.store, [message("a")]).await;
}
