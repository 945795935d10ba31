//! The bare loop between PostgreSQL and Kafka (no guarantees): the lower bound. It fetches by
//! position, publishes, and deletes confirmed messages, with several batches in flight. It has no
//! leases, no retries, no order across two instances, no figures: the additional cost of a relay is
//! the price of its promises.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::ClientContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, ProducerContext, ThreadedProducer};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};
use tokio::sync::{Notify, mpsc};

use crate::bench::TOPIC;
use crate::broker::Address;
use crate::child::{finished, measured, ready, tell};

/// Messages to move.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Minimal {
    pub(crate) store: String,
    pub(crate) broker: Address,
    pub(crate) messages: u64,
}

/// Larger batches gain nothing.
const BATCH: i64 = 1_000;
/// Number of batches in flight.
const DEPTH: usize = 6;
const SELECT: &str = "select position, id, key, event_type, payload from outbox_message where position > $1 order by position limit $2";
const DELETE: &str = "delete from outbox_message where position = any($1)";

/// A batch in flight.
#[derive(Default)]
struct Batch {
    open: AtomicUsize,
    done: Notify,
}

struct Reports;

impl ClientContext for Reports {}

impl ProducerContext for Reports {
    type DeliveryOpaque = Arc<Batch>;

    fn delivery(&self, result: &DeliveryResult<'_>, batch: Arc<Batch>) {
        result.as_ref().map_err(|(error, _)| error.clone()).expect("the broker takes everything");
        if batch.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            batch.done.notify_one();
        }
    }
}

impl Minimal {
    pub(crate) async fn play(self) {
        let mut fetching = PgConnection::connect(&self.store).await.expect("the database answers");
        let mut deleting = PgConnection::connect(&self.store).await.expect("the database answers");
        sqlx::query("set synchronous_commit = off").execute(&mut deleting).await.expect("a valid statement");
        let producer: ThreadedProducer<Reports> = ClientConfig::new()
            .set("bootstrap.servers", &self.broker.url)
            .set("enable.idempotence", "true")
            .set("partitioner", "murmur2_random")
            .set("linger.ms", "5")
            .create_with_context(Reports)
            .expect("a valid configuration");
        ready().await;
        // They outlive the work: the server's figures are those of the sessions that there are.
        let (fetching, deleting) = (&mut fetching, &mut deleting);
        let work = async {
            let (sent, mut confirmed) = mpsc::channel::<(Vec<i64>, Arc<Batch>)>(DEPTH);
            let delete = async {
                while let Some((positions, batch)) = confirmed.recv().await {
                    batch.done.notified().await;
                    let delete = sqlx::query(DELETE).bind(&positions).execute(&mut *deleting);
                    delete.await.expect("the database answers");
                }
            };
            // It outlives its sent messages: dropped, it would give them up.
            let producer = &producer;
            let fetch = async move {
                let (mut last, mut left) = (0, self.messages);
                while left > 0 {
                    let rows = sqlx::query(SELECT).bind(last).bind(BATCH).fetch_all(&mut *fetching);
                    let rows = rows.await.expect("the database answers");
                    let batch = Arc::new(Batch { open: AtomicUsize::new(rows.len()), ..Batch::default() });
                    let mut positions = Vec::with_capacity(rows.len());
                    for row in &rows {
                        positions.push(send(producer, row, &batch).expect("a row of an outbox"));
                    }
                    last = positions.last().copied().expect("there are rows until all are sent");
                    left = left.saturating_sub(rows.len() as u64);
                    sent.send((positions, batch)).await.expect("what is confirmed is deleted");
                }
            };
            tokio::join!(fetch, delete);
        };
        tell(&measured(self.messages, work).await);
        finished().await;
    }
}

fn send(producer: &ThreadedProducer<Reports>, row: &PgRow, batch: &Arc<Batch>) -> Result<i64, sqlx::Error> {
    let position: i64 = row.try_get(0)?;
    let (id, number) = (row.try_get::<uuid::Uuid, _>(1)?.to_string(), position.to_string());
    let kind: &str = row.try_get(3)?;
    let texts = [
        ("ce_specversion", "1.0"),
        ("ce_id", &id),
        ("ce_source", "/bench"),
        ("ce_type", kind),
        ("ce_sequence", &number),
        ("content-type", "application/json"),
    ];
    let headers = texts.iter().fold(OwnedHeaders::new_with_capacity(texts.len()), |headers, (key, value)| {
        headers.insert(Header { key, value: Some(*value) })
    });
    let mut record = BaseRecord::with_opaque_to(TOPIC, Arc::clone(batch))
        .key(row.try_get::<&str, _>(2)?)
        .payload(row.try_get::<&[u8], _>(4)?)
        .headers(headers);
    while let Err((error, refused)) = producer.send(record) {
        assert_eq!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull));
        std::thread::sleep(Duration::from_millis(1));
        record = refused;
    }
    Ok(position)
}
