//! oxide-outbox (`outbox-core`, `outbox-postgres`, `outbox-kafka`), to Kafka. Its batches are
//! claimed with SKIP LOCKED, so that several workers in one process share the work: one awaits the
//! confirmation of each message before it sends the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::prelude::{Event, OutboxConfig, OutboxError, OutboxManagerBuilder, Transport};
use outbox_kafka::{KafkaKeyExtractable, KafkaTransport};
use outbox_postgres::PostgresOutbox;
use rdkafka::ClientConfig;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::watch;

use crate::{Body, Peer, body, done};

impl KafkaKeyExtractable for Body {
    fn kafka_key(&self) -> Vec<u8> {
        self.key.clone().into_bytes()
    }
}

/// Its transport, with a count of confirmed messages.
struct Counting {
    inner: KafkaTransport,
    confirmed: Arc<AtomicU64>,
}

#[async_trait]
impl Transport<Body> for Counting {
    async fn publish(&self, event: Event<Body>) -> Result<(), OutboxError> {
        self.inner.publish(event).await?;
        self.confirmed.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The tables of its first migration.
const TABLES: [&str; 6] = [
    "create type status as enum ('Pending', 'Processing', 'Sent')",
    "create table outbox_events (
         id uuid primary key default gen_random_uuid(), idempotency_token text, event_type text not null, payload jsonb not null,
         status status not null default 'Pending', created_at timestamptz not null default now(),
         locked_until timestamptz not null default '-infinity')",
    "create index idx_outbox_processing_queue on outbox_events (locked_until, status) where status in ('Pending', 'Processing')",
    "create unique index idx_outbox_idempotency on outbox_events (idempotency_token)",
    "create function notify_outbox_event() returns trigger language plpgsql as
     $$ begin perform pg_notify('outbox_event', 'ping'); return new; end $$",
    "create trigger outbox_events_notify_trigger after insert or update on outbox_events
     for each row execute function notify_outbox_event()",
];

pub(crate) async fn play(peer: Peer) {
    let pool = PgPoolOptions::new().max_connections(2 * u32::try_from(peer.workers).expect("few") + 4);
    let pool = pool.connect(&peer.store).await.expect("the database answers");
    for table in TABLES {
        sqlx::query(table).execute(&pool).await.expect("created");
    }
    let fill = format!(
        "insert into outbox_events (event_type, payload) select 'bench.made', {} from generate_series(1, {}) n",
        body(peer.keys),
        peer.messages
    );
    for statement in [&fill, "analyze outbox_events", "checkpoint"] {
        sqlx::query(statement).execute(&pool).await.expect("filled");
    }
    let confirmed = Arc::new(AtomicU64::new(0));
    let (stop, stopped) = watch::channel(false);
    let mut kafka = ClientConfig::new();
    // With the client's default a message waits 5 ms for others that can't come.
    kafka.set("bootstrap.servers", &peer.broker).set("linger.ms", "0");
    let managers = (0..peer.workers).map(|_| {
        let config = Arc::new(OutboxConfig::<Body>::default());
        let inner = KafkaTransport::new("bench", &kafka).expect("a valid configuration");
        OutboxManagerBuilder::new()
            .storage(Arc::new(PostgresOutbox::new(pool.clone(), Arc::clone(&config))))
            .publisher(Arc::new(Counting { inner, confirmed: Arc::clone(&confirmed) }))
            .config(config)
            .shutdown_rx(stopped.clone())
            .build()
            .expect("a complete manager")
    });
    let managers: Vec<_> = managers.collect();
    done::measured(peer.messages, async {
        for manager in managers {
            tokio::spawn(manager.run());
        }
        while confirmed.load(Ordering::Relaxed) < peer.messages {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let left = "select count(*) from outbox_events where status <> 'Sent'";
        while sqlx::query_scalar::<_, i64>(left).fetch_one(&pool).await.expect("counted") > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    let _ = stop.send(true);
}
