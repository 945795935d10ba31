//! Faulty files: each error names the fault and the remedy.

use outbox_contract::backend::Committed;
use outbox_contract::{AppendError, Consumer, Store, StoreError, StoreErrorKind, Transactional};
use outbox_store_sqlite::{SqliteOptions, SqliteStore};

use super::support::{Fixture, append, fetch, message, messages, relay};

fn assert_says(error: &StoreError, kind: StoreErrorKind, words: &str) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

async fn run(store: &SqliteStore, statement: &'static str) {
    sqlx::raw_sql(statement).execute(store.pool()).await.unwrap();
}

#[tokio::test]
async fn a_file_that_was_never_migrated_says_what_to_call() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("new.db")).await.unwrap();
    assert_says(&store.check().await.unwrap_err(), StoreErrorKind::NotMigrated, "call `migrate`");
    let error = store.backlog(&Default::default()).await.unwrap_err();
    assert_says(&error, StoreErrorKind::NotMigrated, "call `migrate`");
    let mut tx = store.begin().await.unwrap();
    let error = store.append(&mut tx, &[message("a", "1").into()]).await.unwrap_err();
    assert!(error.to_string().contains("call `migrate`"), "{error}");
    assert!(!error.is_retryable());
}

#[tokio::test]
async fn tables_of_a_newer_version_are_neither_used_nor_migrated() {
    let fixture = Fixture::new().await;
    run(&fixture.store, "insert into outbox_schema (version, name) values (77, 'from the future')").await;
    let error = fixture.store.check().await.unwrap_err();
    assert_says(&error, StoreErrorKind::SchemaTooNew, "version 77");
    assert_says(
        &fixture.store.migrate().await.unwrap_err(),
        StoreErrorKind::SchemaTooNew,
        "upgrade the program",
    );
}

#[tokio::test]
async fn altered_tables_are_found_before_a_relay_works_with_them() {
    for (alteration, words) in [
        ("alter table outbox_dead rename column reason to why", "browse_dead"),
        ("alter table outbox_relay drop column fingerprint", "lease_heartbeat"),
        ("drop table outbox_parked", "outbox_parked"),
        ("drop index outbox_message_unplaced", "outbox_message_unplaced"),
        ("drop view outbox_pending", "does not fit them"),
    ] {
        let fixture = Fixture::new().await;
        fixture.store.check().await.unwrap();
        run(&fixture.store, alteration).await;
        assert_says(&fixture.store.check().await.unwrap_err(), StoreErrorKind::SchemaAltered, words);
    }
}

#[tokio::test]
async fn a_table_whose_positions_would_come_back_is_altered() {
    let fixture = Fixture::new().await;
    run(
        &fixture.store,
        "pragma foreign_keys = off;
         drop view outbox_pending;
         create table rebuilt as select * from outbox_message;
         drop table outbox_message;
         alter table rebuilt rename to outbox_message;",
    )
    .await;
    assert_says(&fixture.store.check().await.unwrap_err(), StoreErrorKind::SchemaAltered, "autoincrement");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_told_from_one_that_is_away() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("letter.txt");
    std::fs::write(&path, "Dear Sir or Madam, this is not a database. ".repeat(100)).unwrap();
    let error = SqliteStore::open(&path).await.unwrap_err();
    assert_says(&error, StoreErrorKind::Other, "not a SQLite database");
    assert!(!error.is_retryable());

    let error = SqliteStore::open(directory.path().join("no/such/directory.db")).await.unwrap_err();
    assert_says(&error, StoreErrorKind::Unavailable, "directory");
}

#[tokio::test]
async fn a_file_that_can_only_be_read_is_unavailable_for_writing() {
    let fixture = Fixture::new().await;
    append(&fixture.store, [message("a", "1")]).await;
    let url = format!("sqlite://{}?mode=ro", fixture.path().display());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let store = SqliteStore::new(pool);
    assert_eq!(store.backlog(&Default::default()).await.unwrap().pending, 1, "it can be looked at");
    let error = store.maintain(10).await.unwrap_err();
    assert_says(&error, StoreErrorKind::Unavailable, "read-only");
}

/// Makes a disk full: the file of this connection may not grow.
async fn fill_disk(connection: &mut sqlx::SqliteConnection) {
    sqlx::raw_sql("pragma max_page_count = 60").execute(connection).await.unwrap();
}

fn large() -> outbox_contract::Outgoing {
    message("a", &"x".repeat(1_000_000)).into()
}

#[tokio::test]
async fn a_full_disk_is_unavailable_and_loses_nothing() {
    let fixture = Fixture::new().await;
    append(&fixture.store, [message("a", "1")]).await;
    let mut tx = fixture.store.begin().await.unwrap();
    fill_disk(&mut tx).await;
    let error = fixture.store.append(&mut tx, &[large()]).await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("disk is full"), "{error}");
    fixture.store.rollback(tx).await.unwrap();
    let relay = relay(&fixture.store).await;
    assert_eq!(messages(&fetch(&fixture.store, relay).await).len(), 1);
}

/// SQLite rolls back by itself when the disk is full; an append that continues must not commit
/// alone (promise P1).
#[tokio::test]
async fn nothing_is_appended_to_a_transaction_that_the_database_has_rolled_back() {
    let fixture = Fixture::new().await;
    let mut tx = fixture.store.begin().await.unwrap();
    fill_disk(&mut tx).await;
    sqlx::query("create table orders (text)").execute(&mut *tx).await.unwrap();
    sqlx::query("insert into orders values (zeroblob(1000000))").execute(&mut *tx).await.unwrap_err();
    let error = fixture.store.append(&mut tx, &[message("a", "1").into()]).await.unwrap_err();
    let AppendError::Store(error) = error else { panic!("{error}") };
    assert_says(&error, StoreErrorKind::NotInTransaction, "start again");
    assert!(matches!(fixture.store.commit(tx).await, Committed::No(_)));
    assert_eq!(fixture.store.backlog(&Default::default()).await.unwrap().pending, 0);
}

/// The same at an inbox: if its record were committed alone, a message would never be handled
/// (promise P4).
#[tokio::test]
async fn nothing_is_handled_in_a_transaction_that_the_database_has_rolled_back() {
    let fixture = Fixture::new().await;
    let (consumer, message) = (Consumer::new("stock").unwrap(), message("a", "1"));
    let mut tx = fixture.store.begin().await.unwrap();
    fill_disk(&mut tx).await;
    sqlx::query("create table orders (text)").execute(&mut *tx).await.unwrap();
    sqlx::query("insert into orders values (zeroblob(1000000))").execute(&mut *tx).await.unwrap_err();
    let error = fixture.store.deduplicate(&mut tx, &consumer, &[&message]).await.unwrap_err();
    assert_says(&error, StoreErrorKind::NotInTransaction, "start again");
    assert!(matches!(fixture.store.commit(tx).await, Committed::No(_)));
    assert!(!fixture.store.is_handled(&consumer, message.id).await.unwrap());
}

/// The driver treats a transaction that SQLite rolled back as open: its connection must not be used
/// again.
#[tokio::test]
async fn the_store_works_again_when_the_disk_has_room_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut options = SqliteOptions::default();
    options.connections = 1;
    let store = SqliteStore::open_with(directory.path().join("outbox.db"), options).await.unwrap();
    fill_disk_and_make_room(&store).await;
}

#[tokio::test]
async fn a_pool_of_your_own_works_again_with_the_options_that_the_book_names() {
    // ANCHOR: own_pool
    use sqlx::Connection;

    let options = sqlx::sqlite::SqlitePoolOptions::new().after_release(|connection, _| {
        Box::pin(async move {
            connection.ping().await?; // a roll-back that is under way is over then
            Ok(!connection.is_in_transaction())
        })
    });
    // ANCHOR_END: own_pool
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", directory.path().join("outbox.db").display());
    let pool = options.max_connections(1).connect(&url).await.unwrap();
    fill_disk_and_make_room(&SqliteStore::new(pool)).await;
}

async fn fill_disk_and_make_room(store: &SqliteStore) {
    store.migrate().await.unwrap();
    let mut tx = store.begin().await.unwrap();
    fill_disk(&mut tx).await;
    store.append(&mut tx, &[large()]).await.unwrap_err();
    drop(tx);
    // The limit was that connection's; the next one has none.
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, &[large()]).await.unwrap();
    store.rollback(tx).await.unwrap();
    append(store, [message("a", "1")]).await;
    let relay = relay(store).await;
    assert_eq!(messages(&fetch(store, relay).await).len(), 1);
}

#[tokio::test]
async fn what_is_wrong_with_options_or_a_url_is_said_without_the_path() {
    let error = SqliteStore::connect("postgres://user:hunter2@host/db").await.unwrap_err();
    assert_says(&error, StoreErrorKind::Invalid, "sqlite://");
    let fixture = Fixture::new().await;
    let shown = format!("{:?}", fixture.store);
    assert!(!shown.contains("outbox.db"), "{shown}");
}

#[tokio::test]
async fn a_store_in_a_users_own_pool_of_memory_works_alone() {
    let pool =
        sqlx::sqlite::SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
    let store = SqliteStore::new(pool);
    store.migrate().await.unwrap();
    append(&store, [message("a", "1")]).await;
    let relay = relay(&store).await;
    assert_eq!(messages(&fetch(&store, relay).await).len(), 1);
}

#[tokio::test]
async fn the_database_of_in_memory_is_gone_with_its_last_pool() {
    let store = SqliteStore::in_memory().await.unwrap();
    append(&store, [message("a", "1")]).await;
    let file: String = sqlx::query_scalar("select file from pragma_database_list where name = 'main'")
        .fetch_one(store.pool())
        .await
        .unwrap();
    let pool = store.pool().clone();
    drop(store);
    let count: i64 =
        sqlx::query_scalar("select count(*) from outbox_message").fetch_one(&pool).await.unwrap();
    assert_eq!(count, 1, "a pool that outlives the store still works");
    pool.close().await;
    drop(pool);
    let directory = std::path::Path::new(&file).parent().unwrap().to_owned();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while directory.exists() {
        assert!(std::time::Instant::now() < deadline, "{} is still there", directory.display());
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_name_of_memory_is_a_database_that_all_connections_share() {
    for name in [":memory:", ""] {
        let store = SqliteStore::open(name).await.unwrap();
        store.migrate().await.unwrap();
        store.check().await.unwrap();
        append(&store, [message("a", "1")]).await;
        assert_eq!(messages(&fetch(&store, relay(&store).await).await).len(), 1, "{name:?}");
    }
    let store = SqliteStore::connect("sqlite://shop?mode=memory").await.unwrap();
    store.migrate().await.unwrap();
    append(&store, [message("a", "1")]).await;
    assert_eq!(messages(&fetch(&store, relay(&store).await).await).len(), 1);
    assert!(!std::path::Path::new("shop").exists());
}

/// Connections keep writing to the file that they have opened: commits there are lost with it.
#[cfg(unix)]
#[tokio::test]
async fn a_file_that_was_replaced_under_an_open_store_is_noticed() {
    let (fixture, other) = (Fixture::new().await, Fixture::new().await);
    let users = sqlx::SqlitePool::connect_lazy(&format!("sqlite://{}", fixture.path().display())).unwrap();
    let beside = SqliteStore::new(users);
    let lease = super::support::lease_request(outbox_contract::backend::RelayId::new());
    for store in [&fixture.store, &beside] {
        store.lease(&lease).await.unwrap();
        store.check().await.unwrap();
    }
    other.store.pool().close().await;
    std::fs::rename(other.path(), fixture.path()).unwrap();
    for store in [&fixture.store, &beside] {
        assert_says(&store.lease(&lease).await.unwrap_err(), StoreErrorKind::Other, "was replaced");
        assert_says(&store.check().await.unwrap_err(), StoreErrorKind::Other, "was replaced");
    }
    std::fs::remove_file(fixture.path()).unwrap();
    assert_says(&fixture.store.lease(&lease).await.unwrap_err(), StoreErrorKind::Other, "removed");
}

/// The error makes no claim about existing tables.
#[tokio::test]
async fn a_disk_that_is_full_while_tables_are_made_is_unavailable() {
    let directory = tempfile::tempdir().unwrap();
    let file = sqlx::sqlite::SqliteConnectOptions::new().filename(directory.path().join("outbox.db"));
    let file = file.create_if_missing(true).pragma("max_page_count", "10");
    let store = SqliteStore::new(sqlx::SqlitePool::connect_with(file).await.unwrap());
    assert_says(&store.migrate().await.unwrap_err(), StoreErrorKind::Unavailable, "disk is full");
}
