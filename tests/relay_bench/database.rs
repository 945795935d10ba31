//! Databases: as this program starts them, and as children reach them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outbox_contract::message::Outgoing;
use outbox_contract::{Message, Store, Transactional};
use outbox_servers::{Missing, Postgres, PostgresServer};
use outbox_store_postgres::PostgresStore;
use outbox_store_sqlite::SqliteStore;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::child::{finished, ready, tell};
use crate::ours::topic;
use crate::pair::Database;

/// A database that runs, or a folder for files.
pub(crate) enum DatabaseServer {
    Postgres(PostgresServer),
    Sqlite(TempDir, AtomicUsize),
}

impl DatabaseServer {
    /// Starts one.
    pub(crate) fn start(database: Database) -> Result<Self, Missing> {
        Ok(match database {
            Database::Postgres => Self::Postgres(durable().start()?),
            Database::Sqlite => {
                Self::Sqlite(TempDir::new().expect("a folder for files can be made"), AtomicUsize::new(0))
            }
        })
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Postgres(server) => server.name(),
            Self::Sqlite(..) => "SQLite",
        }
    }

    /// Processor time so far. None for one that works in its clients' processes.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        match self {
            Self::Postgres(server) => Some(server.usage().cpu),
            Self::Sqlite(..) => None,
        }
    }

    /// A database that nobody has used.
    pub(crate) fn fresh(&self) -> String {
        match self {
            Self::Postgres(server) => server.fresh_database(),
            Self::Sqlite(folder, next) => {
                let file: PathBuf =
                    folder.path().join(format!("{}.db", next.fetch_add(1, Ordering::Relaxed)));
                format!("sqlite://{}", file.display())
            }
        }
    }
}

/// A PostgreSQL that writes through to the disk, and neither makes a checkpoint nor cleans up by itself in the time that is measured.
pub(crate) fn durable() -> Postgres {
    Postgres::newest()
        .durable()
        .config("shared_buffers = 1GB")
        .config("max_wal_size = 16GB")
        .config("checkpoint_timeout = 1h")
        // It comes when it likes; what it costs is measured apart.
        .config("autovacuum = off")
}

/// The store in the database of a URL.
pub(crate) async fn open(url: &str) -> Arc<dyn Store> {
    if url.starts_with("sqlite:") {
        Arc::new(SqliteStore::connect(url).await.expect("the file can be opened"))
    } else {
        Arc::new(PostgresStore::connect(url).await.expect("the database answers"))
    }
}

/// What is to be written into a database whose rows no statement of its own can make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Fill {
    pub(crate) store: String,
    pub(crate) messages: u64,
    pub(crate) keys: u64,
}

impl Fill {
    pub(crate) async fn play(self) {
        let store = SqliteStore::connect(&self.store).await.expect("the file can be opened");
        ready().await;
        let all: Vec<u64> = (0..self.messages).collect();
        for numbers in all.chunks(1_000) {
            let mut tx = store.begin().await.expect("begun");
            let messages: Vec<Outgoing> = numbers.iter().map(|number| self.made(*number)).collect();
            store.append(&mut tx, &messages).await.expect("appended");
            store.commit(tx).await.into_result().expect("committed");
        }
        tell(&());
        finished().await;
    }

    fn made(&self, number: u64) -> Outgoing {
        let payload = format!("{:x<298}\"}}", format!("{{\"n\":{number},\"x\":\""));
        let message = Message::new(topic(), "bench.made").with_payload(payload);
        message.with_key(format!("key-{}", number % self.keys)).expect("a valid key").into()
    }
}
