//! Sessions that the server ends because they were idle.

use std::time::Duration;

use outbox_contract::{Store, Transactional};
use outbox_servers::{MariaDb, MySql, OrSkip};

use super::support::{Fixture, append, fails, fetch, heartbeat, message, messages, options, relay};

/// Long enough for the server to end a session whose `wait_timeout` is a second.
const IDLE: Duration = Duration::from_millis(2_500);

#[tokio::test]
async fn a_store_that_was_idle_for_longer_than_wait_timeout_goes_on_without_an_error() {
    for wish in [MySql::newest(), MariaDb::newest()] {
        let Some(server) = wish.start().or_skip() else { continue };
        server.query(&server.url(), "set global wait_timeout = 1; set global interactive_timeout = 1");
        let fixture = Fixture::on(server, options()).await;
        let store = &fixture.store;
        let relay = relay(store).await;
        // Every kind of work has a connection of its own; each of them is idle in between.
        for turn in 0..2 {
            append(store, [message("a")]).await;
            store.lease(&heartbeat(relay)).await.unwrap();
            store.backlog(&Default::default()).await.unwrap();
            let read = messages(&fetch(store, relay).await);
            assert_eq!(read.len(), 1, "turn {turn}");
            store.settle(&Default::default(), &[read[0].row()]).await.unwrap();
            append(store, [message(&format!("failing-{turn}"))]).await;
            let failing = messages(&fetch(store, relay).await);
            store.transition(&[fails(relay, &failing)]).await.unwrap();
            store.maintain(100).await.unwrap();
            let tx = store.begin().await.unwrap();
            store.rollback(tx).await.unwrap();
            tokio::time::sleep(IDLE).await;
        }
    }
}
