//! An error that a database finds at the commit alone is the failure of one message, not of the
//! inbox.

use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::{AdminExt, Message, RetryPolicy, Store};
use outbox_engine::{HandlerContext, HandlerError, Inbox};
use outbox_store_sqlite::SqliteStore;

use crate::inbox::file_broker::{FileBroker, Sent};

async fn reserve(
    message: Message,
    context: &mut HandlerContext<'_, SqliteStore>,
) -> Result<(), HandlerError> {
    let insert = sqlx::query("insert into reserved values (?)").bind(message.order_key().as_str());
    insert.execute(context.tx()).await?;
    Ok(())
}

#[tokio::test]
async fn a_constraint_that_is_checked_at_the_commit_fails_its_message_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("inventory.db")).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::raw_sql(
        "create table articles (name text primary key); insert into articles values ('lamp');
         create table reserved (article text references articles (name) deferrable initially deferred)",
    )
    .execute(store.pool())
    .await
    .unwrap();
    let broker = FileBroker::new(folder.path());
    let sent: Vec<Sent> = ["lamp", "ghost", "lamp", "lamp"]
        .map(|key| Sent { id: uuid::Uuid::now_v7(), key: key.to_owned() })
        .into();
    broker.send(&sent);
    let inbox = Inbox::builder(store.clone(), broker.clone())
        .consumer("inventory")
        .topic("orders")
        .on_any(reserve)
        .batch(4)
        .retry(RetryPolicy { max_attempts: 1, ..RetryPolicy::default() })
        .start()
        .await
        .unwrap();
    let done = async {
        while !broker.is_done() || store.backlog(inbox.observer().route()).await.unwrap().dead == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), done).await.expect("everything is finished in time");
    let reserved: Vec<String> =
        sqlx::query_scalar("select article from reserved").fetch_all(store.pool()).await.unwrap();
    assert_eq!(reserved, ["lamp", "lamp", "lamp"]);
    let dead = store.dead_letters(&Filter::all_routes()).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].last_failure.as_ref().map(|failure| &*failure.class), Some("commit"));
    assert_eq!(inbox.stats().resets, 0);
    assert!(inbox.stop(Duration::from_secs(60)).await);
}
