//! Databases and brokers under measurement.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// PostgreSQL.
    Postgres,
    /// MySQL.
    MySql,
    /// MariaDB.
    MariaDb,
    /// The stand-in for MongoDB.
    MongoDb,
    /// SQLite.
    Sqlite,
}

/// A broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Broker {
    /// RabbitMQ.
    RabbitMq,
    /// Apache Kafka.
    Kafka,
    /// Redis.
    Redis,
}

/// A database and a broker, such as `postgres-kafka`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The database.
    pub database: Database,
    /// The broker.
    pub broker: Broker,
}

impl Database {
    /// All databases.
    pub const ALL: [Self; 5] = [Self::Postgres, Self::MySql, Self::MariaDb, Self::MongoDb, Self::Sqlite];

    /// Returns its name within that of a pair.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
            Self::MariaDb => "mariadb",
            Self::MongoDb => "mongodb",
            Self::Sqlite => "sqlite",
        }
    }

    /// Returns true if the SKIP LOCKED baseline is measured there. SQLite has one writer at a time,
    /// and for a stand-in for MongoDB the result would mean nothing.
    pub const fn has_usual(self) -> bool {
        matches!(self, Self::Postgres | Self::MySql | Self::MariaDb)
    }
}

impl Database {
    /// Returns true if a transaction can stay open without keeping others from writing, and what is
    /// measured beside it means something.
    pub const fn holds_transactions(self) -> bool {
        self.has_usual()
    }
}

impl Broker {
    /// All brokers.
    pub const ALL: [Self; 3] = [Self::RabbitMq, Self::Kafka, Self::Redis];

    /// Returns its name within that of a pair.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RabbitMq => "rabbitmq",
            Self::Kafka => "kafka",
            Self::Redis => "redis",
        }
    }
}

impl Pair {
    /// All pairs.
    pub fn all() -> impl Iterator<Item = Self> {
        let with = |database| Broker::ALL.into_iter().map(move |broker| Self { database, broker });
        Database::ALL.into_iter().flat_map(with)
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.database.name(), self.broker.name())
    }
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::all().find(|pair| pair.to_string() == name).ok_or_else(|| {
            let all: Vec<String> = Self::all().map(|pair| pair.to_string()).collect();
            format!("there is no pair {name:?}; there are {}", all.join(", "))
        })
    }
}
