//! A primary that becomes a replica and cuts no connection: what is open goes to where new
//! connections go.

use outbox_contract::backend::FetchRequest;
use outbox_contract::{Store, StoreErrorKind};
use outbox_servers::{MariaDb, MySql, OrSkip};
use sqlx::mysql::MySqlConnectOptions;

use super::support::{Fixture, append, fetch, heartbeat, message, messages, open, options, relay};

/// A database with tables in it, and its address for a user who is no administrator: administrators
/// write to a replica all the same.
async fn shop(fixture: &Fixture) -> String {
    let database = fixture.url.rsplit('/').next().unwrap();
    fixture.server.query(
        &fixture.url,
        &format!(
            "create user if not exists shop@'127.0.0.1'; grant select, insert, update, delete on {database}.* to shop@'127.0.0.1'"
        ),
    );
    fixture.url.replacen("root@", "shop@", 1)
}

#[tokio::test]
async fn after_a_switchover_everything_goes_where_new_connections_go() {
    for (old, new) in [(MySql::newest(), MySql::newest()), (MariaDb::newest(), MariaDb::newest())] {
        let Some(old) = old.start().or_skip() else { continue };
        let Some(new) = new.shared().or_skip() else { continue };
        let (old, new) = (Fixture::on(old, options()).await, Fixture::on(new, options()).await);
        let (there, here) = (message("there"), message("here"));
        append(&old.store, [there.clone()]).await;
        append(&new.store, [here.clone()]).await;
        let (shop_of_old, shop_of_new) = (shop(&old).await, shop(&new).await);
        let store = open(&shop_of_old, options()).await;
        let relay = relay(&store).await;
        let read = messages(&fetch(&store, relay).await);
        assert_eq!(read[0].message.id, there.id);
        store.settle(&Default::default(), &[read[0].row()]).await.unwrap();
        assert_eq!(store.backlog(&Default::default()).await.unwrap().pending, 0);

        old.server.query(&old.url, "set global read_only = 1");
        store.pool().set_connect_options(shop_of_new.parse::<MySqlConnectOptions>().unwrap());
        let refused = store.lease(&heartbeat(relay)).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Unavailable, "{refused}");
        let leased = store.lease(&heartbeat(relay)).await.unwrap();
        assert_eq!(leased.leases.len(), 256, "at the new primary");
        // Those that only read were refused nothing.
        let buckets = outbox_contract::backend::BucketSet::ALL;
        assert_eq!(store.frontier().stripes(&Default::default(), &buckets).await.unwrap().len(), 1);
        let request = FetchRequest::new(Default::default(), relay, buckets);
        let read = messages(&store.fetch(&request).await.unwrap());
        assert_eq!(read.iter().map(|stored| stored.message.id).collect::<Vec<_>>(), [here.id]);
        assert_eq!(store.backlog(&Default::default()).await.unwrap().pending, 1);
        store.settle(&Default::default(), &[read[0].row()]).await.unwrap();
        assert_eq!(new.number("select count(*) from outbox_message").await, 0);
    }
}
