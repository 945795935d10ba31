//! Behavior of an inbox under a database's timeouts for locks and idle transactions: with the
//! defaults of the stores.

use std::time::Duration;

use outbox_contract::{Consumer, Message, Store, Transactional};
use outbox_engine::{HandlerContext, HandlerError, HandlerOptions, Inbox, StartError};
use outbox_servers::{MySql, OrSkip, Postgres};
use outbox_store_mysql::MySqlStore;
use outbox_store_postgres::{PostgresOptions, PostgresStore};
use outbox_testkit::{Feed, eventually};

const PATIENCE: Duration = Duration::from_secs(120);

async fn nothing<S: Transactional>(_: Message, _: &mut HandlerContext<'_, S>) -> Result<(), HandlerError> {
    Ok(())
}

fn message(key: &str) -> Message {
    Message::new("orders", "order.placed").unwrap().with_key(key).unwrap()
}

/// Another process handles it, and is slow.
#[tokio::test]
async fn a_lock_that_does_not_come_is_a_conflict_of_one_message_and_holds_up_no_other() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let mut options = PostgresOptions::default();
    options.transaction_idle_timeout = PATIENCE * 2;
    let store = PostgresStore::connect_with(&server.fresh_database(), options).await.unwrap();
    store.migrate().await.unwrap();
    let (feed, stuck) = (Feed::new(), message("stuck"));
    let mut other = store.begin().await.unwrap();
    store.deduplicate(&mut other, &Consumer::new("inventory").unwrap(), &[&stuck]).await.unwrap();
    feed.send(stuck);
    (0..20).for_each(|key| feed.send(message(&format!("key-{key}"))));
    let inbox =
        Inbox::builder(store.clone(), feed.clone()).consumer("inventory").topic("orders").on_any(nothing);
    let inbox = inbox.start().await.unwrap();
    assert!(eventually(PATIENCE, async || feed.unacknowledged() == 1).await, "the others are handled");
    assert!(eventually(PATIENCE, async || inbox.stats().conflicts > 0).await, "and it is in conflict");
    assert_eq!((inbox.stats().resets, inbox.stats().handled), (0, 20), "{:?}", inbox.health());
    store.rollback(other).await.unwrap();
    assert!(eventually(PATIENCE, async || feed.unacknowledged() == 0).await);
    assert!(inbox.stop(PATIENCE).await);
}

/// Each such call would end in the middle, as if after a conflict.
async fn refuses_longer_handlers<S: Transactional + Clone>(store: S) {
    let inbox = |timeout| {
        let options = HandlerOptions::default().timeout(Duration::from_secs(timeout));
        let inbox = Inbox::builder(store.clone(), Feed::new()).consumer("inventory");
        inbox.on_message_with("orders", "order.placed", options, nothing)
    };
    let Err(error) = inbox(30).start().await else { panic!("{}: it was started", store.name()) };
    let words = error.to_string();
    assert!(matches!(error, StartError::Config(_)), "{words}");
    for word in ["30s", "12s", "transaction_idle_timeout"] {
        assert!(words.contains(word), "{word}: {words}");
    }
    assert!(inbox(10).start().await.unwrap().stop(PATIENCE).await);
}

#[tokio::test]
async fn no_handler_may_take_longer_than_a_transaction_may_be_idle() {
    if let Some(server) = Postgres::newest().shared().or_skip() {
        let store = PostgresStore::connect(&server.fresh_database()).await.unwrap();
        store.migrate().await.unwrap();
        refuses_longer_handlers(store).await;
    }
    if let Some(server) = MySql::newest().shared().or_skip() {
        let store = MySqlStore::connect(&server.fresh_database()).await.unwrap();
        store.migrate().await.unwrap();
        refuses_longer_handlers(store).await;
    }
}
