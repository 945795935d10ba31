//! Shared parts of the benchmark: the servers, the amount of measuring, and the report.

use std::fs;
use std::path::Path;

use clap::ValueEnum;
use outbox_servers::Missing;
use outbox_store_mongodb::MongoDbStore;
use outbox_store_mysql::MySqlStore;
use outbox_store_postgres::PostgresStore;
use outbox_store_sqlite::SqliteStore;

use crate::broker::BrokerServer;
use crate::child::{Role, run};
use crate::database::{DatabaseServer, within};
use crate::pair::Pair;
use crate::report::Table;
use crate::stock::Stock;

/// Amount of measuring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// All parts in about five minutes.
    Quick,
    /// For figures to be quoted.
    Full,
}

impl Profile {
    /// The first with [`Quick`](Self::Quick), the second with [`Full`](Self::Full).
    pub(crate) fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Self::Quick => quick,
            Self::Full => full,
        }
    }
}

/// Number of keys of messages, in turn.
pub(crate) const KEYS: u64 = 10_000;

/// The servers and the report.
pub(crate) struct Bench {
    pub(crate) profile: Profile,
    pub(crate) pair: Pair,
    pub(crate) database: DatabaseServer,
    pub(crate) broker: BrokerServer,
    tables: Vec<Table>,
}

impl Bench {
    /// Starts both servers.
    pub(crate) fn start(profile: Profile, pair: Pair) -> Result<Self, Missing> {
        let (database, broker) = (DatabaseServer::start(pair.database)?, BrokerServer::start(pair.broker)?);
        Ok(Self { profile, pair, database, broker, tables: Vec::new() })
    }

    /// Creates a fresh database with the tables of an outbox, those of the hand-written loop, and a
    /// business table of as many rows as there are keys.
    pub(crate) fn store(&self) -> String {
        let url = self.database.fresh();
        run::<()>(&Role::Migrate { store: url.clone() });
        if let DatabaseServer::Postgres(server) = &self.database {
            server.query(&url, "checkpoint");
        }
        url
    }

    /// Returns the number of effects of handlers.
    pub(crate) fn effects(&self, url: &str) -> u64 {
        within(async {
            match self.database {
                DatabaseServer::Postgres(_) => PostgresStore::reach(url).await.effects().await,
                DatabaseServer::MySql(_) => MySqlStore::reach(url).await.effects().await,
                DatabaseServer::MongoDb(_) => MongoDbStore::reach(url).await.effects().await,
                DatabaseServer::Sqlite(..) => SqliteStore::reach(url).await.effects().await,
            }
        })
    }

    pub(crate) fn say(&self, what: impl AsRef<str>) {
        eprintln!("{}", what.as_ref());
    }

    pub(crate) fn report(&mut self, table: Table) {
        println!("{table}");
        self.tables.push(table);
    }

    /// Writes `inbox.json`.
    pub(crate) fn write(&self, folder: &Path) -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        let machine = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = machine.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let report = serde_json::json!({
            "profile": format!("{:?}", self.profile).to_lowercase(),
            "processor": model.map(|(_, model)| model.trim()),
            "processors": std::thread::available_parallelism().map(usize::from).ok(),
            "pair": self.pair.to_string(),
            "servers": [self.database.name(), self.broker.name()],
            "tables": self.tables,
        });
        fs::write(folder.join("inbox.json"), format!("{report:#}\n"))?;
        eprintln!("written to {}", folder.display());
        Ok(())
    }
}
