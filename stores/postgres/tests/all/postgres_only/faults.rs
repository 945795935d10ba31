//! Mistakes of operators, and exhausted resources of a server: each gives a clear error with the
//! remedy, and none shows a password.

use outbox_contract::{AppendError, Store, StoreError, StoreErrorKind, Transactional};
use outbox_servers::{OrSkip, Postgres, PostgresServer};
use outbox_store_postgres::PostgresStore;

use super::support::{Fixture, append, message, open, options, run};

const SECRET: &str = "s3cr3t-pa55";

/// A URL with another user and password, or another database.
fn url(server: &PostgresServer, user: &str, database: &str) -> String {
    format!("postgres://{user}@127.0.0.1:{}/{database}", server.tcp_port())
}

async fn refused(url: &str) -> StoreError {
    match PostgresStore::connect_with(url, options()).await {
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
async fn wrong_addresses_are_refused_with_the_remedy() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let mut admin = open(&server.url(), options()).await.pool().acquire().await.unwrap();
    run(
        &mut admin,
        &format!("create role guest login password '{SECRET}'; create role full login connection limit 0"),
    )
    .await;
    run(
        &mut admin,
        "do $$ begin execute format('copy (select unnest(array[''host all guest 127.0.0.1/32 scram-sha-256'', \
         ''host all postgres 127.0.0.1/32 trust'', ''host all full 127.0.0.1/32 trust''])) to %L', current_setting('hba_file')); end $$; \
         select pg_reload_conf()",
    )
    .await;

    let unknown = refused(&url(&server, "postgres", "nowhere")).await;
    assert_says(&unknown, StoreErrorKind::NotPermitted, "no such database");
    // The new rules are in force as soon as an unknown user is refused by them.
    let waiting = async {
        while !refused(&url(&server, "stranger", "postgres")).await.to_string().contains("pg_hba.conf entry")
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(super::support::LONG, waiting).await.unwrap();
    let wrong = refused(&url(&server, &format!("guest:{SECRET}-not"), "postgres")).await;
    assert_says(&wrong, StoreErrorKind::NotPermitted, "user or password");
    let full = refused(&url(&server, "full", "postgres")).await;
    assert_says(&full, StoreErrorKind::Unavailable, "max_connections");
    let no_tls =
        refused(&format!("{}?sslmode=require", url(&server, &format!("guest:{SECRET}"), "postgres"))).await;
    assert_says(&no_tls, StoreErrorKind::NotPermitted, "sslmode");
    let nonsense = refused(&format!("postgres://guest:{SECRET}@127.0.0.1:notaport/x")).await;
    assert_says(&nonsense, StoreErrorKind::Invalid, "percent-encoded");

    // No server listens there any more.
    let gone = url(&server, &format!("guest:{SECRET}"), "postgres");
    let store = PostgresStore::connect_with(&gone, options()).await.unwrap();
    assert!(!format!("{store:?}").contains(SECRET));
    server.stop();
    assert_says(&refused(&gone).await, StoreErrorKind::Unavailable, "connection refused");
    assert_says(&store.check().await.unwrap_err(), StoreErrorKind::Unavailable, "connection refused");
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused() {
    let Some(server) = Postgres::newest().tls().start().or_skip() else { return };
    let Some(other) = Postgres::newest().tls().start().or_skip() else { return };
    let trusted = open(&server.tls_url(), options()).await;
    trusted.migrate().await.unwrap();
    append(&trusted, [message("a")]).await;
    let wrong = format!("{}?sslmode=verify-full&sslrootcert={}", server.url(), other.authorities().display());
    assert_says(&refused(&wrong).await, StoreErrorKind::NotPermitted, "sslrootcert");
}

#[tokio::test]
async fn a_role_without_rights_is_told_which_it_needs() {
    let Some(fixture) = Fixture::new().await else { return };
    let role = format!("role_{}", fixture.url.rsplit('/').next().unwrap());
    fixture.run(&format!("create role {role} login; revoke create on schema public from public")).await;
    let (_, address) = fixture.url.split_once('@').unwrap();
    let guest = open(&format!("postgres://{role}@{address}"), options()).await;

    // To write.
    let mut tx = guest.begin().await.unwrap();
    let AppendError::Store(error) = guest.append(&mut tx, &[message("a").into()]).await.unwrap_err() else {
        panic!("expected another error");
    };
    assert_says(&error, StoreErrorKind::NotPermitted, "grant it select, insert");
    guest.rollback(tx).await.unwrap();

    // To create tables.
    let mut elsewhere = options();
    elsewhere.schema = Some("guests".to_owned());
    let guest = open(&format!("postgres://{role}@{address}"), elsewhere).await;
    assert_says(&guest.migrate().await.unwrap_err(), StoreErrorKind::NotPermitted, "create on the schema");

    // The permissions of the book are sufficient.
    fixture
        .run(&format!(
            "grant usage on schema public to {role}; grant select, insert, update, delete on all tables in schema public to {role}; \
             grant usage, select on all sequences in schema public to {role}"
        ))
        .await;
    let guest = open(&format!("postgres://{role}@{address}"), options()).await;
    guest.check().await.unwrap();
    append(&guest, [message("a")]).await;
    let relay = super::support::relay(&guest).await;
    let read = super::support::messages(&super::support::fetch(&guest, relay).await);
    guest.settle(&Default::default(), &[read[0].row()]).await.unwrap();
    guest.maintain(100).await.unwrap();
}

#[tokio::test]
async fn a_standby_is_known_for_what_it_is() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let primary = open(&server.url(), options()).await;
    primary.migrate().await.unwrap();
    let Some(standby) = server.standby().or_skip() else { return };
    let follower = open(&standby.url(), options()).await;
    // The tables follow in their own time.
    let waiting = async {
        loop {
            let error = follower.check().await.unwrap_err();
            assert_says(&error, StoreErrorKind::Unavailable, "standby");
            let mut tx = follower.begin().await.unwrap();
            let AppendError::Store(error) =
                follower.append(&mut tx, &[message("a").into()]).await.unwrap_err()
            else {
                panic!("expected another error");
            };
            follower.rollback(tx).await.unwrap();
            if error.kind() != StoreErrorKind::NotMigrated {
                break error;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let error = tokio::time::timeout(super::support::LONG, waiting).await.unwrap();
    assert_says(&error, StoreErrorKind::Unavailable, "standby");
}

/// A statement waits for longer than the role may.
#[tokio::test]
async fn a_statement_timeout_is_named_and_writes_nothing() {
    let Some(fixture) = Fixture::new().await else { return };
    let role = format!("role_{}", fixture.url.rsplit('/').next().unwrap());
    let database = fixture.url.rsplit('/').next().unwrap();
    fixture
        .run(&format!(
            "create role {role} login superuser; alter role {role} in database {database} set statement_timeout = '300ms'"
        ))
        .await;
    let (_, address) = fixture.url.split_once('@').unwrap();
    let hasty = open(&format!("postgres://{role}@{address}"), options()).await;
    let mut holder = fixture.store.begin().await.unwrap();
    fixture.store.append(&mut holder, &[message("a").into()]).await.unwrap();
    let mut tx = hasty.begin().await.unwrap();
    let AppendError::Store(error) = hasty.append(&mut tx, &[message("a").into()]).await.unwrap_err() else {
        panic!("expected another error");
    };
    assert_says(&error, StoreErrorKind::Unavailable, "statement_timeout");
    assert!(hasty.commit(tx).await.into_result().is_err(), "its transaction has failed");
    fixture.store.commit(holder).await.into_result().unwrap();
    assert_eq!(fixture.number("select count(*) from outbox_message").await, 1);
}

#[tokio::test]
async fn tables_that_are_not_there_are_asked_for() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let store = open(&server.fresh_database(), options()).await;
    assert_says(&store.check().await.unwrap_err(), StoreErrorKind::NotMigrated, "migrate");
    let mut tx = store.begin().await.unwrap();
    let AppendError::Store(error) = store.append(&mut tx, &[message("a").into()]).await.unwrap_err() else {
        panic!("expected another error");
    };
    assert_says(&error, StoreErrorKind::NotMigrated, "migrate");
    store.rollback(tx).await.unwrap();
}

#[tokio::test]
async fn a_database_in_another_encoding_is_refused() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let name = server.fresh_database().rsplit('/').next().unwrap().to_owned() + "_latin";
    server.query(
        &server.url(),
        &format!("create database {name} encoding 'LATIN1' locale 'C' template template0"),
    );
    let (address, _) = server.url().rsplit_once('/').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let store = open(&format!("{address}/{name}"), options()).await;
    assert_says(&store.check().await.unwrap_err(), StoreErrorKind::Unsupported, "LATIN1");
}
