//! What all parts of the benchmark share: the servers, how much is measured, and the report.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use outbox_servers::{Missing, Postgres, PostgresServer, RabbitMq, RabbitMqServer};

use crate::plot::Bars;
use crate::report::Table;

/// How much is measured.
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
    pub(crate) postgres: PostgresServer,
    pub(crate) broker: RabbitMqServer,
    tables: Vec<Table>,
    bars: Option<Bars>,
}

/// The topic of all messages.
pub(crate) const TOPIC: &str = "bench";
/// How many keys messages have, in turn.
pub(crate) const KEYS: u64 = 10_000;

/// 300 bytes of JSON with a number in front, as SQL.
const PAYLOAD: &str = "convert_to(rpad('{\"n\":' || n || ',\"x\":\"', 298, 'x') || '\"}', 'UTF8')";

impl Bench {
    /// Starts both servers. PostgreSQL writes through to the disk, and neither makes a checkpoint nor cleans up by itself in the time that
    /// is measured.
    pub(crate) fn start(profile: Profile) -> Result<Self, Missing> {
        let postgres = Postgres::newest()
            .durable()
            .config("shared_buffers = 1GB")
            .config("max_wal_size = 16GB")
            .config("checkpoint_timeout = 1h")
            // It comes when it likes; what it costs is measured apart.
            .config("autovacuum = off");
        Ok(Self {
            profile,
            postgres: postgres.start()?,
            broker: RabbitMq::newest().start()?,
            tables: Vec::new(),
            bars: None,
        })
    }

    /// A fresh database with the tables of an outbox, and of a business.
    pub(crate) fn store(&self) -> String {
        let url = self.postgres.fresh_database();
        crate::child::run::<()>(&crate::child::Role::Migrate { store: url.clone() });
        self.postgres.query(
            &url,
            "create table business (id bigint generated always as identity primary key, body text)",
        );
        url
    }

    /// A fresh virtual host.
    pub(crate) fn vhost(&self) -> String {
        self.broker.fresh_vhost()
    }

    /// Fills an outbox: so many messages, of so many keys in turn, without a checkpoint since.
    pub(crate) fn fill(&self, url: &str, topic: &str, messages: u64, keys: u64) {
        self.postgres.query(url, &format!(
            "checkpoint;
             insert into outbox_message (position, bucket, topic, key, event_type, payload)
             select nextval('outbox_message_position'), outbox_bucket('{topic}', key), '{topic}', key, 'bench.made', {PAYLOAD}
             from (select n, 'key-' || n % {keys} as key from generate_series(1, {messages}) n) numbers;
             analyze outbox_message"
        ));
    }

    /// Makes and fills the table of the usual shape.
    pub(crate) fn fill_usual(&self, url: &str, messages: u64) {
        self.postgres.query(url, &format!(
            "checkpoint;
             create table usual_outbox (
                 position bigint generated always as identity primary key, id uuid not null default gen_random_uuid(),
                 topic text not null, key text, event_type text not null, headers bytea not null default '',
                 payload bytea not null, created_at timestamptz not null default now(), processed_at timestamptz);
             create index usual_outbox_open on usual_outbox (position) where processed_at is null;
             insert into usual_outbox (topic, key, event_type, payload)
             select '{TOPIC}', 'key-' || n % {KEYS}, 'bench.made', {PAYLOAD} from generate_series(1, {messages}) n;
             analyze usual_outbox"
        ));
    }

    /// One figure of a database.
    pub(crate) fn number(&self, url: &str, sql: &str) -> f64 {
        let answer = self.postgres.query(url, sql);
        answer.trim().parse().unwrap_or_else(|_| panic!("{sql} gave {answer:?}, which is no number"))
    }

    /// Bytes of WAL that were written since the server was made.
    pub(crate) fn wal(&self) -> f64 {
        self.number(&self.postgres.url(), "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
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

    /// Writes `relay.json`, and `relay.svg` where there is something to draw.
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
        fs::write(folder.join("relay.json"), format!("{report:#}\n"))?;
        if let Some(bars) = &self.bars {
            fs::write(folder.join("relay.svg"), bars.svg())?;
        }
        eprintln!("written to {}", folder.display());
        Ok(())
    }
}
