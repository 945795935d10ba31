//! The supported databases and brokers, by the scheme of their URLs.

use std::fmt;

/// A database that can hold an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoreKind {
    /// `memory:`
    Memory,
    /// `sqlite:`
    Sqlite,
    /// `postgres:`
    Postgres,
    /// `mysql:`
    MySql,
    /// `mariadb:`
    MariaDb,
    /// `mongodb:`
    MongoDb,
}

/// A broker that can carry messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportKind {
    /// `memory:`
    Memory,
    /// `amqp:`
    RabbitMq,
    /// `kafka:`
    Kafka,
    /// `redis:`
    Redis,
}

/// A URL with an unknown scheme.
#[derive(Debug)]
pub struct UnknownScheme {
    scheme: String,
    known: &'static str,
}

impl fmt::Display for UnknownScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the URL: there may be a password in it.
        write!(f, "{:?} is not the scheme of one of {}", self.scheme, self.known)
    }
}

impl std::error::Error for UnknownScheme {}

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

impl StoreKind {
    /// Returns the database of a URL.
    ///
    /// # Errors
    ///
    /// Its scheme is none of a database.
    pub fn of_url(url: &str) -> Result<Self, UnknownScheme> {
        match scheme(url) {
            "memory" => Ok(Self::Memory),
            "sqlite" => Ok(Self::Sqlite),
            "postgres" | "postgresql" => Ok(Self::Postgres),
            "mysql" => Ok(Self::MySql),
            "mariadb" => Ok(Self::MariaDb),
            "mongodb" => Ok(Self::MongoDb),
            scheme => Err(UnknownScheme {
                scheme: scheme.to_owned(),
                known: "memory:, sqlite:, postgres:, mysql:, mariadb:, mongodb:",
            }),
        }
    }
}

impl TransportKind {
    /// Returns the broker of a URL.
    ///
    /// # Errors
    ///
    /// Its scheme is none of a broker.
    pub fn of_url(url: &str) -> Result<Self, UnknownScheme> {
        match scheme(url) {
            "memory" => Ok(Self::Memory),
            "amqp" | "amqps" => Ok(Self::RabbitMq),
            "kafka" => Ok(Self::Kafka),
            "redis" | "rediss" => Ok(Self::Redis),
            scheme => {
                Err(UnknownScheme { scheme: scheme.to_owned(), known: "memory:, amqp:, kafka:, redis:" })
            }
        }
    }
}
