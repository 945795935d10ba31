//! One database, one broker, relays in processes of their own, writers and a consumer; and the history of what they did.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::subscription::Received;
use outbox_contract::{
    Deliveries, Message, MessageId, Outgoing, Store as _, Subscription, Transactional as _, Transport,
};
use outbox_servers::{OrSkip as _, Postgres, PostgresServer, RabbitMq, RabbitMqServer};
use outbox_store_postgres::PostgresStore;
use outbox_testkit::history::{ConsumerId, History};
use outbox_tests::pair::Pair;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::process::Process;

/// How long a test waits for what must happen. Many times what it takes on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
/// How many committed messages may be on their way before writers wait: load that a machine of any speed can carry.
const MOST_ON_THEIR_WAY: usize = 400;

/// Which servers a test wants to itself, to do something to them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) own_postgres: bool,
    pub(crate) own_rabbitmq: bool,
    pub(crate) most_waiting: Option<u32>,
    pub(crate) most_bytes: Option<usize>,
}

/// All that a test acts on.
pub(crate) struct World {
    pub(crate) postgres: PostgresServer,
    pub(crate) rabbitmq: RabbitMqServer,
    pub(crate) pair: Pair,
    pub(crate) store: PostgresStore,
    facts: Arc<Facts>,
    writers: Vec<JoinHandle<()>>,
    consumer: Option<JoinHandle<()>>,
}

/// What is known, shared by writers, the consumer and the test.
struct Facts {
    history: History,
    consumer: ConsumerId,
    sets: Mutex<Sets>,
    /// First deliveries.
    delivered: AtomicU64,
    /// Rung when anything changes.
    changed: Notify,
    stop: AtomicBool,
}

#[derive(Default)]
struct Sets {
    /// Committed for certain, and not delivered yet.
    on_their_way: HashSet<MessageId>,
    seen: HashSet<MessageId>,
}

impl Facts {
    fn sets(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn committed(&self, messages: &[Outgoing]) {
        let mut sets = self.sets();
        for outgoing in messages {
            if !sets.seen.contains(&outgoing.message.id) {
                sets.on_their_way.insert(outgoing.message.id);
            }
        }
        drop(sets);
        self.changed.notify_waiters();
    }

    fn delivered(&self, message: &Message) {
        self.history.delivered(self.consumer, message);
        let mut sets = self.sets();
        sets.on_their_way.remove(&message.id);
        let first = sets.seen.insert(message.id);
        drop(sets);
        if first {
            self.delivered.fetch_add(1, Ordering::SeqCst);
            self.changed.notify_waiters();
        }
    }

    /// Waits until something is so; `Err` after [`PATIENCE`].
    async fn until(&self, so: impl Fn() -> bool) -> Result<(), ()> {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // Listening before looking: what happens in between is not missed.
                changed.as_mut().enable();
                if so() {
                    return;
                }
                changed.await;
            }
        };
        timeout(PATIENCE, waiting).await.map_err(drop)
    }
}

impl World {
    /// Servers and a fresh database and virtual host on them; none when the test must skip.
    pub(crate) async fn new(wishes: Wishes) -> Option<Self> {
        let postgres = Postgres::newest();
        let postgres = if wishes.own_postgres { postgres.start() } else { postgres.shared() }.or_skip()?;
        let rabbitmq = RabbitMq::newest();
        let rabbitmq = if wishes.own_rabbitmq { rabbitmq.start() } else { rabbitmq.shared() }.or_skip()?;
        let pair = Pair {
            database: postgres.fresh_database(),
            broker: rabbitmq.fresh_vhost(),
            most_waiting: wishes.most_waiting,
            most_bytes: wishes.most_bytes,
        };
        let store = PostgresStore::connect(&pair.database).await.unwrap();
        store.migrate().await.unwrap();
        let history = History::new();
        let consumer = history.consumer("warehouse");
        let facts = Facts {
            history,
            consumer,
            sets: Mutex::default(),
            delivered: AtomicU64::new(0),
            changed: Notify::new(),
            stop: AtomicBool::new(false),
        };
        let (facts, writers) = (Arc::new(facts), Vec::new());
        Some(Self { postgres, rabbitmq, pair, store, facts, writers, consumer: None })
    }

    pub(crate) fn history(&self) -> &History {
        &self.facts.history
    }

    /// Starts a consumer that receives over this URL of the broker, and makes its queues. From then on messages have somewhere to go.
    pub(crate) async fn consume_by(&mut self, url: &str) {
        let transport = self.pair.transport(url).unwrap();
        let first = subscribe(&transport).await;
        let facts = Arc::clone(&self.facts);
        self.consumer = Some(tokio::spawn(async move {
            let mut deliveries = first;
            loop {
                receive(&*deliveries, &facts).await;
                deliveries = subscribe(&transport).await;
            }
        }));
    }

    /// A consumer that receives from the broker directly.
    pub(crate) async fn consume(&mut self) {
        let url = self.pair.broker.clone();
        self.consume_by(&url).await;
    }

    /// Ends the consumer as a crash would: what it has not acknowledged comes again.
    pub(crate) async fn stop_consuming(&mut self) {
        if let Some(consumer) = self.consumer.take() {
            consumer.abort();
            // It was aborted: that is no news.
            let _ = consumer.await;
        }
    }

    /// Starts a relay in a process of its own; returns when it works.
    pub(crate) fn relay(&self) -> Process {
        Process::relay(&self.pair)
    }

    /// A message with this key.
    pub(crate) fn message(key: &str) -> Message {
        Message::new(Pair::topic().unwrap(), "order.placed").with_key(key).unwrap()
    }

    /// Starts writers that commit one to three messages of one of so many keys at a time, as fast as they are delivered. They lock nothing
    /// of their own.
    pub(crate) fn write(&mut self, writers: u64, keys: u64) {
        for writer in 0..writers {
            let (store, facts) = (self.store.clone(), Arc::clone(&self.facts));
            self.writers.push(tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(writer);
                while !facts.stop.load(Ordering::SeqCst) {
                    let room = || {
                        facts.sets().on_their_way.len() < MOST_ON_THEIR_WAY
                            || facts.stop.load(Ordering::SeqCst)
                    };
                    if facts.until(room).await.is_err() {
                        return;
                    }
                    let key = format!("key-{}", random.u64(..keys));
                    let messages: Vec<Outgoing> =
                        (0..random.usize(1..=3)).map(|_| Self::message(&key).into()).collect();
                    if !append(&store, &facts, &messages).await {
                        // The database is away.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }));
        }
    }

    /// Commits messages in one transaction. It must succeed.
    pub(crate) async fn append(&self, messages: impl IntoIterator<Item = Message>) {
        let messages: Vec<Outgoing> = messages.into_iter().map(Outgoing::from).collect();
        assert!(append(&self.store, &self.facts, &messages).await, "the database takes no message");
    }

    /// Says that messages that a test appended itself are committed, so that they are waited for.
    pub(crate) fn note_committed(&self, message: &Message) {
        self.facts.committed(&[message.clone().into()]);
    }

    /// Says that a message will not come, as it is a dead letter.
    pub(crate) fn note_dead(&self, id: MessageId) {
        self.facts.history.dead_lettered(id);
        self.facts.sets().on_their_way.remove(&id);
    }

    pub(crate) fn is_delivered(&self, id: MessageId) -> bool {
        self.facts.sets().seen.contains(&id)
    }

    /// Waits until so many messages more have come for the first time.
    #[track_caller]
    pub(crate) fn more(&self, count: u64) -> impl Future<Output = ()> {
        let goal = self.facts.delivered.load(Ordering::SeqCst) + count;
        let here = std::panic::Location::caller();
        async move {
            let so = || self.facts.delivered.load(Ordering::SeqCst) >= goal;
            let arrived = self.facts.until(so).await;
            let delivered = self.facts.delivered.load(Ordering::SeqCst);
            assert!(arrived.is_ok(), "{here}: {delivered} of {goal} messages have come after {PATIENCE:?}");
        }
    }

    /// Waits until something is so, which is asked again and again.
    pub(crate) async fn until(&self, what: &str, so: impl AsyncFn() -> bool) {
        let asking = async {
            while !so().await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        assert!(timeout(PATIENCE, asking).await.is_ok(), "not {what} after {PATIENCE:?}");
    }

    /// Lets the writers finish what they are at.
    pub(crate) async fn stop_writing(&mut self) {
        self.facts.stop.store(true, Ordering::SeqCst);
        self.facts.changed.notify_waiters();
        for writer in self.writers.drain(..) {
            timeout(PATIENCE, writer).await.expect("a writer ends").expect("a writer does not panic");
        }
    }

    /// Stops the writers, waits for all that is committed, and holds the history against the promises: nothing lost, nothing made up, every key in the
    /// order of its commits.
    pub(crate) async fn finish(mut self) {
        self.stop_writing().await;
        let all = self.facts.until(|| self.facts.sets().on_their_way.is_empty()).await;
        let report = self.facts.history.check();
        assert!(all.is_ok(), "not everything has come after {PATIENCE:?}\n{report}");
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

/// Appends in a transaction of its own and commits, and records what is known of it. Whether it is committed for certain.
async fn append(store: &PostgresStore, facts: &Facts, messages: &[Outgoing]) -> bool {
    let Ok(mut tx) = store.begin().await else { return false };
    let mut writing = facts.history.begin();
    for outgoing in messages {
        writing.append(&outgoing.message);
    }
    if store.append(&mut tx, messages).await.is_err() {
        // Never committed: the server rolls back what has lost its connection.
        writing.rolled_back();
        return false;
    }
    if tx.commit().await.is_err() {
        writing.unknown();
        return false;
    }
    writing.committed();
    facts.committed(messages);
    true
}

async fn subscribe(transport: &impl Transport) -> Box<dyn Deliveries> {
    let subscription = || Subscription::new(Pair::consumer().unwrap(), [Pair::topic().unwrap()]);
    let joining = async {
        loop {
            match transport.subscribe(subscription()).await {
                Ok(deliveries) => return deliveries,
                Err(error) => eprintln!("the consumer can't subscribe: {error}; trying again"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(PATIENCE, joining).await.expect("the broker lets the consumer in")
}

/// Records and acknowledges everything, until the subscription ends.
async fn receive(deliveries: &dyn Deliveries, facts: &Facts) {
    loop {
        match deliveries.next().await {
            Ok(Received::Deliveries(batch)) => {
                for delivery in &batch {
                    let message = delivery.message.as_ref().expect("only messages of ours are in the queue");
                    facts.delivered(message);
                }
                let tags: Vec<_> = batch.into_iter().map(|delivery| delivery.tag).collect();
                // What is not acknowledged comes again.
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
