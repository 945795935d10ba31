//! Connections of the user's pool that lead to a server that takes no writes any more.
//!
//! They work, so nobody else would close them: they come back from each transaction that failed, and the next one fails too.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnection;

use crate::error::takes_no_writes;

/// How long after such a server was met transactions are asked at their beginning.
const SUSPECTED: Duration = Duration::from_secs(60);

/// When a transaction of the pool has found a server that takes no writes.
#[derive(Debug, Default)]
pub(crate) struct Weeds(Mutex<Option<Instant>>);

impl Weeds {
    /// Takes an error of a transaction.
    pub(crate) fn met(&self, error: &sqlx::Error) {
        if takes_no_writes(error) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    }

    /// Whether other connections of the pool may lead there too.
    pub(crate) fn are_suspected(&self) -> bool {
        let met = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        met.is_some_and(|met| met.elapsed() < SUSPECTED)
    }
}

/// Ends the session of a transaction that can't write: its pool closes a connection that is broken, and no other. Says whether it did, or it was
/// broken already.
pub(crate) async fn pull(connection: &mut PgConnection) -> bool {
    let end =
        "select pg_terminate_backend(pg_backend_pid()) where current_setting('transaction_read_only') = 'on'";
    let pulled = sqlx::raw_sql(end).execute(connection).await.is_err();
    if pulled {
        tracing::debug!("a connection of the pool led to a server that takes no writes; it was ended");
    }
    pulled
}
