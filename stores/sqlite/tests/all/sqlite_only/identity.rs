//! The identity of an outbox whose tables a migration tool made, or a test emptied.

use outbox_contract::Admin;
use outbox_store_sqlite::SqliteStore;

#[tokio::test]
async fn a_missing_identity_is_made_by_the_first_who_asks_and_kept() {
    let store = SqliteStore::in_memory().await.unwrap();
    let old = store.identity().await.unwrap();
    sqlx::query("delete from outbox_identity").execute(store.pool()).await.unwrap();
    let made = store.identity().await.unwrap();
    assert_ne!(made, old);
    assert_eq!(store.identity().await.unwrap(), made);
}

#[tokio::test]
async fn an_identity_that_is_no_uuid_is_refused_by_the_table() {
    let store = SqliteStore::in_memory().await.unwrap();
    let spoil = sqlx::query("update outbox_identity set id = 'shop'").execute(store.pool()).await;
    assert!(spoil.is_err());
    let second = sqlx::query("insert into outbox_identity (one, id) values (2, randomblob(16))");
    assert!(second.execute(store.pool()).await.is_err(), "there is one");
}
