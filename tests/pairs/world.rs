//! One database, one broker, relays in processes of their own, writers and a consumer; and the
//! record of their work.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_contract::backend::{Deliveries, Received, Subscription};
use outbox_contract::{Message, MessageId, Outgoing, Store as _, Transport};
use outbox_servers::{OrSkip as _, Postgres, PostgresServer, RabbitMq, RabbitMqServer};
use outbox_store_postgres::PostgresStore;
use outbox_tests::fresh::fresh_topic;
use outbox_tests::ledger::{self, Ledger};
use outbox_tests::pair::Pair;
use outbox_tests::record::{PATIENCE, Record};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::process::Process;

/// Extra time of a busy machine on top of the promised one: to start a process, to connect, to
/// deliver waiting messages.
const SLACK: Duration = Duration::from_secs(20);

/// Servers that a test needs for itself, to inject faults.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) own_postgres: bool,
    pub(crate) own_rabbitmq: bool,
    pub(crate) max_waiting: Option<u32>,
    pub(crate) max_bytes: Option<usize>,
}

/// A world between PostgreSQL and RabbitMQ, with the servers themselves.
pub(crate) struct Servers {
    pub(crate) postgres: PostgresServer,
    pub(crate) rabbitmq: RabbitMqServer,
    pub(crate) store: PostgresStore,
    world: World,
}

impl Servers {
    /// Starts servers and creates a fresh database and virtual host on them; None if the test must
    /// skip.
    pub(crate) async fn new(wishes: Wishes) -> Option<Self> {
        let postgres = Postgres::newest();
        let postgres = if wishes.own_postgres { postgres.start() } else { postgres.shared() }.or_skip()?;
        let rabbitmq = RabbitMq::newest();
        let rabbitmq = if wishes.own_rabbitmq { rabbitmq.start() } else { rabbitmq.shared() }.or_skip()?;
        let pair = Pair::new(postgres.fresh_database(), rabbitmq.fresh_vhost(), fresh_topic());
        let pair = Pair { max_waiting: wishes.max_waiting, max_bytes: wishes.max_bytes, ..pair };
        let store = PostgresStore::connect(&pair.database).await.unwrap();
        store.migrate().await.unwrap();
        Some(Self { postgres, rabbitmq, store, world: World::new(pair).await })
    }
}

impl Deref for Servers {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Servers {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

/// Everything that a test acts on.
pub(crate) struct World {
    pub(crate) pair: Pair,
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) record: Arc<Record>,
    writers: Vec<JoinHandle<()>>,
    consumer: Option<JoinHandle<()>>,
}

impl World {
    /// Creates a world between an unused database and broker.
    pub(crate) async fn new(pair: Pair) -> Self {
        let ledger = ledger::open(&pair.database).await.unwrap();
        ledger.prepare().await.unwrap();
        Self { pair, ledger, record: Arc::new(Record::new(400)), writers: Vec::new(), consumer: None }
    }

    /// Starts a consumer that receives over this URL of the broker, and creates its queues. From
    /// then on messages have a destination.
    pub(crate) async fn consume_by(&mut self, url: &str) {
        let transport = self.pair.transport_to(url, None).unwrap();
        let subscription =
            Subscription::new(self.pair.consumer().unwrap(), [self.pair.topic.clone()]).unwrap();
        let first = subscribe(&*transport, &subscription).await;
        let record = Arc::clone(&self.record);
        self.consumer = Some(tokio::spawn(async move {
            let mut deliveries = first;
            loop {
                receive(&*deliveries, &record).await;
                deliveries = subscribe(&*transport, &subscription).await;
            }
        }));
    }

    /// Starts a consumer that receives from the broker directly.
    pub(crate) async fn consume(&mut self) {
        let url = self.pair.broker.clone();
        self.consume_by(&url).await;
    }

    /// Ends the consumer as a crash would: its unacknowledged messages are redelivered.
    pub(crate) async fn stop_consuming(&mut self) {
        if let Some(consumer) = self.consumer.take() {
            consumer.abort();
            // It was aborted: its result is known.
            let _ = consumer.await;
        }
    }

    /// Starts a relay in a process of its own; returns when it works.
    pub(crate) fn relay(&self) -> Process {
        Process::relay(&self.pair)
    }

    /// Returns a message with this key.
    pub(crate) fn message(&self, key: &str) -> Message {
        Message::new(self.pair.topic.clone(), "order.placed").unwrap().with_key(key).unwrap()
    }

    /// Starts writers that commit one to three messages of one of this many keys at a time, as fast
    /// as they are delivered. They lock nothing of their own.
    pub(crate) fn write(&mut self, writers: u64, keys: u64) {
        let topic = self.pair.topic.clone();
        let message =
            move |key: &str| Message::new(topic.clone(), "order.placed").unwrap().with_key(key).unwrap();
        self.writers.extend(self.record.writers(&self.ledger, writers, keys, message));
    }

    /// Commits messages in one transaction.
    pub(crate) async fn append(&self, messages: impl IntoIterator<Item = Message>) {
        let messages: Vec<Outgoing> = messages.into_iter().map(Outgoing::from).collect();
        self.record.write_for_certain(&*self.ledger, &messages).await;
    }

    /// Asserts promise P8: messages written after a kill flow again within one lease and one
    /// heartbeat. `again` is the time that its keys can have waited for the successor: it begins
    /// with the kill. A message of each of these keys is written, so that some are of the dead
    /// relay's.
    pub(crate) async fn flows_again_since(&self, killed: Instant, keys: u64) {
        let messages: Vec<Message> = (0..keys).map(|key| self.message(&format!("key-{key}"))).collect();
        let ids: Vec<MessageId> = messages.iter().map(|message| message.id).collect();
        for message in messages {
            self.append([message]).await;
        }
        let most = Pair::LEASE + Pair::HEARTBEAT + SLACK;
        let flows = self.record.come_within(most.saturating_sub(killed.elapsed()), &ids).await;
        assert!(flows, "not all keys flow again {most:?} after a relay was killed");
    }

    /// Waits until this many more messages have arrived for the first time.
    #[track_caller]
    pub(crate) fn more(&self, count: u64) -> impl Future<Output = ()> {
        self.record.more(count)
    }

    /// Stops the writers, waits for every committed message, and compares the history with the
    /// promises: nothing lost, no phantom, every key in the order of its commits.
    pub(crate) async fn finish(&mut self) {
        self.record.stop_writing(self.writers.drain(..)).await;
        let all = self.record.close_every_key(&*self.ledger).await;
        let report = self.record.deliveries();
        assert!(all, "not everything has come after {PATIENCE:?}\n{report}");
        println!("{report}");
        report.assert_at_least_once_in_order();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for task in self.writers.drain(..).chain(self.consumer.take()) {
            task.abort();
        }
    }
}

async fn subscribe(transport: &dyn Transport, subscription: &Subscription) -> Box<dyn Deliveries> {
    let joining = async {
        loop {
            match transport.subscribe(subscription.clone()).await {
                Ok(deliveries) => return deliveries,
                Err(error) => eprintln!("the consumer can't subscribe: {error}; trying again"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, joining).await.expect("the broker lets the consumer in")
}

/// Records and acknowledges everything, until the subscription ends.
async fn receive(deliveries: &dyn Deliveries, record: &Record) {
    loop {
        match deliveries.next().await {
            Ok(Received::Deliveries(batch)) => {
                for delivery in &batch {
                    let message = delivery.message.as_ref().expect("only messages of ours are in the queue");
                    record.delivered(message);
                }
                let tags: Vec<_> = batch.into_iter().map(|delivery| delivery.tag).collect();
                // An unacknowledged delivery is redelivered.
                let _ = deliveries.acknowledge(&tags).await;
            }
            Ok(Received::Ended) => return,
            Ok(_) => {}
            Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(error) => {
                eprintln!("the consumer's subscription ended: {error}");
                return;
            }
        }
    }
}
