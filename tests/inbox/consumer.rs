//! The process that is killed: an inbox on SQLite that works until all is done, or aborts behind a
//! step.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox_contract::backend::RelayId;
use outbox_contract::{Consumer, Message, RetryPolicy, Store, inbox_route};
use outbox_engine::{HandlerContext, HandlerError, HandlerFailure, Inbox, InboxHandle, Mode, Step};
use outbox_store_sqlite::SqliteStore;

use crate::inbox::file_broker::FileBroker;

/// The key whose handler fails at first, so that its messages go through the store.
pub(crate) const FAILING: &str = "failing";

/// Settings of the process, in its environment.
pub(crate) const FOLDER: &str = "OUTBOX_TEST_FOLDER";
pub(crate) const MODE: &str = "OUTBOX_TEST_MODE";
pub(crate) const BATCH: &str = "OUTBOX_TEST_BATCH";
/// Step behind which it aborts, by its place in [`Step::ALL`], and the occurrence; unset: never.
pub(crate) const CRASH: &str = "OUTBOX_TEST_CRASH";

/// Time limit of a process. Far more than it needs, on a machine of any speed.
const MAX_TIME: Duration = Duration::from_secs(240);

pub(crate) async fn open(folder: &Path) -> SqliteStore {
    let store = SqliteStore::open(folder.join("inventory.db")).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query(
        "create table if not exists effects (place integer primary key autoincrement, id text, key text)",
    )
    .execute(store.pool())
    .await
    .unwrap();
    store
}

/// Writes its effect and publishes an event. The failing key fails a few times in each life of the
/// process.
async fn reserve(
    message: Message,
    context: &mut HandlerContext<'_, SqliteStore>,
) -> Result<(), HandlerError> {
    static FAILURES: AtomicU32 = AtomicU32::new(0);
    let key = message.order_key();
    sqlx::query("insert into effects (id, key) values (?, ?)")
        .bind(message.id.to_string())
        .bind(key.as_str())
        .execute(context.tx())
        .await?;
    let published = Message::new("stock", "stock.reserved")?.with_key(key.as_str())?;
    context.publish_message(published.with_header("of", message.id.to_string())?)?;
    if key.as_str() == FAILING && FAILURES.fetch_add(1, Ordering::SeqCst) < 4 {
        return Err(HandlerFailure::failed("tested", "not yet").into());
    }
    Ok(())
}

async fn start(store: SqliteStore, broker: FileBroker) -> InboxHandle {
    let stored = std::env::var(MODE).is_ok_and(|mode| mode == "stored");
    let batch = std::env::var(BATCH).ok().and_then(|batch| batch.parse().ok()).unwrap_or(1);
    let inbox = Inbox::builder(store, broker)
        .consumer("inventory")
        .topic("orders")
        .on_any(reserve)
        .mode(if stored { Mode::Stored } else { Mode::Direct })
        .batch(batch)
        .tries(2)
        .first_delay(Duration::from_millis(5))
        .retry(RetryPolicy { first_delay: Duration::from_millis(5), ..RetryPolicy::default() })
        // The store sees the next life under the same id, so it need not wait until the leases of
        // this one expire.
        .id(RelayId::from_uuid(uuid::Uuid::from_u128(7)));
    let crash = std::env::var(CRASH).ok();
    let crash = crash.as_deref().and_then(|crash| crash.split_once(' '));
    let crash: Option<(usize, u32)> =
        crash.map(|(step, time)| (step.parse().unwrap(), time.parse().unwrap()));
    let times = AtomicU32::new(0);
    let inbox = inbox.on_step(move |step| {
        if let Some((at, time)) = crash
            && Step::ALL[at] == step
            && times.fetch_add(1, Ordering::SeqCst) + 1 == time
        {
            std::process::abort();
        }
    });
    inbox.start().await.unwrap()
}

/// Not a test: [`kill`](crate::inbox::kill) runs it as a process of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a process that other tests start"]
async fn consumer_process() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let (store, broker) = (open(folder).await, FileBroker::new(folder));
    let route = inbox_route(&Consumer::new("inventory").unwrap());
    let inbox = start(store.clone(), broker.clone()).await;
    let done = async {
        loop {
            // In this order: an acknowledged message is stored by then, and a stored one waits
            // until it is handled.
            let acknowledged = broker.is_done();
            let backlog = store.backlog(&route).await.unwrap();
            if acknowledged && backlog.pending + backlog.parked == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(MAX_TIME, done).await.expect("everything is handled in time");
    assert_eq!(store.backlog(&route).await.unwrap().dead, 0);
    assert!(inbox.stop(Duration::from_secs(60)).await);
}
