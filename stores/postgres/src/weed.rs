//! Connections of the user's pool that lead to a server that takes no writes any more.
//!
//! They work, so the pool does not close them: they return from each failed transaction, and the
//! next one fails too.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnection;

use crate::error::takes_no_writes;

/// Time after an encounter with such a server during which transactions check their server at their
/// beginning.
const SUSPECTED: Duration = Duration::from_secs(60);

/// Time at which a transaction of the pool has found a server that takes no writes.
#[derive(Debug, Default)]
pub(crate) struct Weeds(Mutex<Option<Instant>>);

impl Weeds {
    /// Records an error of a transaction.
    pub(crate) fn met(&self, error: &sqlx::Error) {
        if takes_no_writes(error) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    }

    /// Returns true if other connections of the pool may lead there too.
    pub(crate) fn are_suspected(&self) -> bool {
        let met = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        met.is_some_and(|met| met.elapsed() < SUSPECTED)
    }
}

/// Ends the session of a transaction that can't write, because its pool closes only broken
/// connections. Returns true if it did, or if the connection was broken already.
pub(crate) async fn pull(connection: &mut PgConnection) -> bool {
    let end =
        "select pg_terminate_backend(pg_backend_pid()) where current_setting('transaction_read_only') = 'on'";
    let pulled = sqlx::raw_sql(end).execute(connection).await.is_err();
    if pulled {
        tracing::debug!("a connection of the pool led to a read-only server; it was closed");
    }
    pulled
}
