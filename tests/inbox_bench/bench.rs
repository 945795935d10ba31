//! Shared parts of the benchmark: the servers, the amount of measuring, and the report.

use std::fs;
use std::path::Path;

use clap::ValueEnum;
use outbox_contract::{Consumer, Topic};
use outbox_servers::{Missing, Postgres, PostgresServer, RabbitMq, RabbitMqServer};
use outbox_store_postgres::PostgresStore;
use outbox_transport_rabbitmq::{RabbitMqTransport, Topology};

use crate::child::{Role, run};
use crate::report::Table;

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

/// The handler's one statement, the same for all variants.
pub(crate) const UPDATE: &str = "update stock set reserved = reserved + 1 where key = $1";

/// The servers and the report.
pub(crate) struct Bench {
    pub(crate) profile: Profile,
    pub(crate) postgres: PostgresServer,
    pub(crate) broker: RabbitMqServer,
    tables: Vec<Table>,
}

impl Bench {
    /// Starts both servers. PostgreSQL writes through to the disk, and runs neither a checkpoint
    /// nor autovacuum during the measurement.
    pub(crate) fn start(profile: Profile) -> Result<Self, Missing> {
        let postgres = Postgres::newest()
            .durable()
            .config("shared_buffers = 1GB")
            .config("max_wal_size = 16GB")
            .config("checkpoint_timeout = 1h")
            .config("autovacuum = off");
        let (postgres, broker) = (postgres.start()?, RabbitMq::newest().start()?);
        Ok(Self { profile, postgres, broker, tables: Vec::new() })
    }

    /// Creates a fresh database with the tables of an outbox, those of the hand-written loop, and a
    /// business table of this many keys.
    pub(crate) fn store(&self) -> String {
        let url = self.postgres.fresh_database();
        run::<()>(&Role::Migrate { store: url.clone() });
        let tables = format!(
            "create table stock (key text primary key, reserved bigint not null) with (fillfactor = 50);
             insert into stock select 'key-' || n, 0 from generate_series(0, {KEYS} - 1) n;
             create table handled (consumer text not null, id uuid not null, handled_at timestamptz not null default now(),
                                   primary key (consumer, id));
             analyze stock; checkpoint"
        );
        self.postgres.query(&url, &tables);
        url
    }

    /// Returns the number of effects of handlers.
    pub(crate) fn effects(&self, url: &str) -> u64 {
        let sum = self.postgres.query(url, "select coalesce(sum(reserved), 0) from stock");
        sum.trim().parse().unwrap_or_else(|_| panic!("the sum of the stock is {sum:?}, which is no number"))
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
            "servers": [self.postgres.name(), self.broker.name()],
            "tables": self.tables,
        });
        fs::write(folder.join("inbox.json"), format!("{report:#}\n"))?;
        eprintln!("written to {}", folder.display());
        Ok(())
    }
}

pub(crate) async fn store(url: &str) -> PostgresStore {
    PostgresStore::connect(url).await.expect("the database answers")
}

/// Returns the transport with one quorum queue. All variants consume through it, so that they
/// differ by their shape alone.
pub(crate) fn transport(url: &str) -> RabbitMqTransport {
    let builder = RabbitMqTransport::builder(url).topology(Topology::Declared);
    builder.consumer(topic(), consumer()).build().expect("a valid configuration")
}

pub(crate) fn topic() -> Topic {
    Topic::new("orders").expect("a valid name")
}

pub(crate) fn consumer() -> Consumer {
    Consumer::new("inventory").expect("a valid name")
}
