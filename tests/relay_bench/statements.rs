//! Statements that a database counts by itself: the questions of a program, without its help.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outbox_servers::Missing;

use crate::database::DatabaseServer;
use crate::pair::Database;

/// A server of its own that counts statements, if the database can.
pub(crate) struct Counting {
    pub(crate) database: DatabaseServer,
    store: String,
}

/// Frequency of each statement, per second.
pub(crate) type Statements = BTreeMap<String, f64>;

/// Number of characters shown of a statement.
const SHOWN: usize = 90;

impl Counting {
    /// Starts it, with an unused database.
    pub(crate) fn start(database: Database) -> Result<Self, Missing> {
        let database = DatabaseServer::counting(database)?;
        if let DatabaseServer::Postgres(server) = &database {
            server.query(&server.url(), "create extension pg_stat_statements");
        }
        let store = database.fresh();
        Ok(Self { database, store })
    }

    /// Returns the URL of the database whose statements are counted.
    pub(crate) fn store(&self) -> &str {
        &self.store
    }

    /// Begins to count.
    pub(crate) fn reset(&self) -> Instant {
        match &self.database {
            DatabaseServer::Postgres(_) => drop(self.ask("select pg_stat_statements_reset()")),
            DatabaseServer::MySql(_) => {
                drop(self.ask("truncate performance_schema.events_statements_summary_by_digest"));
            }
            DatabaseServer::MongoDb(_) | DatabaseServer::Sqlite(..) => {}
        }
        Instant::now()
    }

    /// Returns the statements of the store's database since a reset. None: the database counts
    /// none.
    pub(crate) fn since(&self, reset: Instant) -> Option<Statements> {
        let name = self.store.rsplit('/').next().unwrap_or_default();
        let (sql, separator) = match &self.database {
            DatabaseServer::Postgres(_) => (postgres(name), '|'),
            DatabaseServer::MySql(_) => (mysql(name), '\t'),
            DatabaseServer::MongoDb(_) | DatabaseServer::Sqlite(..) => return None,
        };
        let seconds = reset.elapsed().as_secs_f64();
        let counted = self.ask(&sql);
        let rate = |line: &str| {
            let (calls, statement) = line.split_once(separator)?;
            Some((statement.to_owned(), calls.parse::<f64>().ok()? / seconds))
        };
        let read = |line| rate(line).unwrap_or_else(|| panic!("{line:?} is no count of a statement"));
        Some(counted.lines().filter(|line| !line.is_empty()).map(read).collect())
    }

    /// Queries through another database than the store's, and waits until the server has closed the
    /// connection.
    fn ask(&self, sql: &str) -> String {
        let answer = match &self.database {
            DatabaseServer::Postgres(server) => server.query(&server.url(), sql),
            DatabaseServer::MySql(server) => server.query(&server.url(), sql),
            DatabaseServer::MongoDb(_) | DatabaseServer::Sqlite(..) => String::new(),
        };
        std::thread::sleep(Duration::from_millis(500));
        answer
    }
}

fn postgres(name: &str) -> String {
    format!(
        "select sum(calls), left(regexp_replace(trim(query), '\\s+', ' ', 'g'), {SHOWN}) as statement
         from pg_stat_statements join pg_database on pg_database.oid = dbid where datname = '{name}' group by statement"
    )
}

fn mysql(name: &str) -> String {
    format!(
        "select sum(count_star), left(digest_text, {SHOWN}) as statement
         from performance_schema.events_statements_summary_by_digest
         where schema_name = '{name}' and digest_text is not null group by statement"
    )
}
