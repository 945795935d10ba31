//! A consumer without an inbox, as people write it: workers that take a message each, insert its id
//! or find it there, run the handler, commit, and acknowledge. A key always goes to the same
//! worker, so that it stays in order.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use outbox_contract::backend::{Deliveries, Received, Subscription, Tag};
use outbox_contract::{Consumer, Message, Transport as _};
use serde::{Deserialize, Serialize};
use sqlx::mysql::MySqlConnection;
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Error};
use tokio::sync::{Notify, mpsc};

use crate::broker::Address;
use crate::child::{finished, measured, ready, tell};
use crate::stock;

/// Work of the loop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ByHand {
    pub(crate) store: String,
    pub(crate) broker: Address,
    pub(crate) workers: usize,
    pub(crate) messages: u64,
}

/// A connection of a worker.
trait Worker: Connection + Send + 'static {
    /// Handles a message, unless it was handled before, in one transaction.
    fn handle(
        &mut self,
        consumer: &Consumer,
        message: &Message,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Implements it with the statements of a database.
macro_rules! worker {
    ($connection:ty, $insert:literal, $update:expr) => {
        impl Worker for $connection {
            async fn handle(&mut self, consumer: &Consumer, message: &Message) -> Result<(), Error> {
                let mut tx = self.begin().await?;
                let insert = sqlx::query($insert).bind(consumer.as_str()).bind(message.id.as_uuid());
                if insert.execute(&mut *tx).await?.rows_affected() == 1 {
                    sqlx::query($update).bind(message.order_key().as_str()).execute(&mut *tx).await?;
                }
                tx.commit().await
            }
        }
    };
}

worker!(
    PgConnection,
    "insert into handled (consumer, id) values ($1, $2) on conflict do nothing",
    stock::postgres::UPDATE
);
worker!(MySqlConnection, "insert ignore into handled (consumer, id) values (?, ?)", stock::mysql::UPDATE);

/// Counts the remaining messages down, and signals zero.
struct Left {
    messages: AtomicU64,
    none: Notify,
}

impl ByHand {
    pub(crate) async fn play(self) {
        if self.store.starts_with("mysql:") {
            self.play_on::<MySqlConnection>().await;
        } else {
            self.play_on::<PgConnection>().await;
        }
    }

    async fn play_on<C: Worker>(self) {
        let transport = self.broker.transport();
        let connect = (0..self.workers).map(|_| C::connect(&self.store));
        let connections = join_all(connect).await.into_iter().map(|made| made.expect("the database answers"));
        let connections: Vec<C> = connections.collect();
        ready().await;
        let left = Arc::new(Left { messages: AtomicU64::new(self.messages), none: Notify::new() });
        // A process of a server that has ended is not counted: connections stay open until the
        // figures were read.
        let mut kept = None;
        let consumer = self.broker.consumer();
        let done = measured(self.messages, async {
            let subscription =
                Subscription::new(consumer.clone(), [self.broker.topic()]).expect("valid names");
            let deliveries: Arc<dyn Deliveries> =
                transport.subscribe(subscription).await.expect("subscribed").into();
            let (senders, workers): (Vec<_>, Vec<_>) = connections
                .into_iter()
                .map(|connection| {
                    let (sender, receiver) = mpsc::channel(1_000);
                    let (deliveries, left) = (Arc::clone(&deliveries), Arc::clone(&left));
                    let worker = work(connection, consumer.clone(), receiver, deliveries, left);
                    (sender, tokio::spawn(worker))
                })
                .unzip();
            let receiving = tokio::spawn(receive(Arc::clone(&deliveries), senders));
            left.none.notified().await;
            kept = Some((deliveries, workers, receiving));
        });
        tell(&done.await);
        finished().await;
        if let Some((deliveries, workers, receiving)) = kept {
            receiving.abort();
            workers.iter().for_each(tokio::task::JoinHandle::abort);
            drop(deliveries);
        }
        transport.close().await;
    }
}

async fn receive(deliveries: Arc<dyn Deliveries>, workers: Vec<mpsc::Sender<(Tag, Message)>>) {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    while let Ok(received) = deliveries.next().await {
        let Received::Deliveries(received) = received else { continue };
        for delivery in received {
            let message = delivery.message.expect("only messages were sent");
            let hash = usize::try_from(hasher.hash_one(message.order_key().as_str()) >> 32).unwrap_or(0);
            let worker = &workers[hash % workers.len()];
            worker.send((delivery.tag, message)).await.expect("a worker does not end before the end");
        }
    }
}

async fn work<C: Worker>(
    mut connection: C,
    consumer: Consumer,
    mut messages: mpsc::Receiver<(Tag, Message)>,
    deliveries: Arc<dyn Deliveries>,
    left: Arc<Left>,
) {
    while let Some((tag, message)) = messages.recv().await {
        connection.handle(&consumer, &message).await.expect("the database answers");
        deliveries.acknowledge(&[tag]).await.expect("the broker answers");
        if left.messages.fetch_sub(1, Ordering::Relaxed) == 1 {
            left.none.notify_one();
        }
    }
}
