//! The engine behind the front: connections to PostgreSQL with the DocumentDB extension.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bson::Document;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Config, Error, NoTls, Row, Statement};

use crate::refusal::{Refusal, UNKNOWN};
use crate::wire;

/// Maximum number of open connections: fewer than the engine allows (200 by default in the test
/// servers), so that psql finds room too.
const MOST: usize = 120;
/// Time limit of a command's wait for a connection. All are taken only when that many commands or
/// transactions are running.
const PATIENCE: Duration = Duration::from_secs(60);
/// Timeout of connecting.
const CONNECT: Duration = Duration::from_secs(30);

/// Settings of every connection. Notices would only be discarded.
const SETTINGS: &str =
    "set search_path to documentdb_api, documentdb_core, public; set client_min_messages to error";

/// The front's own table: the last retryable command of each session, with its answer (none: a
/// commit). It is written in the transaction of the command itself, so that either both survive or
/// neither.
const PREPARE: &str = "
create extension if not exists documentdb cascade;
create schema if not exists outbox_front;
create table if not exists outbox_front.done (
  session bytea primary key, number bigint not null, answer bytea, at timestamptz not null default now());
-- Indexes are built at once here, not by tasks that look for work every two seconds.
select cron.unschedule(jobid) from cron.job where jobname like 'documentdb_index_build_task%'";

/// A parameter of a statement.
pub(crate) type Parameter<'p> = &'p (dyn ToSql + Sync);

/// Connections to the engine.
#[derive(Debug)]
pub(crate) struct Engine {
    config: Config,
    idle: Mutex<Vec<Connection>>,
    room: Arc<Semaphore>,
}

impl Engine {
    /// Creates an engine at a URL of PostgreSQL. `name` is the name of its connections, and must be
    /// unique to this front.
    pub(crate) fn new(url: &str, name: &str) -> Result<Self, Error> {
        let mut config: Config = url.parse()?;
        config.application_name(name).connect_timeout(CONNECT);
        Ok(Self { config, idle: Mutex::default(), room: Arc::new(Semaphore::new(MOST)) })
    }

    /// Creates the extension and the front's own table, where they do not exist yet.
    pub(crate) async fn prepare(&self) -> Result<(), Error> {
        let (client, driver) = self.config.connect(NoTls).await?;
        let driver = Driver::spawn(driver);
        let prepared = client.batch_execute(PREPARE).await;
        drop((client, driver));
        prepared
    }

    /// Returns an idle connection or a new one.
    pub(crate) async fn connection(&self) -> Result<Connection, Refusal> {
        let room = Arc::clone(&self.room).acquire_owned();
        let room = match tokio::time::timeout(PATIENCE, room).await {
            Ok(Ok(room)) => room,
            Ok(Err(_)) => return Err(Refusal::Hangup),
            Err(_) => {
                let message =
                    format!("none of {MOST} connections to the engine became free within {PATIENCE:?}");
                return Err(Refusal::new(UNKNOWN, message));
            }
        };
        while let Some(mut idle) = self.idle().pop() {
            if !idle.client.is_closed() {
                idle.room = Some(room);
                return Ok(idle);
            }
        }
        let (client, driver) = self.config.connect(NoTls).await?;
        let driver = Driver::spawn(driver);
        client.batch_execute(SETTINGS).await?;
        Ok(Connection { client, statements: HashMap::new(), room: Some(room), _driver: driver })
    }

    /// Takes a connection back. It must be outside of a transaction, without a cursor.
    pub(crate) fn give_back(&self, mut connection: Connection) {
        connection.room = None;
        self.idle().push(connection);
    }

    /// Ends all connections in the engine, in the middle of their work; returns when none is left.
    pub(crate) async fn end_all(&self) -> Result<(), Error> {
        self.idle().clear();
        let name = self.config.get_application_name().unwrap_or_default().to_owned();
        let mut config = self.config.clone();
        let (client, driver) = config.application_name("the end").connect(NoTls).await?;
        let driver = Driver::spawn(driver);
        let sql = "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = $1";
        while client.query_one(sql, &[&name]).await?.get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop((client, driver));
        Ok(())
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task that carries a connection's bytes; it ends with this value.
#[derive(Debug)]
struct Driver(JoinHandle<()>);

impl Driver {
    fn spawn(connection: impl Future<Output = Result<(), Error>> + Send + 'static) -> Self {
        // The next user of the client receives the error.
        Self(tokio::spawn(async move { drop(connection.await) }))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One connection to the engine. Dropped, it is closed, and the engine rolls back its open
/// transaction.
pub(crate) struct Connection {
    client: Client,
    statements: HashMap<&'static str, Statement>,
    room: Option<OwnedSemaphorePermit>,
    _driver: Driver,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("statements", &self.statements.len()).finish_non_exhaustive()
    }
}

impl Connection {
    /// Runs statements without parameters.
    pub(crate) async fn batch(&self, sql: &str) -> Result<(), Refusal> {
        Ok(self.client.batch_execute(sql).await?)
    }

    /// Returns the row of a statement that returns one at most.
    pub(crate) async fn row(
        &mut self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Option<Row>, Refusal> {
        let statement = match self.statements.get(sql) {
            Some(statement) => statement.clone(),
            None => {
                let statement = self.client.prepare(sql).await?;
                self.statements.insert(sql, statement.clone());
                statement
            }
        };
        Ok(self.client.query_opt(&statement, parameters).await?)
    }

    /// Returns the documents of a row whose columns are all documents; None for a null.
    pub(crate) async fn documents(
        &mut self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Option<Document>>, Refusal> {
        let row = self.row(sql, parameters).await?;
        let row = row.ok_or_else(|| Refusal::new(UNKNOWN, format!("no row came from: {sql}")))?;
        let column = |index: usize| {
            let column: Option<Raw<'_>> = row.try_get(index)?;
            column.map(|Raw(bytes)| wire::parse(bytes).map_err(broken)).transpose()
        };
        (0..row.len()).map(column).collect()
    }

    /// Returns the document of a row with one column.
    pub(crate) async fn document(
        &mut self,
        sql: &'static str,
        parameters: &[Parameter<'_>],
    ) -> Result<Document, Refusal> {
        let documents = self.documents(sql, parameters).await?;
        let document = documents.into_iter().next().flatten();
        document.ok_or_else(|| Refusal::new(UNKNOWN, format!("no document came from: {sql}")))
    }
}

/// The bytes of a column of type `bytea` or of the extension's own type, which are the same bytes.
struct Raw<'r>(&'r [u8]);

impl<'r> FromSql<'r> for Raw<'r> {
    fn from_sql(_: &Type, bytes: &'r [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(bytes))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn broken(error: wire::Malformed) -> Refusal {
    Refusal::new(UNKNOWN, format!("what came from the engine: {error}"))
}

/// Returns the bytes of a document, as a parameter.
pub(crate) fn bytes(document: &Document) -> Result<Vec<u8>, Refusal> {
    document
        .to_vec()
        .map_err(|error| Refusal::new(UNKNOWN, format!("a document that can't be written: {error}")))
}
