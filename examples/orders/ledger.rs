//! The ledger: receives events and books each exactly once, in a database of its own.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox::prelude::*;
use outbox::sqlite::SqliteStore;
use outbox::subscription::{Received, Tag};
use outbox::transactional::Admission;
use outbox::{Codec, Json};
use sqlx::Row;
use tokio::task::JoinHandle;

use crate::progress::Seen;
use crate::shop::OrderEvent;

/// The ledger's database, and the task that keeps it.
pub(crate) struct Ledger {
    store: SqliteStore,
    booked: Arc<AtomicU64>,
    task: JoinHandle<Result<(), String>>,
}

/// What the ledger holds at the end.
#[derive(Debug)]
pub(crate) struct Booked {
    /// How many events had their effect.
    pub(crate) effects: i64,
    /// The money that they moved.
    pub(crate) cents: i64,
}

impl Ledger {
    /// Opens the database and begins to receive.
    pub(crate) async fn open(
        file: &Path,
        transport: &MemoryTransport,
        seen: Arc<Seen>,
    ) -> Result<Self, Box<dyn Error>> {
        let store = SqliteStore::open(file).await?;
        store.migrate().await?;
        sqlx::query("create table if not exists accounts (customer text primary key, cents integer not null, events integer not null) without rowid")
            .execute(store.pool())
            .await?;
        let consumer = Consumer::new("ledger")?;
        let deliveries =
            transport.subscribe(Subscription::new(consumer.clone(), [Topic::new("orders")?])).await?;
        let accounts: Vec<(String, u32)> =
            sqlx::query_as("select customer, events from accounts").fetch_all(store.pool()).await?;
        let mut booked_before = 0;
        for (customer, events) in &accounts {
            seen.booked_before(customer, *events);
            booked_before += u64::from(*events);
        }
        let booked = Arc::new(AtomicU64::new(booked_before));
        let keeper = Keeper { store: store.clone(), consumer, seen, booked: Arc::clone(&booked) };
        let task =
            tokio::spawn(async move { keeper.receive(deliveries).await.map_err(|error| error.to_string()) });
        Ok(Self { store, booked, task })
    }

    /// Waits until this many events were booked, by earlier runs too.
    pub(crate) async fn wait_for(&self, events: u64) -> Result<(), Box<dyn Error>> {
        const PATIENCE: Duration = Duration::from_secs(120);
        let mut last = (0, tokio::time::Instant::now());
        loop {
            let booked = self.booked.load(Ordering::Relaxed);
            if booked >= events {
                return Ok(());
            }
            if self.task.is_finished() {
                return Err("the ledger stopped before everything was booked".into());
            }
            if booked > last.0 {
                last = (booked, tokio::time::Instant::now());
            } else if last.1.elapsed() > PATIENCE {
                return Err(format!(
                    "{booked} of {events} events are booked, and nothing more for {PATIENCE:?}"
                )
                .into());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends it, and reads what it holds.
    pub(crate) async fn close(self) -> Result<Booked, Box<dyn Error>> {
        self.task.abort();
        let row = sqlx::query("select coalesce(sum(events), 0), coalesce(sum(cents), 0) from accounts")
            .fetch_one(self.store.pool())
            .await?;
        Ok(Booked { effects: row.try_get(0)?, cents: row.try_get(1)? })
    }
}

/// What the receiving task needs.
struct Keeper {
    store: SqliteStore,
    consumer: Consumer,
    seen: Arc<Seen>,
    booked: Arc<AtomicU64>,
}

impl Keeper {
    async fn receive(&self, deliveries: Box<dyn Deliveries>) -> Result<(), Box<dyn Error + Send + Sync>> {
        loop {
            match deliveries.next().await? {
                Received::Deliveries(batch) => {
                    let mut messages = Vec::with_capacity(batch.len());
                    let mut tags: Vec<Tag> = Vec::with_capacity(batch.len());
                    for delivery in batch {
                        tags.push(delivery.tag);
                        messages.push(delivery.message?);
                    }
                    self.book(&messages).await?;
                    // Only now: what is acknowledged is booked, whatever happens in between.
                    deliveries.acknowledge(&tags).await?;
                }
                Received::Ended => return Ok(()),
                _ => {}
            }
        }
    }

    /// Books what is new among these messages. Admission and effect are in one transaction: a message that comes again has no second effect.
    async fn book(&self, messages: &[Message]) -> Result<(), Box<dyn Error + Send + Sync>> {
        let mut new = 0;
        // ANCHOR: once
        let mut tx = self.store.begin().await?;
        let references: Vec<&Message> = messages.iter().collect();
        let admissions = self.store.admit(&mut tx, &self.consumer, &references).await?;
        for (message, admission) in messages.iter().zip(admissions) {
            let event: OrderEvent = Json.decode(&message.payload)?;
            let (customer, number) = event.place_in_order();
            self.seen.delivered(customer, number);
            if admission == Admission::New {
                new += 1;
                sqlx::query(
                    "insert into accounts values (?, ?, 1)
                     on conflict do update set cents = cents + excluded.cents, events = events + 1",
                )
                .bind(customer)
                .bind(i64::try_from(event.cents())?)
                .execute(&mut *tx)
                .await?;
            }
        }
        self.store.commit(tx).await.into_result()?;
        // ANCHOR_END: once
        self.booked.fetch_add(new, Ordering::Relaxed);
        Ok(())
    }
}
