//! The SKIP LOCKED baseline, optimized as far as possible: workers that lock a batch with SKIP
//! LOCKED, publish it together, wait for all confirmations, mark it as processed with one UPDATE,
//! and commit. To RabbitMQ they publish with the client library alone, to other brokers through our
//! transport.

pub(crate) mod mysql;
pub(crate) mod postgres;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use outbox_contract::Transport;
use outbox_contract::backend::Stored;
use serde::{Deserialize, Serialize};
use sqlx::{MySqlConnection, PgConnection};

use crate::broker::Address;
use crate::by_hand::ByHand;
use crate::child::{finished, measured, ready, tell};
use crate::pair::Broker;
use crate::publish::{CHUNK, answers, publish};

/// Work of the relay.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Usual {
    pub(crate) store: String,
    pub(crate) broker: Address,
    pub(crate) workers: usize,
    pub(crate) messages: u64,
}

/// More than 1,000 rows at once gain nothing.
const BATCH: i64 = 1_000;

/// A connection of a worker.
trait Worker: Send + Sized + 'static {
    async fn open(url: &str) -> Result<Self, sqlx::Error>;

    /// Publishes a batch, while its transaction is open. Returns the number of messages; 0: others
    /// have the rest.
    fn batch(&mut self, publisher: &Publisher) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
}

/// Publisher of a worker.
enum Publisher {
    /// Over a connection of its own.
    ByHand(Box<ByHand>),
    /// A sufficiently thin layer over the client library.
    Transport(Arc<dyn Transport>),
}

impl Publisher {
    /// Returns one for each worker.
    async fn connect(broker: &Address, workers: usize) -> Vec<Self> {
        let transport = broker.transport();
        // It creates the destination.
        answers(&*transport).await;
        if broker.broker != Broker::RabbitMq {
            return (0..workers).map(|_| Self::Transport(Arc::clone(&transport))).collect();
        }
        transport.close().await;
        let connect = (0..workers).map(|_| ByHand::connect(&broker.url));
        let connections = try_join_all(connect).await.expect("the broker answers");
        connections.into_iter().map(|connection| Self::ByHand(Box::new(connection))).collect()
    }

    /// Publishes a batch, and waits for all confirmations.
    async fn publish(&self, batch: &[Arc<Stored>]) {
        match self {
            Self::ByHand(connection) => connection.publish(batch).await.expect("the broker answers"),
            Self::Transport(transport) => {
                // Together, not one after the other: the broker's time between two commits counts
                // once.
                join_all(batch.chunks(CHUNK).map(|batch| publish(&**transport, batch.to_vec()))).await;
            }
        }
    }

    async fn close(self) {
        match self {
            Self::ByHand(connection) => connection.close().await,
            Self::Transport(transport) => transport.close().await,
        }
    }
}

impl Usual {
    pub(crate) async fn play(self) {
        if self.store.starts_with("mysql:") {
            self.play_on::<MySqlConnection>().await;
        } else {
            self.play_on::<PgConnection>().await;
        }
    }

    async fn play_on<C: Worker>(self) {
        let publishers = Publisher::connect(&self.broker, self.workers).await;
        let connect = try_join_all((0..self.workers).map(|_| C::open(&self.store)));
        let connections = connect.await.expect("the database answers");
        ready().await;
        let left = Arc::new(AtomicU64::new(self.messages));
        // A process of a server that has ended is not counted: connections stay open until the
        // figures were read.
        let mut kept = Vec::new();
        let work = async {
            let workers = connections.into_iter().zip(publishers).map(|(connection, publisher)| {
                tokio::spawn(worker(connection, publisher, Arc::clone(&left)))
            });
            for worker in join_all(workers).await {
                kept.push(worker.expect("a worker does not panic").expect("the database answers"));
            }
        };
        tell(&measured(self.messages, work).await);
        finished().await;
        for (_, publisher) in kept {
            publisher.close().await;
        }
    }
}

async fn worker<C: Worker>(
    mut connection: C,
    publisher: Publisher,
    left: Arc<AtomicU64>,
) -> Result<(C, Publisher), sqlx::Error> {
    while left.load(Ordering::Relaxed) > 0 {
        match connection.batch(&publisher).await? {
            0 => tokio::time::sleep(Duration::from_millis(1)).await,
            published => drop(left.fetch_sub(published, Ordering::Relaxed)),
        }
    }
    Ok((connection, publisher))
}
