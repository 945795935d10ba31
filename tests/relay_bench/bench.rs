//! Shared parts of the benchmark: the servers, the amount of measuring, and the report.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use outbox_servers::{Missing, PostgresServer};

use crate::broker::BrokerServer;
use crate::child::{Role, run};
use crate::database::{DatabaseServer, Fill};
use crate::pair::{Database, Pair};
use crate::plot::Bars;
use crate::report::Table;
use crate::tuned::Setting;
use crate::usual;

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

/// The servers and the report.
pub(crate) struct Bench {
    pub(crate) profile: Profile,
    pub(crate) pair: Pair,
    /// Settings of the tuned relay.
    pub(crate) settings: Vec<Setting>,
    pub(crate) database: DatabaseServer,
    pub(crate) broker: BrokerServer,
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
        Ok(Self {
            profile,
            pair,
            settings,
            database: DatabaseServer::start(pair.database)?,
            broker: BrokerServer::start(pair.broker)?,
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

    /// Creates a fresh database with the tables of an outbox, and in PostgreSQL of a business.
    pub(crate) fn store(&self) -> String {
        let url = self.database.fresh();
        run::<()>(&Role::Migrate { store: url.clone() });
        if let DatabaseServer::Postgres(server) = &self.database {
            let business =
                "create table business (id bigint generated always as identity primary key, body text)";
            server.query(&url, business);
        }
        url
    }

    /// Fills an outbox: this many messages, of this many keys in turn, without a later checkpoint.
    pub(crate) fn fill(&self, url: &str, topic: &str, messages: u64, keys: u64) {
        let DatabaseServer::Postgres(postgres) = &self.database else {
            assert_eq!(topic, TOPIC, "one topic is enough where nothing is looked into");
            return run::<()>(&Role::Fill(Fill { store: url.to_owned(), messages, keys }));
        };
        postgres.query(url, &format!(
            "checkpoint;
             insert into outbox_message (position, bucket, topic, key, event_type, payload)
             select nextval('outbox_message_position'), outbox_bucket('{topic}', key), '{topic}', key, 'bench.made', {PAYLOAD}
             from (select n, 'key-' || n % {keys} as key from generate_series(1, {messages}) n) numbers;
             analyze outbox_message"
        ));
    }

    /// Creates and fills the table of the SKIP LOCKED baseline.
    pub(crate) fn fill_usual(&self, url: &str, messages: u64) {
        let fill = match self.pair.database {
            Database::MySql | Database::MariaDb => usual::mysql::fill(messages),
            _ => usual::postgres::fill(messages),
        };
        self.database.query(url, &fill);
    }

    /// Returns one figure of a database.
    pub(crate) fn number(&self, url: &str, sql: &str) -> f64 {
        let answer = self.postgres().query(url, sql);
        answer.trim().parse().unwrap_or_else(|_| panic!("{sql} gave {answer:?}, which is no number"))
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
        fs::write(folder.join("relay.json"), format!("{report:#}\n"))?;
        if let Some(bars) = &self.bars {
            fs::write(folder.join("relay.svg"), bars.svg())?;
        }
        eprintln!("written to {}", folder.display());
        Ok(())
    }
}
