//! hexeract (`hexeract-outbox`, `hexeract-outbox-sql`, `hexeract-bus-rabbitmq`), to RabbitMQ. Its
//! rows are claimed with SKIP LOCKED, so that several workers in one process share the work: one
//! publishes and marks a message at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hexeract_bus::{BusError, Message, Transport};
use hexeract_bus_rabbitmq::RabbitMqTransport;
use hexeract_core::HandlerContext;
use hexeract_outbox::{ErasedHandler, Event, Handler, OutboxError, OutboxWorker, OutboxWorkerConfig, TypedHandler};
use hexeract_outbox_sql::PgOutboxStore;
use hexeract_outbox_sql::postgres::ensure_schema;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use sqlx::postgres::PgPoolOptions;
use tokio_util::sync::CancellationToken;

use crate::{Body, Peer, body, done};

const TABLE: &str = "audit_outbox";
const QUEUE: &str = "bench";

impl Event for Body {
    const EVENT_TYPE: &'static str = "bench.made";
}

impl Message for Body {
    const MESSAGE_TYPE: &'static str = "bench.made";
}

/// Publishes each event, and waits for the confirmation.
struct Publish(RabbitMqTransport);

impl Handler<Body> for Publish {
    type Error = OutboxError;

    async fn handle(&self, event: Body, _: &HandlerContext) -> Result<(), OutboxError> {
        let published: Result<_, BusError> = self.0.publish(QUEUE, &event).await;
        published.map(drop).map_err(|error| OutboxError::Database(Box::new(error)))
    }
}

pub(crate) async fn play(peer: Peer) {
    let pool = PgPoolOptions::new().max_connections(2 * u32::try_from(peer.workers).expect("few") + 2);
    let pool = pool.connect(&peer.store).await.expect("the database answers");
    ensure_schema(&pool, TABLE).await.expect("created");
    let fill = format!(
        "insert into {TABLE} (event_id, event_type, payload) select gen_random_uuid(), 'bench.made', {} from generate_series(1, {}) n",
        body(peer.keys),
        peer.messages
    );
    for statement in [&fill, &format!("analyze {TABLE}"), "checkpoint"] {
        sqlx::query(statement).execute(&pool).await.expect("filled");
    }
    declare(&peer.broker).await.expect("the broker declares a queue");
    let mut workers = Vec::new();
    for _ in 0..peer.workers {
        let publish = Publish(RabbitMqTransport::new(&peer.broker).await.expect("the broker answers"));
        let handler: Arc<dyn ErasedHandler> = Arc::new(TypedHandler::<Body, _>::new(publish));
        let store = PgOutboxStore::new(pool.clone(), TABLE).expect("a valid name");
        let mut config = OutboxWorkerConfig::default();
        config.batch_size = 100;
        config.min_cycle_delay = Duration::ZERO;
        workers.push(OutboxWorker::new(store, HashMap::from([(Body::EVENT_TYPE, handler)]), config));
    }
    let token = CancellationToken::new();
    done::measured(peer.messages, async {
        for worker in workers {
            let token = token.clone();
            tokio::spawn(async move { worker.run(token).await });
        }
        let left = format!("select count(*) from {TABLE} where delivered_at is null");
        while sqlx::query_scalar::<_, i64>(&left).fetch_one(&pool).await.expect("counted") > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    token.cancel();
}

/// Declares a quorum queue, as the other relays have it.
async fn declare(url: &str) -> lapin::Result<()> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    // It lives on: dropped, it would close itself while the connection does.
    let channel = connection.create_channel().await?;
    channel.queue_declare(QUEUE.into(), options, arguments).await?;
    connection.close(200, "OK".into()).await
}
