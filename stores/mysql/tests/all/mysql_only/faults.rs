//! Mistakes of operators, and servers that run out of something: each a clear error with the
//! remedy, and none that shows a password.

use outbox_contract::{AppendError, Store, StoreError, StoreErrorKind, Transactional};
use outbox_servers::{MariaDb, MySql, MySqlServer, OrSkip};
use outbox_store_mysql::MySqlStore;

use super::support::{Fixture, append, both, fetch, message, messages, open, options, relay};

const SECRET: &str = "s3cr3t-pa55";

/// A URL with another user and password, or another database.
fn url(server: &MySqlServer, user: &str, database: &str) -> String {
    format!("mysql://{user}@127.0.0.1:{}/{database}", server.tcp_port())
}

async fn refused(url: &str) -> StoreError {
    match MySqlStore::connect_with(url, options()).await {
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

async fn until_acquired(store: &MySqlStore) -> sqlx::pool::PoolConnection<sqlx::MySql> {
    let waiting = async {
        loop {
            match store.pool().acquire().await {
                Ok(connection) => return connection,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    };
    tokio::time::timeout(super::support::LONG, waiting).await.unwrap()
}

fn store_error(error: AppendError) -> StoreError {
    match error {
        AppendError::Store(error) | AppendError::Conflict(error) => error,
        other => panic!("expected another error: {other}"),
    }
}

#[tokio::test]
async fn wrong_addresses_are_refused_with_the_remedy() {
    for wish in [MySql::newest(), MariaDb::newest()] {
        let Some(server) = wish.start().or_skip() else { continue };
        server.query(
            &server.url(),
            &format!(
                "create user guest@'127.0.0.1' identified by '{SECRET}'; \
                 create user full@'127.0.0.1' with max_user_connections 1; grant all on *.* to full@'127.0.0.1'; create database shop"
            ),
        );
        let unknown = refused(&url(&server, "root", "nowhere")).await;
        assert_says(&unknown, StoreErrorKind::NotPermitted, "no such database");
        let stranger = refused(&url(&server, "stranger", "shop")).await;
        assert_says(&stranger, StoreErrorKind::NotPermitted, "user");
        let unnamed = refused(&format!("mysql://guest:{SECRET}@127.0.0.1:{}", server.tcp_port())).await;
        assert_says(&unnamed, StoreErrorKind::Invalid, "names no database");
        let no_tls =
            refused(&format!("{}?ssl-mode=REQUIRED", url(&server, &format!("guest:{SECRET}"), "shop"))).await;
        assert_says(&no_tls, StoreErrorKind::NotPermitted, "ssl-mode");
        let nonsense = refused(&format!("mysql://guest:{SECRET}@127.0.0.1:notaport/x")).await;
        assert_says(&nonsense, StoreErrorKind::Invalid, "percent-encoded");

        let mut single = options();
        single.connections = 1;
        let one = open(&url(&server, "full", "shop"), single).await;
        // The connection that was tried at first is closed; the server may not have seen it yet.
        let held = until_acquired(&one).await;
        let full = one.check().await.unwrap_err();
        assert_says(&full, StoreErrorKind::Unavailable, "user's limit");
        drop(held);

        // No server listens there any more.
        let store = open(&server.fresh_database(), options()).await;
        assert!(!format!("{store:?}").contains("root"));
        server.stop();
        let gone = url(&server, &format!("guest:{SECRET}"), "shop");
        assert_says(&refused(&gone).await, StoreErrorKind::Unavailable, "connection refused");
        assert_says(&store.check().await.unwrap_err(), StoreErrorKind::Unavailable, "connection refused");
    }
}

#[tokio::test]
async fn passwords_and_certificates_are_checked_and_not_shown() {
    for (wish, another) in [(MySql::newest(), MySql::newest()), (MariaDb::newest(), MariaDb::newest())] {
        let Some(server) = wish.tls().start().or_skip() else { continue };
        let Some(other) = another.tls().start().or_skip() else { continue };
        let fresh = server.fresh_database();
        let (_, query) = server.tls_url().split_once('?').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        let trusted = open(&format!("{fresh}?{query}"), options()).await;
        trusted.migrate().await.unwrap();
        append(&trusted, [message("a")]).await;
        let wrong = format!("{fresh}?ssl-mode=VERIFY_IDENTITY&ssl-ca={}", other.authorities().display());
        assert_says(&refused(&wrong).await, StoreErrorKind::NotPermitted, "ssl-ca");

        let database = fresh.rsplit('/').next().unwrap();
        server.query(
            &server.url(),
            &format!(
                "create user guest@'127.0.0.1' identified by '{SECRET}'; grant all on {database}.* to guest@'127.0.0.1'"
            ),
        );
        let as_guest =
            |password: &str| format!("{}?{query}", url(&server, &format!("guest:{password}"), database));
        append(&open(&as_guest(SECRET), options()).await, [message("b")]).await;
        let wrong = refused(&as_guest(&format!("{SECRET}-not"))).await;
        assert_says(&wrong, StoreErrorKind::NotPermitted, "user or password");
    }
}

#[tokio::test]
async fn a_user_without_rights_is_told_which_it_needs() {
    for fixture in both().await {
        let database = fixture.url.rsplit('/').next().unwrap().to_owned();
        // At most 32 characters.
        let user = format!("u{}", &database[database.len() - 12..]);
        fixture.server.query(
            &fixture.url,
            &format!("create user {user}@'127.0.0.1'; grant select on {database}.* to {user}@'127.0.0.1'"),
        );
        let address = fixture.url.replacen("root@", &format!("{user}@"), 1);
        assert_ne!(address, fixture.url);
        let guest = open(&address, options()).await;
        // To write.
        let mut tx = guest.begin().await.unwrap();
        let error = store_error(guest.append(&mut tx, &[message("a").into()]).await.unwrap_err());
        assert_says(&error, StoreErrorKind::NotPermitted, "grant it select, insert");
        guest.rollback(tx).await.unwrap();
        // To make tables.
        fixture.run("drop table outbox_schema").await;
        let error = guest.migrate().await.unwrap_err();
        assert_says(&error, StoreErrorKind::NotPermitted, "to migrate, also create");
        fixture.store.migrate().await.unwrap();

        // The grants in the book are enough.
        fixture.server.query(
            &fixture.url,
            &format!("grant select, insert, update, delete on {database}.* to {user}@'127.0.0.1'"),
        );
        let guest = open(&address, options()).await;
        guest.check().await.unwrap();
        append(&guest, [message("a")]).await;
        let relay = relay(&guest).await;
        let read = messages(&fetch(&guest, relay).await);
        guest.settle(&Default::default(), &[read[0].row()]).await.unwrap();
        guest.maintain(100).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_is_read_only_is_known_for_what_it_is() {
    for wish in [MySql::newest(), MariaDb::newest()] {
        let Some(server) = wish.start().or_skip() else { continue };
        let fixture = Fixture::on(server, options()).await;
        let database = fixture.url.rsplit('/').next().unwrap().to_owned();
        // Administrators write all the same.
        fixture.server.query(
            &fixture.url,
            &format!(
                "create user shop@'127.0.0.1'; grant select, insert, update, delete on {database}.* to shop@'127.0.0.1'; \
                 set global read_only = 1"
            ),
        );
        let shop = open(&url(&fixture.server, "shop", &database), options()).await;
        assert_says(&shop.check().await.unwrap_err(), StoreErrorKind::Unavailable, "primary");
        let mut tx = shop.begin().await.unwrap();
        let error = store_error(shop.append(&mut tx, &[message("a").into()]).await.unwrap_err());
        assert_says(&error, StoreErrorKind::Unavailable, "primary");
        shop.rollback(tx).await.unwrap();
        fixture.server.query(&fixture.url, "set global read_only = 0");
        append(&shop, [message("a")]).await;
    }
}

#[tokio::test]
async fn tables_that_are_not_there_are_asked_for() {
    for wish in [MySql::newest(), MariaDb::newest()] {
        let Some(server) = wish.shared().or_skip() else { continue };
        let store = open(&server.fresh_database(), options()).await;
        assert_says(&store.check().await.unwrap_err(), StoreErrorKind::NotMigrated, "migrate");
        let mut tx = store.begin().await.unwrap();
        let error = store_error(store.append(&mut tx, &[message("a").into()]).await.unwrap_err());
        assert_says(&error, StoreErrorKind::NotMigrated, "migrate");
        store.rollback(tx).await.unwrap();
    }
}

/// A server that is killed and comes back: connections are opened again, and what was committed is
/// there.
#[tokio::test]
async fn a_server_that_comes_back_is_used_again() {
    for wish in [MySql::newest(), MariaDb::newest()] {
        let Some(server) = wish.start().or_skip() else { continue };
        let fixture = Fixture::on(server, options()).await;
        append(&fixture.store, [message("a")]).await;
        let relay = relay(&fixture.store).await;
        assert_eq!(messages(&fetch(&fixture.store, relay).await).len(), 1);
        fixture.server.kill();
        let away = fixture.store.backlog(&Default::default()).await.unwrap_err();
        assert_eq!(away.kind(), StoreErrorKind::Unavailable, "{away}");
        fixture.server.start_again();
        let waiting = async {
            while fixture
                .store
                .fetch(&outbox_contract::backend::FetchRequest::new(
                    Default::default(),
                    relay,
                    outbox_contract::backend::BucketSet::ALL,
                ))
                .await
                .is_err()
            {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(super::support::LONG, waiting).await.unwrap();
        append(&fixture.store, [message("b")]).await;
        assert_eq!(messages(&fetch(&fixture.store, relay).await).len(), 2);
    }
}
