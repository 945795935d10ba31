//! A consumer without an inbox, as people write it: workers that take a message each, insert its id
//! or find it there, run the handler, commit, and acknowledge. A key always goes to the same
//! worker, so that it stays in order.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use outbox_contract::backend::{Deliveries, Received, Subscription, Tag};
use outbox_contract::{Message, Transport};
use serde::{Deserialize, Serialize};
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use tokio::sync::{Notify, mpsc};

use crate::bench::{UPDATE, consumer, topic, transport};
use crate::child::{finished, measured, ready, tell};

/// Work of the loop.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ByHand {
    pub(crate) store: String,
    pub(crate) broker: String,
    pub(crate) workers: usize,
    pub(crate) messages: u64,
}

const INSERT: &str = "insert into handled (consumer, id) values ($1, $2) on conflict do nothing";

/// Counts the remaining messages down, and signals zero.
struct Left {
    messages: AtomicU64,
    none: Notify,
}

impl ByHand {
    pub(crate) async fn play(self) {
        let transport = transport(&self.broker);
        let connect = (0..self.workers).map(|_| PgConnection::connect(&self.store));
        let connections = join_all(connect).await.into_iter().map(|made| made.expect("the database answers"));
        let connections: Vec<PgConnection> = connections.collect();
        ready().await;
        let left = Arc::new(Left { messages: AtomicU64::new(self.messages), none: Notify::new() });
        // A process of a server that has ended is not counted: connections stay open until the
        // figures were read.
        let mut kept = None;
        let done = measured(self.messages, async {
            let subscription = Subscription::new(consumer(), [topic()]).expect("valid names");
            let deliveries: Arc<dyn Deliveries> =
                transport.subscribe(subscription).await.expect("subscribed").into();
            let (senders, workers): (Vec<_>, Vec<_>) = connections
                .into_iter()
                .map(|connection| {
                    let (sender, receiver) = mpsc::channel(1_000);
                    let worker = work(connection, receiver, Arc::clone(&deliveries), Arc::clone(&left));
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
    while let Ok(Received::Deliveries(received)) = deliveries.next().await {
        for delivery in received {
            let message = delivery.message.expect("only messages were sent");
            let hash = usize::try_from(hasher.hash_one(message.order_key().as_str()) >> 32).unwrap_or(0);
            let worker = &workers[hash % workers.len()];
            worker.send((delivery.tag, message)).await.expect("a worker does not end before the end");
        }
    }
}

async fn work(
    mut connection: PgConnection,
    mut messages: mpsc::Receiver<(Tag, Message)>,
    deliveries: Arc<dyn Deliveries>,
    left: Arc<Left>,
) {
    let consumer = consumer();
    while let Some((tag, message)) = messages.recv().await {
        let mut tx = connection.begin().await.expect("the database answers");
        let insert = sqlx::query(INSERT).bind(consumer.as_str()).bind(message.id.as_uuid());
        let inserted = insert.execute(&mut *tx).await.expect("the database answers");
        if inserted.rows_affected() == 1 {
            let update = sqlx::query(UPDATE).bind(message.order_key().as_str());
            update.execute(&mut *tx).await.expect("the database answers");
        }
        tx.commit().await.expect("the database answers");
        deliveries.acknowledge(&[tag]).await.expect("the broker answers");
        if left.messages.fetch_sub(1, Ordering::Relaxed) == 1 {
            left.none.notify_one();
        }
    }
}
