//! States of an outbox that only a relay makes: failing keys, dead letters, a history.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outbox::backend::{LeaseRequest, Outcome, Outcomes, PublishBatch, TransportLayer};
use outbox::error::Failure;
use outbox::memory::MemoryTransport;
use outbox::mongodb::{MongoDbOptions, MongoDbStore};
use outbox::mysql::{MySqlOptions, MySqlStore};
use outbox::postgres::{PostgresOptions, PostgresStore};
use outbox::relay::{Backlog, RelayId};
use outbox::sqlite::{SqliteOptions, SqliteStore};
use outbox::{Consumer, Exhausted, Message, Relay, RetryPolicy, Route, Store, Transactional};

use crate::outbox::{Outbox, PATIENCE};

/// A broker that refuses events of the type `poison`, and takes all others.
#[derive(Debug)]
struct Sieve {
    inner: MemoryTransport,
    error: String,
}

impl TransportLayer for Sieve {
    type Inner = MemoryTransport;

    fn inner(&self) -> &MemoryTransport {
        &self.inner
    }

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        let failed = Failure::new("schema", self.error.clone());
        let mut poisoned = BTreeSet::new();
        for (number, stored) in batch.messages.iter().enumerate() {
            let (message, key) = (&stored.message, stored.message.key_id());
            let outcome = if poisoned.contains(&key) {
                Outcome::Blocked
            } else if &*message.event_type == "poison" {
                poisoned.insert(key);
                Outcome::Failed(failed.clone())
            } else {
                Outcome::Delivered
            };
            outcomes.report(number, outcome);
        }
    }
}

/// Runs a relay that refuses events of the type `poison`, until the backlog is as asked. What it
/// refuses is held or buried at once.
pub(crate) fn relay(outbox: &Outbox, exhausted: Exhausted, is_so: impl Fn(&Backlog) -> bool) {
    relay_saying(outbox, exhausted, "no such column", is_so);
}

/// As [`relay`], with an error of one's own.
pub(crate) fn relay_saying(
    outbox: &Outbox,
    exhausted: Exhausted,
    error: &str,
    is_so: impl Fn(&Backlog) -> bool,
) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = open(&outbox.store).await;
        let retry = RetryPolicy { max_attempts: 1, exhausted, ..RetryPolicy::default() };
        let broker = MemoryTransport::new();
        let transport = Sieve { inner: broker, error: error.to_owned() };
        let relay = Relay::builder(Arc::clone(&store), transport).retry(retry).start().await.unwrap();
        let wait = async {
            loop {
                let backlog = store.backlog(&Route::default()).await.unwrap();
                if is_so(&backlog) && relay.stats().in_flight == 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let came = tokio::time::timeout(PATIENCE, wait).await;
        assert!(came.is_ok(), "{:?}", store.backlog(&Route::default()).await);
        assert!(relay.stop(PATIENCE).await);
    });
}

/// Takes all leases of the default route as a relay of this name, which then does nothing. Returns
/// its id and its name.
pub(crate) fn lease(outbox: &Outbox, label: &str) -> (String, String) {
    let (relay, leases) = heartbeat(outbox, label, 1);
    assert_eq!(leases, 256);
    (relay, label.to_owned())
}

/// Sends the first heartbeat of a relay with settings of this fingerprint. Returns its id and the
/// number of its leases.
pub(crate) fn heartbeat(outbox: &Outbox, label: &str, fingerprint: i64) -> (String, usize) {
    let relay = RelayId::new();
    let mut request = LeaseRequest::new(relay, Route::default(), Duration::from_secs(600));
    request.label = label.to_owned();
    request.fingerprint = fingerprint;
    let leased = tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(async { open(&outbox.store).await.lease(&request).await.unwrap() });
    (relay.to_string(), leased.leases.len())
}

/// Sends the first heartbeat of a relay that does not reach its broker.
pub(crate) fn cut_off(outbox: &Outbox, label: &str, route: &str) {
    let route = Route::new(route).unwrap();
    let mut request = LeaseRequest::new(RelayId::new(), route, Duration::from_secs(600));
    request.label = label.to_owned();
    request.transport_available = false;
    tokio::runtime::Runtime::new()
        .unwrap()
        .block_on(async { open(&outbox.store).await.lease(&request).await.unwrap() });
}

/// Runs statements on a database in a file.
pub(crate) fn sql(outbox: &Outbox, statements: &'static str) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = SqliteStore::open(&outbox.store["sqlite:".len()..]).await.unwrap();
        sqlx::raw_sql(statements).execute(store.pool()).await.unwrap();
    });
}

/// Lets a consumer handle one message of each topic and key.
pub(crate) fn handle(outbox: &Outbox, consumer: &str, messages: &[(&str, &str)]) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = SqliteStore::open(&outbox.store["sqlite:".len()..]).await.unwrap();
        let mut tx = store.begin().await.unwrap();
        for (topic, key) in messages {
            let message = Message::new(*topic, "order.placed").unwrap().with_key(key).unwrap();
            store.deduplicate(&mut tx, &Consumer::new(consumer).unwrap(), &[&message]).await.unwrap();
        }
        store.commit(tx).await.into_result().unwrap();
    });
}

/// Opens a store of any kind; a history is kept.
async fn open(url: &str) -> Arc<dyn Store> {
    const HISTORY: Option<Duration> = Some(Duration::from_secs(3_600));
    match url.split(':').next().unwrap() {
        "sqlite" => {
            let mut options = SqliteOptions::default();
            options.history = HISTORY;
            Arc::new(SqliteStore::open_with(&url["sqlite:".len()..], options).await.unwrap())
        }
        "mysql" => {
            let mut options = MySqlOptions::default();
            options.history = HISTORY;
            Arc::new(MySqlStore::connect_with(url, options).await.unwrap())
        }
        "mongodb" => {
            let mut options = MongoDbOptions::default();
            options.history = HISTORY;
            Arc::new(MongoDbStore::connect_with(url, options).await.unwrap())
        }
        _ => {
            let mut options = PostgresOptions::default();
            options.history = HISTORY;
            Arc::new(PostgresStore::connect_with(url, options).await.unwrap())
        }
    }
}
