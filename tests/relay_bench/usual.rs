//! The usual shape of a relay, done as well as it can be: workers that lock a batch with SKIP LOCKED, publish it together, wait for all
//! confirmations, mark it as processed with one UPDATE, and commit. To RabbitMQ they publish with the client library alone, to other brokers through
//! our transport.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use outbox_contract::{Message, MessageId, Position, Stored, Timestamp, Transport};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};

use crate::broker::Address;
use crate::by_hand::ByHand;
use crate::child::{finished, measured, ready, tell};
use crate::ours::topic;
use crate::pair::Broker;
use crate::publish::{CHUNK, publish};

/// What the relay is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Usual {
    pub(crate) store: String,
    pub(crate) broker: Address,
    pub(crate) workers: usize,
    pub(crate) messages: u64,
}

/// Beyond 1,000 rows at once it gains nothing.
const BATCH: i64 = 1_000;
const SELECT: &str = "select position, id, topic, key, event_type, headers, payload from usual_outbox where processed_at is null \
                      order by position limit $1 for update skip locked";
const UPDATE: &str = "update usual_outbox set processed_at = now() where position = any($1)";

/// How a worker publishes.
enum Publisher {
    /// Over a connection of its own.
    ByHand(Box<ByHand>),
    /// A layer over the client library, thin enough.
    Transport(Arc<dyn Transport>),
}

impl Publisher {
    /// One for each worker.
    async fn connect(broker: &Address, workers: usize) -> Vec<Self> {
        let transport = broker.transport();
        // It makes what there is to publish to.
        transport.check().await.expect("the broker answers");
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
                // Together, not one after the other: what is between commit and commit is the broker's time once.
                join_all(batch.chunks(CHUNK).map(|chunk| publish(&**transport, chunk.to_vec()))).await;
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
        let publishers = Publisher::connect(&self.broker, self.workers).await;
        let connect = (0..self.workers).map(|_| PgConnection::connect(&self.store));
        let connections = join_all(connect).await.into_iter().map(|made| made.expect("the database answers"));
        let connections: Vec<PgConnection> = connections.collect();
        ready().await;
        let left = Arc::new(AtomicU64::new(self.messages));
        // A server's process that has ended is not counted: they stay until the figures were read.
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

async fn worker(
    mut connection: PgConnection,
    publisher: Publisher,
    left: Arc<AtomicU64>,
) -> Result<(PgConnection, Publisher), sqlx::Error> {
    while left.load(Ordering::Relaxed) > 0 {
        let mut tx = connection.begin().await?;
        let rows = sqlx::query(SELECT).bind(BATCH).fetch_all(&mut *tx).await?;
        if rows.is_empty() {
            // Others have the rest.
            tx.rollback().await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        let stored: Vec<Arc<Stored>> = rows.iter().map(read).collect::<Result<_, _>>()?;
        publisher.publish(&stored).await;
        let positions: Vec<i64> = stored.iter().map(|stored| stored.position.0).collect();
        sqlx::query(UPDATE).bind(&positions).execute(&mut *tx).await?;
        tx.commit().await?;
        left.fetch_sub(positions.len() as u64, Ordering::Relaxed);
    }
    Ok((connection, publisher))
}

fn read(row: &PgRow) -> Result<Arc<Stored>, sqlx::Error> {
    let _: (&str, &[u8]) = (row.try_get(2)?, row.try_get(5)?);
    let message = Message::new(topic(), row.try_get::<String, _>(4)?)
        .with_id(MessageId::from_uuid(row.try_get(1)?))
        .with_payload(row.try_get::<Vec<u8>, _>(6)?)
        .with_key(row.try_get::<String, _>(3)?)
        .expect("a valid key");
    Ok(Arc::new(Stored::new(Position(row.try_get(0)?), Timestamp::default(), message)))
}
