//! An inbox's use of its user's pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use outbox_contract::Message;
use outbox_engine::{HandlerContext, HandlerError, Inbox};
use outbox_store_postgres::{PostgresOptions, PostgresStore};
use outbox_testkit::eventually;
use sqlx::postgres::PgPoolOptions;

use crate::inbox::file_broker::{FileBroker, Sent};
use crate::inbox::real::{Database, write};

const PATIENCE: Duration = Duration::from_secs(60);

/// While messages are at hand one transaction follows the other on its connection, but not forever:
/// the pool must get it back, to end it when it is old. Without messages the connection is returned
/// at once.
#[tokio::test]
async fn a_busy_inbox_keeps_its_connection_for_a_while_and_an_idle_one_gives_it_back() {
    // The last one is not the last in a row.
    const MESSAGES: usize = 550;
    let Some(database) = Database::new().await else { return };
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&taken);
    // As many connections as there may be transactions, and none to spare.
    let pool = PgPoolOptions::new().max_connections(1).before_acquire(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok(true) }.boxed()
    });
    let pool = pool.connect_with((*database.store.pool().connect_options()).clone()).await.unwrap();
    let mut options = PostgresOptions::default();
    // The server's idle timeout does not return the connection.
    options.transaction_idle_timeout = PATIENCE * 10;
    let store = PostgresStore::with_options(pool, options).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let broker = FileBroker::new(folder.path());
    let sent: Vec<Sent> =
        (0..MESSAGES).map(|at| Sent { id: uuid::Uuid::now_v7(), key: format!("key-{}", at % 7) }).collect();
    broker.send(&sent);
    let handler = async |message: Message, context: &mut HandlerContext<'_, PostgresStore>| {
        Ok::<_, HandlerError>(write(context.tx(), "inventory", &message).await?)
    };
    let inbox = Inbox::builder(store, broker.clone())
        .consumer("inventory")
        .topic("orders")
        .on_any(handler)
        .concurrency(1)
        .start()
        .await
        .unwrap();
    let before = taken.load(Ordering::Relaxed);
    assert!(eventually(PATIENCE, async || broker.is_done()).await, "everything is handled in time");
    let taken = taken.load(Ordering::Relaxed) - before;
    assert!((MESSAGES / 100 - 1..MESSAGES / 2).contains(&taken), "{taken} times for {MESSAGES} messages");
    let idle = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'";
    let given_back = eventually(PATIENCE, async || {
        let count: i64 = sqlx::query_scalar(idle).fetch_one(database.store.pool()).await.unwrap();
        count == 0
    });
    assert!(given_back.await, "an inbox with nothing to do has no transaction open");
    assert_eq!(database.effects_besides("inventory", "").await, MESSAGES);
    assert!(inbox.stop(PATIENCE).await);
}
