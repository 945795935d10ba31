//! A real database in which handlers write their effects, and a way to put messages on a real
//! broker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Outcome, Outcomes, Position, PublishBatch, RelayId, Stored};
use outbox_contract::{Message, RetryPolicy, Route, Store, Timestamp, Transport};
use outbox_servers::{OrSkip, Postgres, PostgresServer};
use outbox_store_postgres::{PostgresOptions, PostgresStore};
use outbox_tests::record::PATIENCE;
use sqlx::Executor;

/// The database. Its server ends with it, unless it is shared.
pub(crate) struct Database {
    pub(crate) store: PostgresStore,
    _server: PostgresServer,
}

impl Database {
    /// Creates a database with a table of effects; None if there is no PostgreSQL, which is
    /// reported then.
    pub(crate) async fn new() -> Option<Self> {
        let server = Postgres::newest().shared().or_skip()?;
        let mut options = PostgresOptions::default();
        // A test runs as long as it has to, even on a slow machine.
        options.lock_timeout = Duration::from_secs(60);
        options.transaction_idle_timeout = Duration::from_secs(120);
        options.connect_timeout = Duration::from_secs(60);
        let store = PostgresStore::connect_with(&server.fresh_database(), options).await.unwrap();
        store.migrate().await.unwrap();
        let table = "create table effects (place bigint generated always as identity primary key, consumer text not null,
                                           key text not null, message text not null)";
        store.pool().execute(table).await.unwrap();
        Some(Self { store, _server: server })
    }

    /// Returns the number of a consumer's effects, except those of a key.
    pub(crate) async fn effects_besides(&self, consumer: &str, key: &str) -> usize {
        let count = sqlx::query_scalar("select count(*) from effects where consumer = $1 and key <> $2");
        let count: i64 = count.bind(consumer).bind(key).fetch_one(self.store.pool()).await.unwrap();
        usize::try_from(count).unwrap()
    }

    /// Returns the effects of a consumer by key, in order.
    pub(crate) async fn effects(&self, consumer: &str) -> BTreeMap<String, Vec<String>> {
        let select = "select key, message from effects where consumer = $1 order by place";
        let rows: Vec<(String, String)> =
            sqlx::query_as(select).bind(consumer).fetch_all(self.store.pool()).await.unwrap();
        by_key(rows)
    }
}

/// Groups by key, in order.
pub(crate) fn by_key(pairs: impl IntoIterator<Item = (String, String)>) -> BTreeMap<String, Vec<String>> {
    let mut grouped: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (key, message) in pairs {
        grouped.entry(key).or_default().push(message);
    }
    grouped
}

/// The keys and ids of messages.
pub(crate) fn named<'m>(
    messages: impl IntoIterator<Item = &'m Message>,
) -> impl Iterator<Item = (String, String)> {
    messages.into_iter().map(|message| (message.order_key().as_str().to_owned(), message.id.to_string()))
}

/// Writes the effect of a message.
pub(crate) async fn write(
    tx: &mut sqlx::PgConnection,
    consumer: &str,
    message: &Message,
) -> Result<(), sqlx::Error> {
    sqlx::query("insert into effects (consumer, key, message) values ($1, $2, $3)")
        .bind(consumer)
        .bind(message.order_key().as_str())
        .bind(message.id.to_string())
        .execute(tx)
        .await?;
    Ok(())
}

/// A retry policy for handlers that fail many times, with short pauses.
pub(crate) fn patient() -> RetryPolicy {
    RetryPolicy {
        max_attempts: 1_000_000,
        first_delay: Duration::from_millis(20),
        max_delay: Duration::from_millis(200),
        ..RetryPolicy::default()
    }
}

/// Publishes messages of this source in order, until all are delivered: any of them may arrive more
/// than once.
pub(crate) async fn publish(transport: &dyn Transport, source: &str, messages: &[Message]) {
    let publishing = async {
        for some in messages.chunks(250) {
            let stored = some.iter().zip(1..).map(|(message, position)| {
                Arc::new(Stored::new(Position(position), Timestamp::now(), message.clone()))
            });
            let mut stored: Vec<_> = stored.collect();
            while !stored.is_empty() {
                let outcomes = Outcomes::new(stored.len());
                let batch = PublishBatch::new(
                    Route::default(),
                    RelayId::new(),
                    source.into(),
                    stored.clone(),
                    PATIENCE,
                );
                transport.publish(batch, &outcomes).await;
                let mut taken = outcomes.take().into_iter();
                stored.retain(|_| taken.next() != Some(Some(Outcome::Delivered)));
                if !stored.is_empty() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    };
    tokio::time::timeout(PATIENCE, publishing).await.expect("the broker takes every message");
}
