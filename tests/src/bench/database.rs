//! Databases: as this program starts them, and as children reach them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mongodb::bson::{Document, doc};
use outbox_contract::{Route, Store};
use outbox_servers::{
    MariaDb, Missing, MongoDb, MongoDbServer, MySql, MySqlServer, Postgres, PostgresServer,
};
use outbox_store_mongodb::MongoDbStore;
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

use super::pair::Database;
use crate::fresh::in_database;
use crate::on_store;

/// A running database, or a folder for files.
#[derive(Debug)]
pub enum DatabaseServer {
    /// A server of PostgreSQL.
    Postgres(PostgresServer),
    /// A server of MySQL or MariaDB.
    MySql(MySqlServer),
    /// The stand-in for MongoDB.
    MongoDb(MongoDbServer),
    /// A folder for files of SQLite, and the number of the next one.
    Sqlite(TempDir, AtomicUsize),
}

impl DatabaseServer {
    /// Starts a database.
    pub fn start(database: Database) -> Result<Self, Missing> {
        Self::start_with(database, None)
    }

    /// Starts a database that counts statements, if it can.
    pub fn counting(database: Database) -> Result<Self, Missing> {
        let setting = match database {
            Database::Postgres => Some("shared_preload_libraries = 'pg_stat_statements'"),
            Database::MySql | Database::MariaDb => Some("performance-schema = ON"),
            Database::MongoDb | Database::Sqlite => None,
        };
        Self::start_with(database, setting)
    }

    fn start_with(database: Database, setting: Option<&str>) -> Result<Self, Missing> {
        let mysql = |server: MySql| setting.into_iter().fold(roomy(server), MySql::config);
        Ok(match database {
            Database::Postgres => {
                Self::Postgres(setting.into_iter().fold(durable(), Postgres::config).start()?)
            }
            // Each with its default settings: MySQL with a binary log, MariaDB without one.
            Database::MySql => {
                Self::MySql(mysql(MySql::newest().binlog()).config("innodb-redo-log-capacity = 4G").start()?)
            }
            Database::MariaDb => {
                Self::MySql(mysql(MariaDb::newest()).config("innodb-log-file-size = 4G").start()?)
            }
            Database::MongoDb => Self::MongoDb(MongoDb::newest().start()?),
            Database::Sqlite => {
                Self::Sqlite(TempDir::new().expect("a folder for files can be made"), AtomicUsize::new(0))
            }
        })
    }

    /// Returns its name and version, for the report.
    pub fn name(&self) -> &str {
        match self {
            Self::Postgres(server) => server.name(),
            Self::MySql(server) => server.name(),
            Self::MongoDb(_) => "the stand-in for MongoDB",
            Self::Sqlite(..) => "SQLite",
        }
    }

    /// Returns its processor time so far. None for one that works in its clients' processes, and
    /// for a stand-in, whose time means nothing.
    pub fn cpu(&self) -> Option<Duration> {
        match self {
            Self::Postgres(server) => Some(server.usage().cpu),
            Self::MySql(server) => Some(server.usage().cpu),
            Self::MongoDb(_) | Self::Sqlite(..) => None,
        }
    }

    /// Returns an unused database.
    pub fn fresh(&self) -> String {
        match self {
            Self::Postgres(server) => server.fresh_database(),
            Self::MySql(server) => server.fresh_database(),
            Self::MongoDb(server) => in_database(&server.url(), &server.fresh_database()),
            Self::Sqlite(folder, next) => {
                let file: PathBuf =
                    folder.path().join(format!("{}.db", next.fetch_add(1, Ordering::Relaxed)));
                format!("sqlite://{}", file.display())
            }
        }
    }

    /// Returns the number of messages in its hot table.
    pub fn left(&self, url: &str) -> f64 {
        const COUNT: &str = "select count(*) from outbox_message";
        match self {
            Self::Postgres(_) | Self::MySql(_) => self.number(url, COUNT),
            Self::Sqlite(..) => within(async {
                let mut connection = SqliteConnection::connect(url).await.expect("the file can be opened");
                let count: i64 = sqlx::query_scalar(COUNT).fetch_one(&mut connection).await.expect("counted");
                connection.close().await.expect("the file can be closed");
                count as f64
            }),
            Self::MongoDb(_) => within(async {
                let store = MongoDbStore::connect(url).await.expect("the database answers");
                let database = store.client().default_database().expect("the URL names a database");
                let messages = database.collection::<Document>("outbox_message");
                messages.count_documents(doc! {}).await.expect("counted") as f64
            }),
        }
    }

    /// Returns the number of buckets of each live relay.
    pub fn shares(&self, url: &str) -> Vec<usize> {
        let ownership = within(async { open(url).await.ownership(&Route::default()).await });
        let relays = ownership.expect("the database answers").relays.into_iter();
        relays.filter(|relay| relay.live).map(|relay| relay.buckets).collect()
    }

    /// Runs statements. For a server that speaks SQL.
    pub fn query(&self, url: &str, sql: &str) -> String {
        match self {
            Self::Postgres(server) => server.query(url, sql),
            Self::MySql(server) => server.query(url, sql),
            Self::MongoDb(_) | Self::Sqlite(..) => panic!("{} takes no statements here", self.name()),
        }
    }

    /// Returns the number of bytes in its log of changes since the server was created. None: not
    /// available.
    pub fn logged(&self) -> Option<f64> {
        let (url, sql) = match self {
            Self::Postgres(server) => (server.url(), "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"),
            Self::MySql(server) => (server.url(), MYSQL_LOGGED),
            Self::MongoDb(_) | Self::Sqlite(..) => return None,
        };
        Some(self.number(&url, sql))
    }

    /// Makes it clean up the settled rows, of the outbox or of the SKIP LOCKED baseline. Returns
    /// the processor time; None if it is not available.
    pub fn clean(&self, url: &str, usual: bool) -> Option<Duration> {
        let before = self.cpu()?;
        if usual {
            // Processed rows have to be removed some day.
            self.query(url, "delete from usual_outbox where processed_at is not null");
        }
        if let Self::Postgres(_) = self {
            self.query(url, if usual { "vacuum usual_outbox" } else { "vacuum outbox_message" });
        }
        if let Self::MySql(_) = self {
            // The cleanup began by itself, with the first removed row, and keeps a few of the last.
            let mut most = f64::INFINITY;
            loop {
                let left = self.number(url, MYSQL_HISTORY);
                if left >= most {
                    break;
                }
                most = left;
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        // What a process of the server has used that ended meanwhile is counted no more.
        Some(self.cpu()?.saturating_sub(before))
    }

    /// The last word of a statement's output.
    fn number(&self, url: &str, sql: &str) -> f64 {
        let answer = self.query(url, sql);
        let number = answer.split_whitespace().last().and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("{sql} gave {answer:?}, which ends with no number"))
    }
}

/// End of the log, in bytes: in MySQL's form, and in MariaDB's.
const MYSQL_LOGGED: &str =
    "show global status where variable_name in ('Innodb_redo_log_current_lsn', 'Innodb_lsn_current')";

/// Transactions whose removed rows still exist.
const MYSQL_HISTORY: &str =
    "select `count` from information_schema.innodb_metrics where name = 'trx_rseg_history_len'";

/// A MySQL or a MariaDB that writes through to the disk, and has room for the whole measurement in
/// memory and in its log.
fn roomy(server: MySql) -> MySql {
    server.durable().config("innodb-buffer-pool-size = 1G").config("innodb-log-buffer-size = 16M")
}

/// A PostgreSQL that writes through to the disk, and runs neither a checkpoint nor autovacuum
/// during the measurement.
fn durable() -> Postgres {
    Postgres::newest()
        .durable()
        .config("shared_buffers = 1GB")
        .config("max_wal_size = 16GB")
        .config("checkpoint_timeout = 1h")
        // Its timing is random; its cost is measured separately.
        .config("autovacuum = off")
}

/// Waits for a question of this process, which has nothing else to do meanwhile.
pub fn within<T>(question: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(question)
}

/// Opens the store in the database of a URL.
pub async fn open(url: &str) -> Arc<dyn Store> {
    on_store!(url, S => Arc::new(S::connect(url).await.expect("the database answers")))
}
