//! The ledger: receives events and books each exactly once, in a database of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outbox::Transport;
use outbox::prelude::*;
use outbox::subscription::{Received, Tag};
use outbox::transactional::Admission;
use outbox::{Codec, Json};
use outbox_examples::transports::Failed;
use tokio::task::JoinHandle;

use crate::databases::{Database, is_conflict};
use crate::progress::Seen;
use crate::shop::OrderEvent;

/// The ledger's database, and the task that keeps it.
pub(crate) struct Ledger<D: Database> {
    store: D,
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

impl<D: Database> Ledger<D> {
    /// Makes its table where it is missing, and begins to receive.
    pub(crate) async fn open(store: D, transport: &dyn Transport, seen: Arc<Seen>) -> Result<Self, Failed> {
        store.migrate().await?;
        store.make_ledger().await?;
        let consumer = Consumer::new("ledger")?;
        let subscription = Subscription::new(consumer.clone(), [Topic::new("orders")?]);
        let deliveries = transport.subscribe(subscription).await?;
        let mut booked_before = 0;
        for account in store.accounts().await? {
            seen.booked_before(&account.customer, account.events);
            booked_before += u64::from(account.events);
        }
        let booked = Arc::new(AtomicU64::new(booked_before));
        let keeper = Keeper { store: store.clone(), consumer, seen, booked: Arc::clone(&booked) };
        let task =
            tokio::spawn(async move { keeper.receive(deliveries).await.map_err(|error| error.to_string()) });
        Ok(Self { store, booked, task })
    }

    /// Waits until this many events were booked, by earlier runs too.
    pub(crate) async fn wait_for(&self, events: u64) -> Result<(), Failed> {
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
    pub(crate) async fn close(self) -> Result<Booked, Failed> {
        self.task.abort();
        let accounts = self.store.accounts().await?;
        Ok(Booked {
            effects: accounts.iter().map(|account| i64::from(account.events)).sum(),
            cents: accounts.iter().map(|account| account.cents).sum(),
        })
    }
}

/// What the receiving task needs.
struct Keeper<D> {
    store: D,
    consumer: Consumer,
    seen: Arc<Seen>,
    booked: Arc<AtomicU64>,
}

impl<D: Database> Keeper<D> {
    async fn receive(&self, deliveries: Box<dyn Deliveries>) -> Result<(), Failed> {
        loop {
            let received = match deliveries.next().await {
                // The broker is away: it comes back.
                Err(error) if error.is_retryable() => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
                received => received?,
            };
            match received {
                Received::Deliveries(batch) => {
                    let mut messages = Vec::with_capacity(batch.len());
                    let mut tags: Vec<Tag> = Vec::with_capacity(batch.len());
                    for delivery in batch {
                        tags.push(delivery.tag);
                        messages.push(self.saw(delivery.message?)?);
                    }
                    while let Err(error) = self.book(&messages).await {
                        // Only another transaction may have been in the way: then it is begun again.
                        if !is_conflict(&self.store, &*error) {
                            return Err(error);
                        }
                    }
                    // Only now: what is acknowledged is booked, whatever happens in between.
                    deliveries.acknowledge(&tags).await?;
                }
                Received::Ended => return Ok(()),
                _ => {}
            }
        }
    }

    /// Shows a message to the checker.
    fn saw(&self, message: Message) -> Result<Message, Failed> {
        let event: OrderEvent = Json.decode(&message.payload)?;
        let (customer, number) = event.place_in_order();
        self.seen.delivered(customer, number);
        Ok(message)
    }

    /// Books what is new among these messages. Admission and effect are in one transaction: a message that comes again has no second effect.
    async fn book(&self, messages: &[Message]) -> Result<(), Failed> {
        let mut new = 0;
        // ANCHOR: once
        let mut tx = self.store.begin().await?;
        let references: Vec<&Message> = messages.iter().collect();
        let admissions = self.store.admit(&mut tx, &self.consumer, &references).await?;
        for (message, admission) in messages.iter().zip(admissions) {
            let event: OrderEvent = Json.decode(&message.payload)?;
            let (customer, _) = event.place_in_order();
            if admission == Admission::New {
                D::book(&mut tx, customer, i64::try_from(event.cents())?).await?;
                new += 1;
            }
        }
        self.store.commit(tx).await.into_result()?;
        // ANCHOR_END: once
        self.booked.fetch_add(new, Ordering::Relaxed);
        Ok(())
    }
}
