//! Poolers in front of the server: one that has another connection of the server for each transaction has to be said.
//!
//! It can be seen: two clients that are connected at once have one session of the server between them.

use std::time::Duration;

use outbox_contract::{StoreError, StoreErrorKind};
use sqlx::Row;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use crate::line::connect;

/// How often both are asked. Other programs behind the pooler may have the session in between.
const TIMES: usize = 4;
/// How long the second connection and each answer may take. A pooler that has no second session for it has given the first one away for good.
const ANSWER: Duration = Duration::from_secs(1);

/// Refuses a pooler that gives sessions out by the transaction. `one` is a connection with these options, and nothing is open on it.
pub(crate) async fn refuse(
    operation: &'static str,
    one: &mut PgConnection,
    address: &PgConnectOptions,
) -> Result<(), StoreError> {
    if !is_shared(one, address).await.unwrap_or_default() {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Unsupported,
        operation,
        "connections lead through a pooler that gives out sessions of the server by the transaction (PgBouncer with pool_mode = transaction or \
         statement, Pgpool, a proxy): set transaction_pooler in PostgresOptions, and statement_cache_capacity=0 for a pool of your own; or connect to the \
         server itself, or to the pooler in session mode",
    ))
}

/// Whether two connections have one session. None: it could not be found out.
async fn is_shared(one: &mut PgConnection, address: &PgConnectOptions) -> Option<bool> {
    let mut other = connect(address, ANSWER).await.ok()?;
    let first = session(one).await?;
    for _ in 0..TIMES {
        let (another, again) = (session(&mut other).await?, session(one).await?);
        if another == first || again != first {
            return Some(true);
        }
    }
    Some(false)
}

async fn session(connection: &mut PgConnection) -> Option<i32> {
    let asked = sqlx::raw_sql("select pg_backend_pid()").fetch_one(connection);
    let row = tokio::time::timeout(ANSWER, asked).await.ok()?.ok()?;
    row.try_get_unchecked(0).ok()
}
