//! Pairs on real servers that no other test uses.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use outbox_contract::Topic;
use outbox_servers::mongo_front::Options;
use outbox_servers::{Kafka, MariaDb, MongoDb, MySql, OrSkip as _, Postgres, RabbitMq, Redis};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use tempfile::TempDir;

use crate::kind::{StoreKind, TransportKind};
use crate::ledger::Failed;
use crate::pair::Pair;
use crate::record::PATIENCE;

/// A pair with a database, a queue and a topic of its own, on servers that the tests of a program
/// share.
#[derive(Debug)]
pub struct Fresh {
    /// The pair.
    pub pair: Pair,
    /// Folder of the database, if it is a file.
    _folder: Option<TempDir>,
}

impl Fresh {
    /// Creates such a pair; None if one of its servers is unavailable, which is reported then.
    ///
    /// # Panics
    ///
    /// If a server is installed and does not do its work.
    pub async fn new(store: StoreKind, transport: TransportKind) -> Option<Self> {
        let mut folder = None;
        let database = match store {
            StoreKind::Memory => "memory:".to_owned(),
            StoreKind::Sqlite => {
                let folder = folder.insert(tempfile::tempdir().expect("a folder can be made"));
                format!("sqlite://{}", folder.path().join("test.db").display())
            }
            StoreKind::Postgres => Postgres::newest().shared().or_skip()?.fresh_database(),
            StoreKind::MySql => MySql::newest().shared().or_skip()?.fresh_database(),
            StoreKind::MariaDb => MariaDb::newest().shared().or_skip()?.fresh_database(),
            StoreKind::MongoDb => {
                let mut wish = MongoDb::newest();
                if std::env::var_os("OUTBOX_MONGODB_URL").is_none() {
                    // For a transaction that a killed process has left open: otherwise tests would
                    // wait a minute for its end.
                    wish = wish.options(Options::default().transaction_lifetime(Duration::from_secs(8)));
                }
                let server = wish.shared().or_skip()?;
                in_database(&server.url(), &server.fresh_database())
            }
        };
        let topic = fresh_topic();
        let broker = match transport {
            TransportKind::Memory => "memory:".to_owned(),
            TransportKind::RabbitMq => RabbitMq::newest().shared().or_skip()?.fresh_vhost(),
            TransportKind::Redis => Redis::newest().shared().or_skip()?.url(),
            TransportKind::Kafka => {
                let address = Kafka::newest().shared().or_skip()?.url();
                make_kafka_topic(&address, &topic, 4).await.expect("Kafka makes a topic");
                format!("kafka://{address}")
            }
        };
        Some(Self { pair: Pair::new(database, broker, topic), _folder: folder })
    }
}

/// Returns the URL of a database on a server of MongoDB.
#[must_use]
pub fn in_database(url: &str, name: &str) -> String {
    let (server, options) = url.split_once('?').unwrap_or((url, ""));
    let host = server.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    format!("{host}/{name}?{options}")
}

/// Returns a name that no other test uses, even on a server that outlives the test program.
#[must_use]
pub fn fresh_topic() -> Topic {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let time = UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
    let name = format!("orders-{time}-{}-{count}", std::process::id());
    Topic::new(name).unwrap_or_else(|error| unreachable!("letters, digits and dashes: {error}"))
}

/// Creates a topic anew, empty; returns when the broker knows it.
///
/// # Errors
///
/// The broker's error, within a minute.
pub async fn make_kafka_topic_anew(address: &str, topic: &Topic, partitions: i32) -> Result<(), Failed> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", address).create()?;
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE));
    // It may not exist yet.
    drop(admin.delete_topics(&[topic.as_str()], &options).await);
    let start = Instant::now();
    // It disappears a little after the broker's answer.
    loop {
        match make_kafka_topic(address, topic, partitions).await {
            Err(_) if start.elapsed() < PATIENCE => tokio::time::sleep(Duration::from_millis(100)).await,
            made => return made,
        }
    }
}

/// Creates a topic of this many partitions; returns when the broker knows it.
///
/// # Errors
///
/// The broker's error.
pub async fn make_kafka_topic(address: &str, topic: &Topic, partitions: i32) -> Result<(), Failed> {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", address).create()?;
    let options = AdminOptions::new().operation_timeout(Some(PATIENCE)).request_timeout(Some(PATIENCE));
    let new = NewTopic::new(topic.as_str(), partitions, TopicReplication::Fixed(1));
    for made in admin.create_topics([&new], &options).await? {
        made.map_err(|(topic, code)| format!("the topic {topic} is not made: {code}"))?;
    }
    let topic = topic.clone();
    let known = move || -> Result<(), Failed> {
        let start = Instant::now();
        loop {
            let metadata = admin.inner().fetch_metadata(Some(topic.as_str()), PATIENCE)?;
            let found = metadata.topics().iter().any(|it| {
                it.error().is_none()
                    && !it.partitions().is_empty()
                    && it.partitions().iter().all(|partition| partition.leader() >= 0)
            });
            if found {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("the broker does not know {topic} after {PATIENCE:?}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    tokio::task::spawn_blocking(known).await?
}
