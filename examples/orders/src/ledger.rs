//! The ledger: receives events and books each exactly once, in a database of its own.
//!
//! It does by hand what an inbox normally does: with an inbox, this file would be one handler.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use examples_shared::transports::Failed;
use outbox::Transport;
use outbox::backend::{Dedup, Received, Tag};
use outbox::prelude::*;
use outbox::{Codec, Json, MessageId};
use tokio::task::JoinHandle;

use crate::databases::{Database, is_conflict};
use crate::progress::Seen;
use crate::shop::OrderEvent;

/// The ledger's database, and the task that writes it.
pub(crate) struct Ledger<D: Database> {
    store: D,
    booked: Arc<AtomicU64>,
    task: JoinHandle<Result<(), String>>,
}

/// Content of the ledger at the end.
#[derive(Debug)]
pub(crate) struct Booked {
    /// Number of events that had their effect.
    pub(crate) effects: i64,
    /// Money that they moved.
    pub(crate) cents: i64,
}

impl<D: Database> Ledger<D> {
    /// Creates its table if it is missing, and begins to receive.
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

    /// Waits until this many events were booked, earlier runs included.
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

    /// Stops the ledger, and returns its content.
    pub(crate) async fn close(self) -> Result<Booked, Failed> {
        self.task.abort();
        let accounts = self.store.accounts().await?;
        Ok(Booked {
            effects: accounts.iter().map(|account| i64::from(account.events)).sum(),
            cents: accounts.iter().map(|account| account.cents).sum(),
        })
    }
}

/// State of the receiving task.
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
                // The broker is unreachable, and will be back.
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
                        match delivery.message {
                            Ok(message) => messages.push(self.saw(message)?),
                            Err(junk) => eprintln!("orders: the ledger skipped an {junk}"),
                        }
                    }
                    while let Err(error) = self.book(&messages).await {
                        if error.is::<Behind>() {
                            // An operator decides when; until then this ledger waits, with
                            // everything behind this message.
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        } else if !is_conflict(&self.store, &*error) {
                            return Err(error);
                        }
                        // Another transaction was in the way: the transaction restarts.
                    }
                    // Acknowledge only now: everything acknowledged is booked, whatever happens in
                    // between.
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

    /// Books the new ones among these messages. Deduplication and effect are in one transaction, so
    /// a redelivered message has no second effect.
    ///
    /// All of them or none: an error rolls back, and then none of them may be acknowledged.
    async fn book(&self, messages: &[Message]) -> Result<(), Failed> {
        let mut new = 0;
        // ANCHOR: once
        let mut tx = self.store.begin().await?;
        let references: Vec<&Message> = messages.iter().collect();
        let handled_ids = self.store.deduplicate(&mut tx, &self.consumer, &references).await?;
        for (message, deduplication) in messages.iter().zip(handled_ids) {
            let event: OrderEvent = Json.decode(&message.payload)?;
            let (customer, _) = event.place_in_order();
            match deduplication {
                Dedup::New => {
                    D::book(&mut tx, customer, i64::try_from(event.cents())?).await?;
                    new += 1;
                }
                // It was booked before, and that is committed.
                Dedup::Duplicate => {}
                // It was not booked, and must not be yet: its key is held, or earlier messages of
                // its key wait in the store. Acknowledging it now would lose it.
                Dedup::OutOfTurn => return Err(Behind(message.id).into()),
            }
        }
        self.store.commit(tx).await.into_result()?;
        // ANCHOR_END: once
        self.booked.fetch_add(new, Ordering::Relaxed);
        Ok(())
    }
}

/// A message that must wait for earlier ones of its key.
#[derive(Debug)]
struct Behind(MessageId);

impl fmt::Display for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "message {} has to wait: its key is held, or earlier messages of it wait in the store",
            self.0
        )
    }
}

impl std::error::Error for Behind {}

#[cfg(test)]
mod tests {
    use outbox::inbox_route;

    use super::*;

    #[tokio::test]
    async fn what_comes_while_its_key_is_held_is_booked_once_it_is_released() {
        let store = SqliteStore::in_memory().await.unwrap();
        store.migrate().await.unwrap();
        store.make_ledger().await.unwrap();
        let (seen, booked) = (Arc::new(Seen::default()), Arc::new(AtomicU64::new(0)));
        let consumer = Consumer::new("ledger").unwrap();
        let keeper = Keeper { store: store.clone(), consumer: consumer.clone(), seen, booked };
        let (customer, order_id) = ("ann".to_owned(), "o-1".to_owned());
        let event = OrderEvent::Placed { customer, order_id, cents: 4_200, number: 1 };
        let messages = [Outbox::new(store.clone()).encode(&event).unwrap()];
        let key = KeyId { topic: messages[0].topic.clone(), key: Key::new("ann").unwrap() };

        store.hold(&inbox_route(&consumer), &key).await.unwrap();
        let error = keeper.book(&messages).await.unwrap_err();
        assert!(error.is::<Behind>(), "{error}");
        assert_eq!(store.accounts().await.unwrap().len(), 0);

        store.release(&inbox_route(&consumer), &key).await.unwrap();
        for _ in 0..2 {
            keeper.book(&messages).await.unwrap();
            let accounts = store.accounts().await.unwrap();
            assert_eq!((accounts[0].cents, accounts[0].events), (4_200, 1));
        }
    }
}
