//! Stores and transports by URL.

use std::sync::Arc;

use outbox::error::AppendError;
use outbox::message::Outgoing;
use outbox::{Store, Transactional, Transport, async_trait};

use crate::exit::Failed;
use crate::redact;
use crate::settings::Settings;

/// A store to which this program can append, whatever its driver's transaction is.
#[async_trait]
pub(crate) trait Database: Store {
    /// Appends messages in a transaction of their own.
    async fn append_all(&self, messages: &[Outgoing]) -> Result<(), AppendError>;
}

#[async_trait]
impl<S: Transactional> Database for S {
    async fn append_all(&self, messages: &[Outgoing]) -> Result<(), AppendError> {
        let mut tx = self.begin().await?;
        if let Err(error) = self.append(&mut tx, messages).await {
            // The append's error says more.
            let _ = self.rollback(tx).await;
            return Err(error);
        }
        Ok(self.commit(tx).await.into_result()?)
    }
}

/// Action for a database file that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Create it.
    Create,
    /// Refuse it: a mistyped path must not leave an empty database behind.
    Refuse,
}

/// Connects to the database of the settings.
#[allow(unused_variables, reason = "not every set of features uses every argument")]
pub(crate) async fn store(settings: &Settings, missing: Missing) -> Result<Arc<dyn Database>, Failed> {
    let url = settings.store()?;
    match scheme(url) {
        #[cfg(feature = "sqlite")]
        "sqlite" => sqlite(settings, url, missing).await,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let mut options = settings.postgres.clone();
            options.history = settings.history.or(options.history);
            Ok(Arc::new(outbox::postgres::PostgresStore::connect_with(url, options).await?))
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => {
            let mut options = settings.mysql.clone();
            options.history = settings.history.or(options.history);
            Ok(Arc::new(outbox::mysql::MySqlStore::connect_with(url, options).await?))
        }
        #[cfg(feature = "mongodb")]
        "mongodb" | "mongodb+srv" => {
            let mut options = settings.mongodb.clone();
            options.history = settings.history.or(options.history);
            Ok(Arc::new(outbox::mongodb::MongoDbStore::connect_with(url, options).await?))
        }
        scheme => Err(unknown(scheme, "store", STORES)),
    }
}

#[cfg(feature = "sqlite")]
async fn sqlite(settings: &Settings, url: &str, missing: Missing) -> Result<Arc<dyn Database>, Failed> {
    use outbox::sqlite::SqliteStore;
    let mut options = settings.sqlite.clone();
    options.history = settings.history.or(options.history);
    let rest = url.trim_start_matches("sqlite:");
    let path = rest.strip_prefix("//").unwrap_or(rest);
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    if path.is_empty() || path == ":memory:" {
        return Err(Failed::usage(
            "a database in memory ends with this program; name a file, as --store sqlite:shop.db",
        ));
    }
    if missing == Missing::Refuse && !std::path::Path::new(path).exists() {
        return Err(Failed::error(format!(
            "the database file {path} does not exist; check the path, or create it with `outbox migrate`"
        )));
    }
    Ok(Arc::new(match query {
        Some(_) => SqliteStore::connect_with(url, options).await?,
        None => SqliteStore::open_with(path, options).await?,
    }))
}

/// Opens the broker of a URL. One that is not reachable is no error yet.
#[allow(unused_variables, reason = "not every set of features uses every argument")]
pub(crate) fn transport(
    settings: &Settings,
    url: &str,
    canary: Option<(&outbox::Topic, &outbox::Consumer)>,
) -> Result<Arc<dyn Transport>, Failed> {
    redact::learn(url);
    match scheme(url) {
        #[cfg(feature = "kafka")]
        "kafka" => kafka(settings, url),
        #[cfg(feature = "rabbitmq")]
        "amqp" | "amqps" => rabbitmq(settings, url, canary),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => redis(settings, url),
        scheme => Err(unknown(scheme, "transport", TRANSPORTS)),
    }
}

#[cfg(feature = "kafka")]
fn kafka(settings: &Settings, url: &str) -> Result<Arc<dyn Transport>, Failed> {
    use outbox::kafka::{KafkaTransport, Mechanism};
    let rest = url.trim_start_matches("kafka://").trim_end_matches('/');
    let (user, brokers) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let mut builder = KafkaTransport::builder(brokers);
    let config = &settings.kafka;
    if config.tls {
        builder = builder.tls();
    }
    if let Some(user) = user {
        let Some((user, password)) = user.split_once(':') else {
            return Err(Failed::usage(
                "the URL of Kafka has a user and no password; write kafka://USER:PASSWORD@HOST:PORT",
            ));
        };
        let mechanism = match config.mechanism.as_deref() {
            None | Some("plain") => Mechanism::Plain,
            Some("scram-sha-256") => Mechanism::ScramSha256,
            Some("scram-sha-512") => Mechanism::ScramSha512,
            Some(other) => {
                return Err(Failed::usage(format!(
                    "kafka.mechanism is {other:?}; write plain, scram-sha-256 or scram-sha-512"
                )));
            }
        };
        builder = builder.credentials(mechanism, redact::decoded(user), redact::decoded(password));
    }
    for (name, value) in &config.properties {
        builder = builder.property(name, value);
    }
    Ok(Arc::new(builder.build()?))
}

#[cfg(feature = "redis")]
fn redis(settings: &Settings, url: &str) -> Result<Arc<dyn Transport>, Failed> {
    use outbox::redis::{RedisTransport, Retention};
    let config = &settings.redis;
    let mut builder = RedisTransport::builder(url);
    if let Some(prefix) = &config.prefix {
        builder = builder.prefix(prefix);
    }
    if let Some(units) = config.units {
        builder = builder.units(units);
    }
    if let Some(others) = &config.cluster {
        builder = builder.cluster(others);
    }
    match config.retention.as_deref() {
        None => {}
        Some("everything") => builder = builder.retention(Retention::Everything),
        Some(kept) => {
            let kept = outbox::relay::duration::parse(kept)
                .map_err(|error| Failed::usage(format!("redis.retention: {error}, or everything")))?;
            builder = builder.retention(Retention::Finished(kept));
        }
    }
    if let Some(replicas) = config.confirm_replicas {
        builder = builder.confirm_replicas(replicas);
    }
    if config.confirm_disk {
        builder = builder.confirm_disk();
    }
    if let Some(path) = &config.authorities {
        builder = builder.authorities(pem("redis.authorities", path)?);
    }
    Ok(Arc::new(builder.build()?))
}

/// Reads a file that a setting names.
#[cfg(any(feature = "rabbitmq", feature = "redis"))]
fn pem(setting: &str, path: &std::path::Path) -> Result<String, Failed> {
    std::fs::read_to_string(path)
        .map_err(|error| Failed::usage(format!("{setting}: could not read {}: {error}", path.display())))
}

#[cfg(feature = "rabbitmq")]
fn rabbitmq(
    settings: &Settings,
    url: &str,
    canary: Option<(&outbox::Topic, &outbox::Consumer)>,
) -> Result<Arc<dyn Transport>, Failed> {
    use outbox::rabbitmq::{RabbitMqTransport, Topology};
    let config = &settings.rabbitmq;
    let mut builder = RabbitMqTransport::builder(url);
    if let Some(exchange) = &config.exchange {
        builder = builder.exchange(exchange);
    }
    if let Some(partitions) = config.partitions {
        builder = builder.partitions(partitions);
    }
    if let Some(exchange) = &config.dead_letters {
        builder = builder.dead_letters(exchange);
    }
    if let Some(deliveries) = config.delivery_limit {
        builder = builder.delivery_limit(deliveries);
    }
    if let Some(messages) = config.max_waiting {
        builder = builder.max_waiting(messages);
    }
    if let Some(bytes) = config.max_message_bytes {
        builder = builder.max_message_bytes(bytes);
    }
    if let Some(path) = &config.authorities {
        builder = builder.authorities(pem("rabbitmq.authorities", path)?);
    }
    if !config.declare.is_empty() || canary.is_some() {
        builder = builder.topology(Topology::Declared);
    }
    for (topic, consumers) in &config.declare {
        for consumer in consumers {
            builder = builder.consumer(topic.as_str(), consumer.as_str());
        }
    }
    if let Some((topic, consumer)) = canary {
        builder = builder.consumer(topic.clone(), consumer.clone());
    }
    Ok(Arc::new(builder.build()?))
}

/// Kinds of databases that this program can have, each with its feature.
const STORES: &[(&str, bool)] = &[
    ("sqlite", cfg!(feature = "sqlite")),
    ("postgres", cfg!(feature = "postgres")),
    ("mysql", cfg!(feature = "mysql")),
    ("mongodb", cfg!(feature = "mongodb")),
];

/// Kinds of brokers that this program can have, each with its feature.
const TRANSPORTS: &[(&str, bool)] = &[
    ("kafka", cfg!(feature = "kafka")),
    ("amqp", cfg!(feature = "rabbitmq")),
    ("redis", cfg!(feature = "redis")),
];

pub(crate) fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

/// Shows the scheme only: the rest may hold a password.
fn unknown(scheme: &str, what: &str, kinds: &[(&str, bool)]) -> Failed {
    let built: Vec<&str> = kinds.iter().filter(|(_, built)| *built).map(|(name, _)| *name).collect();
    let left_out = kinds.iter().any(|(name, built)| !built && *name == scheme);
    let built = if built.is_empty() { "none".to_owned() } else { built.join(", ") };
    let scheme: String = scheme.chars().take(20).collect();
    Failed::usage(if left_out {
        format!("this program was built without {scheme}; it has: {built}. Build it with the feature")
    } else if scheme.is_empty() {
        format!("the URL of the {what} has no scheme; it begins with one of: {built}")
    } else {
        format!("unsupported scheme {scheme:?} of the {what}; it begins with one of: {built}")
    })
}
