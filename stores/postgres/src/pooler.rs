//! Detection of a transaction pooler in front of the server, which the options must declare.
//!
//! It is detectable: two clients that are connected at once share one session of the server.

use std::time::Duration;

use outbox_contract::{StoreError, StoreErrorKind};
use sqlx::Row;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use crate::line::connect;

/// Number of queries of both. Other programs behind the pooler may have the session in between.
const TIMES: usize = 4;
/// Time limit for the second connection and for each answer. A pooler without a second session for
/// it has bound the first one to its client.
const ANSWER: Duration = Duration::from_secs(1);

/// Refuses a transaction pooler. `one` is a connection with these options, without an open
/// transaction.
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
         statement, Pgpool, a proxy): set transaction_pooler in PostgresOptions (--set postgres.transaction_pooler=true for the program outbox), and .persistent(false) for queries of your own; or connect to the \
         server itself, or to the pooler in session mode",
    ))
}

/// Returns true if two connections share one session. None: unknown.
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
    // With a volatile function: a pooler that spreads reads asks the same server each time.
    let asked = sqlx::raw_sql("select pg_backend_pid(), pg_is_in_recovery()").fetch_one(connection);
    let row = tokio::time::timeout(ANSWER, asked).await.ok()?.ok()?;
    row.try_get_unchecked(0).ok()
}
