//! Nodes of a Galera cluster: what is read there, and when.
//!
//! A node shows what it has applied, and may lag behind the others. Whoever was told of a commit by one node and then asks another has to be shown it
//! there: so the node first catches up with all that was committed anywhere when it was asked.

use std::sync::atomic::{AtomicU8, Ordering};

use sqlx::mysql::MySqlExecutor;
use sqlx::{Row, mysql::MySqlRow};

/// For the store's own connections: whatever looks for rows catches up first, but within a transaction, which has caught up when it began. Tables are
/// made on all nodes at once.
pub(crate) const SETUP: &str = "set session wsrep_sync_wait = 7, wsrep_osu_method = 'TOI'";

/// Catches up once, in front of a transaction, and sets nothing.
pub(crate) const CATCH_UP: &str = "set statement wsrep_sync_wait = 1 for select 1";

const UNKNOWN: u8 = 0;
const ALONE: u8 = 1;
const NODE: u8 = 2;

/// Whether the server is a node of a cluster, as it was found last.
#[derive(Debug, Default)]
pub(crate) struct Kind(AtomicU8);

impl Kind {
    /// Asks a server.
    pub(crate) async fn learn(&self, server: impl MySqlExecutor<'_>) -> Result<bool, sqlx::Error> {
        // MySQL has no such variable, nor have some builds of MariaDB.
        let found = sqlx::raw_sql("show variables like 'wsrep_on'").fetch_optional(server).await?;
        let is_on = |row: MySqlRow| {
            let value: Vec<u8> = row.try_get_unchecked(1)?;
            Ok::<_, sqlx::Error>(value.eq_ignore_ascii_case(b"on"))
        };
        let is_node = found.map(is_on).transpose()?.unwrap_or_default();
        self.0.store(if is_node { NODE } else { ALONE }, Ordering::Relaxed);
        Ok(is_node)
    }

    /// What is known, if somebody has asked.
    pub(crate) fn is_node(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            UNKNOWN => None,
            known => Some(known == NODE),
        }
    }
}
