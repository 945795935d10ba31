//! Shared parts of the benchmark: the servers, the amount of measuring, and the report.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use outbox_servers::{Missing, PostgresServer};

use crate::broker::BrokerServer;
use crate::child::{Done, run, run_by};
use crate::database::DatabaseServer;
use crate::fill::Fill;
use crate::page::Report;
use crate::pair::{Broker, Database, Pair};
use crate::plot::Bars;
use crate::process;
use crate::profile::Profile;
use crate::publish::Publish;
use crate::report::{Table, processors, write};
use crate::role::Role;
use crate::tuned::Setting;
use crate::usual;

/// The servers and the report.
pub(crate) struct Bench {
    pub(crate) profile: Profile,
    pub(crate) pair: Pair,
    /// Settings of the tuned relay.
    pub(crate) settings: Vec<Setting>,
    /// The program of relays of other projects.
    pub(crate) peers: Option<PathBuf>,
    pub(crate) database: DatabaseServer,
    pub(crate) broker: BrokerServer,
    in_use: Option<f64>,
    tables: Vec<Table>,
    bars: Option<Bars>,
}

/// The topic of all messages.
pub(crate) const TOPIC: &str = "bench";
/// Number of keys of messages, in turn.
pub(crate) const KEYS: u64 = 10_000;

/// 300 bytes of JSON with a number in front, as SQL of PostgreSQL.
pub(crate) const PAYLOAD: &str = "convert_to(rpad('{\"n\":' || n || ',\"x\":\"', 298, 'x') || '\"}', 'UTF8')";

impl Bench {
    /// Starts both servers.
    pub(crate) fn start(profile: Profile, pair: Pair, settings: Vec<Setting>) -> Result<Self, Missing> {
        let in_use = process::in_use();
        Ok(Self {
            in_use,
            profile,
            pair,
            settings,
            peers: None,
            database: DatabaseServer::start(pair.database)?,
            broker: warm(BrokerServer::start(pair.broker, Some(TOPIC))?, pair.broker),
            tables: Vec::new(),
            bars: None,
        })
    }

    /// Returns the server of the parts that inspect PostgreSQL.
    pub(crate) fn postgres(&self) -> &PostgresServer {
        match &self.database {
            DatabaseServer::Postgres(server) => server,
            _ => panic!("{} has no PostgreSQL", self.pair),
        }
    }

    /// Creates a fresh database with the tables of an outbox, and of a business.
    pub(crate) fn store(&self) -> String {
        self.store_by(None)
    }

    /// As [`store`](Self::store), with the tables of another build of this program.
    pub(crate) fn store_by(&self, build: Option<&Path>) -> String {
        let url = self.database.fresh();
        run_by::<()>(build, &Role::Migrate { store: url.clone() });
        url
    }

    /// Fills an outbox: this many messages, of this many keys in turn, without a later checkpoint.
    pub(crate) fn fill(&self, url: &str, topic: &str, messages: u64, keys: u64) {
        self.fill_by(None, url, topic, messages, keys);
    }

    /// As [`fill`](Self::fill), by another build of this program.
    pub(crate) fn fill_by(&self, build: Option<&Path>, url: &str, topic: &str, messages: u64, keys: u64) {
        let (store, topic) = (url.to_owned(), topic.to_owned());
        run_by::<()>(build, &Role::Fill(Fill { store, topic, messages, keys }));
    }

    /// Creates and fills the table of the SKIP LOCKED baseline.
    pub(crate) fn fill_usual(&self, url: &str, messages: u64) {
        let fill = match self.pair.database {
            Database::MySql | Database::MariaDb => usual::mysql::fill(messages),
            _ => usual::postgres::fill(messages),
        };
        self.database.query(url, &fill);
    }

    /// Waits until this holds; fails after ten minutes.
    pub(crate) fn until(&self, what: &str, mut holds: impl FnMut() -> bool) -> Duration {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() < Duration::from_secs(600), "{what}: not within ten minutes");
            std::thread::sleep(Duration::from_millis(50));
        }
        started.elapsed()
    }

    pub(crate) fn say(&self, what: impl AsRef<str>) {
        eprintln!("{}", what.as_ref());
    }

    pub(crate) fn report(&mut self, table: Table) {
        println!("{table}");
        self.tables.push(table);
    }

    pub(crate) fn draw(&mut self, bars: Bars) {
        self.bars = Some(bars);
    }

    /// Writes `relay.json`, and `relay.svg` if there is something to draw.
    pub(crate) fn write(&self, folder: &Path) -> std::io::Result<()> {
        let (processor, processors) = processors();
        let report = Report {
            profile: format!("{:?}", self.profile).to_lowercase(),
            processor,
            processors,
            in_use: self.in_use,
            pair: self.pair.to_string(),
            servers: vec![self.database.name().to_owned(), self.broker.name().to_owned()],
            tables: self.tables.clone(),
        };
        write(folder, "relay.json", &report)?;
        if let Some(bars) = &self.bars {
            fs::write(folder.join("relay.svg"), bars.svg())?;
        }
        Ok(())
    }
}

/// Number of messages sent before a measurement to a broker that compiles its program while it
/// runs. With a tenth of it, the compiler takes as much as the messages of a short run.
const WARMING: u64 = 1_000_000;

fn warm(server: BrokerServer, broker: Broker) -> BrokerServer {
    if broker == Broker::Kafka {
        let publish = Publish { broker: server.fresh(), messages: WARMING, by_hand: false };
        run::<Done>(&Role::Publish(publish));
    }
    server
}
