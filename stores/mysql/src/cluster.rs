//! Nodes of a Galera cluster: what is read there, and when.
//!
//! A node shows what it has applied, and may lag behind the others. Whoever was told of a commit by
//! one node and then asks another has to be shown it there: so the node first catches up with all
//! that was committed anywhere when it was asked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Row;
use sqlx::mysql::MySqlExecutor;

/// For the store's own connections: whatever looks for rows catches up first, but within a
/// transaction, which has caught up when it began. Marks of one node with rows of another that lags
/// made rows look settled, and they were never sent.
pub(crate) const SETUP: &str = "set session wsrep_sync_wait = 7";

/// Tables are made on all nodes at once, whatever the server was set to.
pub(crate) const ON_ALL_NODES: &str = "set session wsrep_osu_method = 'TOI'";

/// Catches up once, in front of a transaction, and sets nothing. MySQL can't set a variable for one
/// statement: there nothing is caught up with.
pub(crate) const CATCH_UP: &str = "/*M!100600 set statement wsrep_sync_wait = 1 for */ select 1";

/// For how long an answer holds: the name of the server may stand for another one since.
const FRESH: Duration = Duration::from_secs(10);

/// Membership of the server in a cluster, as it was found last, and the time of that.
#[derive(Debug, Default)]
pub(crate) struct Kind {
    found: Mutex<Option<(bool, Instant)>>,
    is_mysql: AtomicBool,
}

impl Kind {
    fn found(&self) -> MutexGuard<'_, Option<(bool, Instant)>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks a server.
    pub(crate) async fn learn(&self, server: impl MySqlExecutor<'_>) -> Result<bool, sqlx::Error> {
        // MySQL has no such variable, nor have some builds of MariaDB.
        let found = sqlx::raw_sql("show variables where variable_name in ('wsrep_on', 'version')");
        let (mut is_node, mut is_mariadb) = (false, false);
        for row in &found.fetch_all(server).await? {
            let (name, value): (Vec<u8>, Vec<u8>) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
            match &name[..] {
                b"version" => {
                    is_mariadb = value.to_ascii_lowercase().windows(7).any(|part| part == b"mariadb")
                }
                _ => is_node = value.eq_ignore_ascii_case(b"on"),
            }
        }
        self.is_mysql.store(!is_mariadb, Ordering::Relaxed);
        *self.found() = Some((is_node, Instant::now()));
        Ok(is_node)
    }

    /// Returns true if the server is known to be MySQL, and not MariaDB.
    pub(crate) fn is_mysql(&self) -> bool {
        self.is_mysql.load(Ordering::Relaxed)
    }

    /// Returns the last finding.
    pub(crate) fn last(&self) -> Option<bool> {
        self.found().map(|(is_node, _)| is_node)
    }

    /// The same, if it may still be so. Where it is old, one is told nothing and is to ask, and the
    /// others do with what there is.
    pub(crate) fn fresh(&self) -> Option<bool> {
        let mut found = self.found();
        let (is_node, at) = found.as_mut()?;
        if at.elapsed() > FRESH {
            *at = Instant::now();
            return None;
        }
        Some(*is_node)
    }

    /// A connection broke: what is reached by the next may be another server.
    pub(crate) fn forget(&self) {
        self.found().take();
    }
}
