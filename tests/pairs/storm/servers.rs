//! A database and a broker of a storm's own, each behind a proxy.

use std::sync::Arc;

use outbox_servers::mongo_front::Options;
use outbox_servers::{
    Kafka, KafkaServer, MongoDb, MongoDbServer, MySql, MySqlServer, OrSkip as _, Postgres, PostgresServer,
    Proxy, RabbitMq, RabbitMqServer, Redis, RedisServer, Server,
};
use outbox_tests::fresh::{fresh_topic, in_database, make_kafka_topic};
use outbox_tests::kind::{StoreKind, TransportKind};
use outbox_tests::pair::Pair;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) enum Database {
    Sqlite(#[expect(dead_code, reason = "the file lives as long as its folder")] TempDir),
    Postgres(PostgresServer),
    MySql(MySqlServer),
    MongoDb(MongoDbServer),
}

#[allow(clippy::large_enum_variant, reason = "there is one of it")]
pub(crate) enum Broker {
    RabbitMq(RabbitMqServer),
    Kafka(KafkaServer),
    /// With a replica.
    Redis(RedisServer, RedisServer),
}

/// Both servers, and the connections to them.
pub(crate) struct Servers {
    pub(crate) database: Database,
    pub(crate) broker: Broker,
    /// None: the database is a file.
    pub(crate) database_proxy: Option<Proxy>,
    pub(crate) broker_proxy: Arc<Proxy>,
    /// As writers and the consumer see them.
    pub(crate) pair: Pair,
    /// As relays see them.
    pub(crate) by_proxy: Pair,
}

impl Servers {
    /// Starts them; None if one of them is unavailable, which is reported then.
    pub(crate) async fn start(store: StoreKind, transport: TransportKind) -> Option<Self> {
        let (database, database_url) = Database::start(store)?;
        let topic = fresh_topic();
        let (broker, broker_url) = Broker::start(transport)?;
        let database_proxy = (store != StoreKind::Sqlite).then(|| Proxy::to(&database_url));
        let behind = |url: &str, proxy: &Proxy| proxy.url(url);
        let by_proxy =
            database_proxy.as_ref().map_or(database_url.clone(), |proxy| behind(&database_url, proxy));
        let (broker_proxy, broker_by_proxy, broker_url) = if let Broker::Kafka(kafka) = &broker {
            make_kafka_topic(&kafka.internal_url(), &topic, 4).await.unwrap();
            // The broker advertises the proxy to all its clients.
            let url = format!("kafka://{}", kafka.url());
            (kafka.proxy(), url.clone(), url)
        } else {
            let proxy = Arc::new(Proxy::to(&broker_url));
            let by_proxy = behind(&broker_url, &proxy);
            (proxy, by_proxy, broker_url)
        };
        let pair = Pair::new(database_url, broker_url, topic.clone());
        let by_proxy = Pair::new(by_proxy, broker_by_proxy, topic);
        Some(Self { database, broker, database_proxy, broker_proxy, pair, by_proxy })
    }
}

impl Database {
    fn start(kind: StoreKind) -> Option<(Self, String)> {
        Some(match kind {
            StoreKind::Sqlite => {
                let folder = tempfile::tempdir().unwrap();
                let url = format!("sqlite://{}", folder.path().join("test.db").display());
                (Self::Sqlite(folder), url)
            }
            StoreKind::MySql => {
                let server = MySql::newest().start().or_skip()?;
                let url = server.fresh_database();
                (Self::MySql(server), url)
            }
            StoreKind::MongoDb => {
                // For a transaction that a killed process has left open: otherwise tests would wait
                // a minute for its end.
                let options = Options::default().transaction_lifetime(Duration::from_secs(8));
                let server = MongoDb::newest().options(options).start().or_skip()?;
                let url = in_database(&server.url(), &server.fresh_database());
                (Self::MongoDb(server), url)
            }
            _ => {
                let server = Postgres::newest().start().or_skip()?;
                let url = server.fresh_database();
                (Self::Postgres(server), url)
            }
        })
    }

    pub(crate) fn kill(&self) {
        match self {
            Self::Sqlite(_) => {}
            Self::Postgres(server) => server.kill(),
            Self::MySql(server) => server.kill(),
            Self::MongoDb(server) => server.kill(),
        }
    }

    pub(crate) fn start_again(&self) {
        match self {
            Self::Sqlite(_) => {}
            Self::Postgres(server) => server.start_again(),
            Self::MySql(server) => server.start_again(),
            Self::MongoDb(server) => server.start_again(),
        }
    }

    pub(crate) fn pause(&self) {
        match self {
            Self::Sqlite(_) => {}
            Self::Postgres(server) => server.pause(),
            Self::MySql(server) => server.pause(),
            Self::MongoDb(server) => server.pause(),
        }
    }

    pub(crate) fn resume(&self) {
        match self {
            Self::Sqlite(_) => {}
            Self::Postgres(server) => server.resume(),
            Self::MySql(server) => server.resume(),
            Self::MongoDb(server) => server.resume(),
        }
    }
}

impl Broker {
    fn start(kind: TransportKind) -> Option<(Self, String)> {
        Some(match kind {
            TransportKind::RabbitMq => {
                let server = RabbitMq::newest().start().or_skip()?;
                let url = server.fresh_vhost();
                (Self::RabbitMq(server), url)
            }
            TransportKind::Redis => {
                // Confirmed messages are on disk.
                let wish = Redis::newest().config("appendonly yes").config("appendfsync always");
                let server = wish.start().or_skip()?;
                let replica = server.replica().or_skip()?;
                let url = server.url();
                (Self::Redis(server, replica), url)
            }
            _ => {
                let server = Kafka::newest().proxied().start().or_skip()?;
                let url = server.url();
                (Self::Kafka(server), url)
            }
        })
    }

    /// Returns the server, for a fault.
    pub(crate) fn server(&self) -> &Server {
        match self {
            Self::RabbitMq(server) => server,
            Self::Kafka(server) => server,
            Self::Redis(server, _) => server,
        }
    }
}
