//! Malformed rows of foreign programs: each becomes a dead letter, however many there are.

use std::time::Duration;

use outbox_contract::{Route, Store};
use outbox_engine::Relay;
use outbox_servers::{OrSkip as _, Postgres};
use outbox_store_postgres::PostgresStore;
use outbox_testkit::NullTransport;
use outbox_tests::record::until;

/// More than a relay keeps of one key in memory. A key with a line break is invalid, so the relay
/// has no name by which to ask for them.
#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_key_can_be_no_name_become_dead_letters_on_postgres() {
    const ROWS: u64 = 1_200;
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let pool = sqlx::PgPool::connect(&server.fresh_database()).await.unwrap();
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    // An INSERT would be refused.
    for statement in [
        "insert into outbox_message (topic, key, event_type) select 'orders', 'ab', 'x' from generate_series(1, 1200)",
        "update outbox_message set key = 'a' || chr(10) || 'b'",
    ] {
        sqlx::query(statement).execute(&pool).await.unwrap();
    }
    let relay = Relay::builder(store.clone(), NullTransport::new()).start().await.unwrap();
    until("all dead letters", async || store.backlog(&Route::default()).await.unwrap().dead == ROWS).await;
    // The answer to the last transition may be on its way.
    until("all counted", async || relay.stats().dead_lettered == ROWS).await;
    assert!(relay.stop(Duration::from_secs(20)).await);
}
