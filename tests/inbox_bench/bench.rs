//! Shared parts of the benchmark: the servers, the amount of measuring, and the report.

use std::path::Path;

use outbox_servers::Missing;
use outbox_tests::on_store;

use crate::broker::BrokerServer;
use crate::child::run;
use crate::database::{DatabaseServer, within};
use crate::pair::Pair;
use crate::profile::Profile;
use crate::report::{Table, processors, write};
use crate::role::Role;
use crate::stock::Stock;

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
        let (database, broker) =
            (DatabaseServer::start(pair.database)?, BrokerServer::start(pair.broker, None)?);
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
        within(async { on_store!(url, S => S::reach(url).await.effects().await) })
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
        let (processor, processors) = processors();
        let report = serde_json::json!({
            "profile": format!("{:?}", self.profile).to_lowercase(),
            "processor": processor,
            "processors": processors,
            "pair": self.pair.to_string(),
            "servers": [self.database.name(), self.broker.name()],
            "tables": self.tables,
        });
        write(folder, "inbox.json", &report)
    }
}
