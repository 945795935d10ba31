//! Limits of a server, a role or a pooler: sessions that are ended, servers that take no writes any
//! more, unusable settings.

use std::time::Duration;

use outbox_contract::backend::{BucketSet, Dedup, FetchRequest, RelayId};
use outbox_contract::{Consumer, Route, Store, StoreError, StoreErrorKind, Transactional};
use outbox_servers::{OrSkip, PgBouncer, Postgres};
use outbox_store_postgres::{PostgresOptions, PostgresStore};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use super::hidden::as_a_role;
use super::support::{
    Fixture, LONG, append, fetch, lease, lease_request, message, messages, number, open, options, run, text,
};

fn says(error: &StoreError, kind: StoreErrorKind, words: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

/// Changes a setting of a test's role, in whose new sessions it is in force.
async fn set(fixture: &Fixture, role: &str, setting: &str) {
    fixture.run(&format!("alter role {role} set {setting}")).await;
}

/// Performs the operations of a relay and an inbox, on every connection.
async fn all_of_it(store: &PostgresStore, relay: RelayId) {
    let route = Route::default();
    store.lease(&lease_request(relay)).await.unwrap();
    append(store, [message("a")]).await;
    let rows: Vec<_> = messages(&fetch(store, relay).await).iter().map(|stored| stored.row()).collect();
    store.fetch_below(&FetchRequest::new(route.clone(), relay, BucketSet::ALL)).await.unwrap();
    store.frontier().writers().await.unwrap();
    store.settle(&route, &rows).await.unwrap();
    store.backlog(&route).await.unwrap();
    store.elect("janitor", relay, LONG).await.unwrap();
    store.maintain(10).await.unwrap();
}

/// Ends the sessions of a database, as an idle timeout, an administrator or a failover does.
async fn end_sessions(fixture: &Fixture) {
    let others = "select count(pg_terminate_backend(pid, 60000)) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()";
    number(&mut fixture.connection().await, others).await;
}

#[tokio::test]
async fn an_idle_session_timeout_of_the_role_ends_no_connection_of_the_store() {
    let Some(fixture) = Fixture::new().await else { return };
    let (role, _) = as_a_role(&fixture).await;
    set(&fixture, &role, "idle_session_timeout = '200ms'").await;
    let address: PgConnectOptions = fixture.url.parse().unwrap();
    let pool = PgPool::connect_lazy_with(address.username(&role));
    let store = PostgresStore::with_options(pool, options()).unwrap();
    let relay = RelayId::new();
    let life = lease(&store, relay).await.life;
    all_of_it(&store, relay).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // The pool's own are ended, and begin notices.
    all_of_it(&store, relay).await;
    assert_eq!(store.lease(&lease_request(relay)).await.unwrap().life, life, "the connection is the same");
}

/// On new connections: the request is performed, without an error.
#[tokio::test]
async fn a_session_that_was_ended_while_it_was_idle_is_replaced_quietly() {
    let Some(fixture) = Fixture::new().await else { return };
    let (relay, store) = (RelayId::new(), &fixture.store);
    let life = lease(store, relay).await.life;
    let mut request = FetchRequest::new(Route::default(), relay, BucketSet::ALL);
    append(store, [message("a")]).await;
    let rows: Vec<_> = messages(&fetch(store, relay).await).iter().map(|stored| stored.row()).collect();
    for _ in 0..2 {
        store.settle(&request.route, &rows).await.unwrap();
        store.frontier().writers().await.unwrap();
        store.backlog(&request.route).await.unwrap();
        request.limit += 1;
        store.fetch(&request).await.unwrap();
        store.fetch_below(&request).await.unwrap();
        end_sessions(&fixture).await;
    }
    store.fetch(&request).await.unwrap();
    let again = store.lease(&lease_request(relay)).await.unwrap();
    assert_ne!(again.life, life, "a connection that broke is told");
    assert_eq!(again.leases.len(), 256);
}

/// A failover with an old name: the server is still there, and takes no writes any more.
#[tokio::test]
async fn connections_to_a_server_that_takes_no_writes_any_more_are_left() {
    let (Some(old), Some(new)) = (Postgres::newest().start().or_skip(), Postgres::newest().start().or_skip())
    else {
        return;
    };
    for server in [&old, &new] {
        open(&server.url(), options()).await.migrate().await.unwrap();
    }
    let pool = PgPoolOptions::new().test_before_acquire(false).connect(&old.url()).await.unwrap();
    let store = PostgresStore::with_options(pool.clone(), options()).unwrap();
    let relay = RelayId::new();
    all_of_it(&store, relay).await;
    let consumer = Consumer::new("inventory").unwrap();
    let deduplicate = async |message| {
        let mut tx = store.begin().await.unwrap();
        let handled = store.deduplicate(&mut tx, &consumer, &[message]).await;
        match handled {
            Ok(handled_ids) => store.commit(tx).await.into_result().map(|()| handled_ids),
            Err(error) => store.rollback(tx).await.and(Err(error)),
        }
    };
    let handled = message("a");
    assert_eq!(deduplicate(&handled).await.unwrap(), [Dedup::New]);

    old.query(&old.url(), "alter system set default_transaction_read_only = on");
    old.query(&old.url(), "select pg_reload_conf()");
    pool.set_connect_options(new.url().parse().unwrap());
    let refused = async { while store.lease(&lease_request(relay)).await.is_ok() {} };
    tokio::time::timeout(LONG, refused).await.unwrap();
    // Reads succeed on the old one as well: none of its connections is used again.
    lease(&store, relay).await;
    open(&new.url(), options()).await.check().await.unwrap();
    append(&open(&new.url(), options()).await, [message("b")]).await;
    assert_eq!(messages(&fetch(&store, relay).await).len(), 1);

    // The pool has one that leads to the old server still.
    let next = message("c");
    says(
        &deduplicate(&next).await.unwrap_err(),
        StoreErrorKind::Unavailable,
        &["default_transaction_read_only"],
    );
    assert_eq!(deduplicate(&next).await.unwrap(), [Dedup::New]);
    all_of_it(&store, relay).await;
}

#[tokio::test]
async fn a_connection_gets_no_older_than_it_may() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut short = PostgresOptions::default();
    short.max_connection_age = Duration::from_millis(300);
    let store = open(&fixture.url, short).await;
    let relay = RelayId::new();
    let life = lease(&store, relay).await.life;
    let fetching = "select coalesce(max(pid), 0)::bigint from pg_stat_activity where datname = current_database() and query like '-- One fetch%'";
    fetch(&store, relay).await;
    let first = fixture.number(fetching).await;
    tokio::time::sleep(Duration::from_millis(400)).await;
    fetch(&store, relay).await;
    fixture.until(&format!("select (({fetching}) <> {first})::int::bigint"), 1).await;
    assert_eq!(lease(&store, relay).await.life, life, "but for that of heartbeats");
}

#[tokio::test]
async fn a_pooler_by_the_transaction_has_to_be_named() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let direct = server.fresh_database();
    open(&direct, options()).await.migrate().await.unwrap();
    let Some(pooler) = PgBouncer::newest(&server).start().or_skip() else { return };
    let url = pooler.url(&direct);
    let words = ["pooler", "transaction_pooler", "pool_mode = transaction"];
    let Err(refused) = PostgresStore::connect_with(&url, options()).await else {
        panic!("expected a refusal")
    };
    says(&refused, StoreErrorKind::Unsupported, &words);
    let pool = PgPool::connect_with(url.parse::<PgConnectOptions>().unwrap().statement_cache_capacity(0))
        .await
        .unwrap();
    let store = PostgresStore::with_options(pool, options()).unwrap();
    says(&store.check().await.unwrap_err(), StoreErrorKind::Unsupported, &words);
}

/// Our settings are in force behind a pooler that drops or refuses startup parameters.
#[tokio::test]
async fn a_pooler_by_the_session_needs_nothing() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    for ignored in ["extra_float_digits", "extra_float_digits,options"] {
        let pooler = PgBouncer::newest(&server)
            .config("pool_mode = session")
            .config(&format!("ignore_startup_parameters = {ignored}"));
        let Some(pooler) = pooler.start().or_skip() else { return };
        let direct = server.fresh_database();
        let store = open(&pooler.url(&direct), options()).await;
        store.migrate().await.unwrap();
        store.check().await.unwrap();
        let relay = RelayId::new();
        all_of_it(&store, relay).await;
        // It waits for other transactions' locks no longer than configured.
        let mut short = options();
        short.lock_timeout = Duration::from_millis(200);
        let store = open(&pooler.url(&direct), short).await;
        let mut holder = <sqlx::PgConnection as sqlx::Connection>::connect(&direct).await.unwrap();
        run(&mut holder, "begin; lock table outbox_role").await;
        let waited = tokio::time::timeout(LONG, store.elect("janitor", relay, LONG)).await.unwrap();
        says(&waited.unwrap_err(), StoreErrorKind::Conflict, &["lock timeout"]);
    }
}

#[tokio::test]
async fn a_pooler_that_refuses_a_parameter_is_named() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let Some(pooler) = PgBouncer::newest(&server).config("ignore_startup_parameters = ").start().or_skip()
    else {
        return;
    };
    let url = format!("{}?options=-c%20jit%3Doff", pooler.url(&server.fresh_database()));
    let Err(refused) = PostgresStore::connect_with(&url, options()).await else {
        panic!("expected a refusal")
    };
    says(&refused, StoreErrorKind::Unsupported, &["ignore_startup_parameters"]);
}

#[tokio::test]
async fn settings_under_which_nothing_works_are_named() {
    let Some(fixture) = Fixture::new().await else { return };
    let (role, _) = as_a_role(&fixture).await;
    let address: PgConnectOptions = fixture.url.parse().unwrap();
    let address = address.username(&role);
    let database = text(fixture.store.pool(), "select current_database()::text").await;
    for (setting, name, kind, words) in [
        (
            "default_transaction_read_only = on",
            "default_transaction_read_only",
            StoreErrorKind::Unavailable,
            ["alter role", "user"],
        ),
        (
            "standard_conforming_strings = off",
            "standard_conforming_strings",
            StoreErrorKind::Unavailable,
            ["alter role", "off"],
        ),
        ("search_path = nowhere", "search_path", StoreErrorKind::NotMigrated, ["public", "nowhere"]),
    ] {
        set(&fixture, &role, setting).await;
        let pool = PgPool::connect_with(address.clone()).await.unwrap();
        let store = PostgresStore::with_options(pool, options()).unwrap();
        let refused = store.check().await.unwrap_err();
        says(&refused, kind, &words);
        assert!(refused.to_string().contains(name), "{refused}");
        if name == "search_path" {
            fixture.run(&format!("grant create on database {database} to {role}")).await;
            says(
                &store.migrate().await.unwrap_err(),
                StoreErrorKind::NotMigrated,
                &["search_path", "schema"],
            );
        }
        fixture.run(&format!("alter role {role} reset all")).await;
    }
    let pool = PgPool::connect_with(address).await.unwrap();
    PostgresStore::with_options(pool, options()).unwrap().check().await.unwrap();
}
