//! The store's own connections: opened with the pool's options at that moment, and checked after a
//! long idle time.

use std::time::Duration;

use futures_util::StreamExt;
use outbox_contract::backend::{BucketSet, FetchRequest, RelayId, RowId, Wakeup};
use outbox_contract::{MessageId, Route, Store, StoreErrorKind};
use outbox_servers::{OrSkip, Postgres, Proxy};
use outbox_store_postgres::PostgresStore;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{Connection, Executor};

use super::support::{
    Fixture, LONG, append, fetch, lease, lease_request, message, messages, open, options, run,
};

fn address(url: &str) -> PgConnectOptions {
    url.parse().unwrap()
}

#[tokio::test]
async fn a_password_that_was_changed_for_the_pool_holds_for_the_stores_own_connections() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let mut admin = open(&server.url(), options()).await.pool().acquire().await.unwrap();
    run(&mut admin, "create role rotating login superuser password 'one'").await;
    run(
        &mut admin,
        "do $$ begin execute format('copy (select unnest(array[''host all rotating 127.0.0.1/32 scram-sha-256'', \
         ''host all postgres 127.0.0.1/32 trust''])) to %L', current_setting('hba_file')); end $$; select pg_reload_conf()",
    )
    .await;
    let with = |password: &str| address(&server.url()).username("rotating").password(password);
    // The new rules are in force as soon as a wrong password is refused.
    let waiting = async { while sqlx::PgConnection::connect_with(&with("no")).await.is_ok() {} };
    tokio::time::timeout(LONG, waiting).await.unwrap();

    let pool = PgPool::connect_with(with("one")).await.unwrap();
    let store = PostgresStore::with_options(pool.clone(), options()).unwrap();
    store.migrate().await.unwrap();
    run(&mut admin, "alter role rotating password 'two'").await;
    let refused = store.lease(&lease_request(RelayId::new())).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::NotPermitted, "{refused}");
    pool.set_connect_options(with("two"));
    lease(&store, RelayId::new()).await;
    store.check().await.unwrap();
}

/// A pool whose connections find the outbox of a schema because of a hook, which does not run on
/// the store's own.
async fn hooked(url: &str, search_path: &'static str) -> PostgresStore {
    let pool = PgPoolOptions::new().after_connect(move |connection, _| {
        Box::pin(async move { connection.execute(search_path).await.map(|_| ()) })
    });
    PostgresStore::with_options(pool.connect(url).await.unwrap(), options()).unwrap()
}

#[tokio::test]
async fn a_pool_whose_hook_leads_to_another_outbox_is_refused() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut schema = options();
    schema.schema = Some("shop".to_owned());
    let shop = open(&fixture.url, schema.clone()).await;
    shop.migrate().await.unwrap();
    for path in ["set search_path to shop", "set search_path to nothing"] {
        let refused = hooked(&fixture.url, path).await.check().await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Invalid, "{path}: {refused}");
        assert!(refused.to_string().contains("after_connect"), "{refused}");
    }
    hooked(&fixture.url, "set search_path to public").await.check().await.unwrap();

    // With a name for the schema, the search_path does not matter.
    let pool = hooked(&fixture.url, "set search_path to nothing").await.pool().clone();
    let store = PostgresStore::with_options(pool, schema).unwrap();
    store.check().await.unwrap();
}

/// A store whose connections go through a proxy that drops everything from then on, and new ones
/// around it.
async fn forgotten(fixture: &Fixture, work: impl AsyncFnOnce(&PostgresStore)) -> (Proxy, PostgresStore) {
    let proxy = Proxy::to(&fixture.url);
    let mut options = options();
    options.idle_check = Duration::from_millis(100);
    options.connect_timeout = Duration::from_secs(2);
    let pool = PgPoolOptions::new().connect_lazy_with(address(&proxy.url(&fixture.url)));
    let store = PostgresStore::with_options(pool.clone(), options).unwrap();
    work(&store).await;
    proxy.swallow();
    pool.set_connect_options(address(&fixture.url));
    (proxy, store)
}

#[tokio::test]
async fn a_connection_that_the_network_forgot_while_it_was_idle_costs_no_error() {
    let Some(fixture) = Fixture::new().await else { return };
    append(&fixture.store, [message("a")]).await;
    let relay = super::support::relay(&fixture.store).await;
    let row = messages(&fetch(&fixture.store, relay).await)[0].row();
    let nothing = [RowId { id: MessageId::new(), ..row }];
    let (_proxy, store) = forgotten(&fixture, async |store: &PostgresStore| {
        let route = Route::default();
        store.settle(&route, &nothing).await.unwrap();
    })
    .await;
    tokio::time::sleep(store.options().idle_check).await;
    let (route, rows) = (Route::default(), [row]);
    let settling = tokio::time::timeout(Duration::from_secs(60), store.settle(&route, &rows));
    settling.await.expect("nobody waits for a connection that is gone").unwrap();
    assert_eq!(fixture.number("select count(*) from outbox_message").await, 0);
}

#[tokio::test]
async fn a_listener_that_the_network_forgot_listens_again() {
    let Some(fixture) = Fixture::new().await else { return };
    let mut stream = None;
    let (_proxy, _store) = forgotten(&fixture, async |store: &PostgresStore| {
        let mut wakeups = store.wakeups();
        // The first one reports that it listens.
        assert_eq!(wakeups.next().await, Some(Wakeup::Now));
        stream = Some(wakeups);
    })
    .await;
    let mut stream = stream.unwrap();
    // One for possibly lost notifications, then the real one.
    for said in [false, true] {
        if said {
            fixture.run("notify outbox").await;
        }
        let woken = tokio::time::timeout(Duration::from_secs(60), stream.next());
        assert_eq!(woken.await.expect("nobody is woken"), Some(Wakeup::Now));
    }
}

/// The sessions that hold the locks of relays: those of heartbeats.
const OF_HEARTBEATS: &str = "select pid from pg_locks where locktype = 'advisory' and classid = 'outbox_relay'::regclass and mode = 'ShareLock'";

/// Ends all sessions of the database but these; returns when they are gone.
async fn end_sessions_but(fixture: &Fixture, these: &str) {
    let ended = fixture
        .number(&format!(
            "select count(*) filter (where pg_terminate_backend(pid, 60000)) from pg_stat_activity \
             where datname = current_database() and pid <> pg_backend_pid() and pid not in ({these})"
        ))
        .await;
    assert!(ended > 0, "nothing was ended");
}

fn in_life(relay: RelayId, life: i64) -> FetchRequest {
    let mut request = FetchRequest::new(Route::default(), relay, BucketSet::ALL);
    request.life = Some(life);
    request
}

#[tokio::test]
async fn a_relay_reads_on_if_the_connection_of_fetches_alone_was_lost() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, relay) = (&fixture.store, RelayId::new());
    append(store, [message("a")]).await;
    let request = in_life(relay, lease(store, relay).await.life);
    assert_eq!(messages(&store.fetch(&request).await.unwrap()).len(), 1);
    end_sessions_but(&fixture, OF_HEARTBEATS).await;
    assert_eq!(messages(&store.fetch(&request).await.unwrap()).len(), 1);
}

/// A server that ends all sessions may have lost commits: another one answers behind the address, or
/// it crashed with commits that were not on its disk. Positions that a relay passed come back.
#[tokio::test]
async fn nothing_is_read_on_if_the_connection_of_heartbeats_was_lost_too() {
    let Some(fixture) = Fixture::new().await else { return };
    let (store, relays) = (&fixture.store, [RelayId::new(), RelayId::new()]);
    append(store, [message("a")]).await;
    let mut requests = Vec::new();
    for relay in relays {
        requests.push(in_life(relay, lease(store, relay).await.life));
    }
    store.fetch(&requests[0]).await.unwrap();
    end_sessions_but(&fixture, "0").await;
    for request in &requests {
        let error = store.fetch(request).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
        assert!(error.to_string().contains("failover"), "{error}");
    }
    let life = lease(store, relays[0]).await.life;
    assert_eq!(messages(&store.fetch(&in_life(relays[0], life)).await.unwrap()).len(), 1);
    store.fetch(&requests[1]).await.expect_err("the other relay still remembers the life of before");
}
