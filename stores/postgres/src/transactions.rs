//! The writing side: the user's transactions.

use std::time::Duration;

use outbox_contract::backend::{Blame, Committed, Dedup, Finished, Rest, Stored};
use outbox_contract::{
    AppendError, Consumer, Message, MessageId, Outgoing, Route, StoreError, Transactional, async_trait,
};
use sqlx::postgres::PgConnection;
use sqlx::{Postgres, SqlSafeStr, SqlStr};

use crate::blame::blame;
use crate::error::{is_sound, is_surely_not_committed, store_error};
use crate::store::PostgresStore;
use crate::weed::pull;
use crate::{append, deduplicate};

/// The server answers the COMMIT of a failed transaction with success, except for its tag, which
/// says ROLLBACK and which the driver does not show. So a statement precedes it, in the same round
/// trip, which such a transaction refuses: then the COMMIT is not run. The driver ends the
/// transaction that is begun behind it, later and in the background: it treats a transaction as
/// open until it has ended it itself.
const COMMIT: &str = "set local outbox.committing = ''; commit; begin";

/// Returns a COMMIT as above, with the next transaction begun behind it.
pub(crate) fn commit_and_begin(begin: &str) -> String {
    format!("set local outbox.committing = ''; commit; {begin}")
}

/// Maximum number of restarts of a transaction on another connection of the pool, when its
/// connection is broken before it did anything. A server that was restarted has broken them all.
const MAX_BROKEN: u32 = 100;

/// Finishes a `begin` that was dropped. Without a runtime this is impossible, and is left out.
fn finish(rest: Rest) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(rest);
    }
}

impl PostgresStore {
    /// Commits by a statement that does so.
    async fn end(&self, connection: &mut PgConnection, statement: SqlStr) -> Committed {
        match sqlx::raw_sql(statement).execute(connection).await {
            Ok(_) => {
                // Other programs learn of it from the notifier, which runs since the append.
                self.bell().transaction_committed();
                Committed::Yes
            }
            Err(error) => {
                self.weeds().met(&error);
                let is_undone = is_surely_not_committed(&error);
                let error = store_error("commit", error);
                if is_undone { Committed::No(error) } else { Committed::Unknown(error) }
            }
        }
    }
}

#[async_trait]
impl Transactional for PostgresStore {
    type Tx<'t> = sqlx::Transaction<'t, Postgres>;
    type Connection = sqlx::PgConnection;

    fn connection<'c>(tx: &'c mut Self::Tx<'_>) -> &'c mut Self::Connection {
        tx
    }

    /// Begins with `lock_timeout` and `idle_in_transaction_session_timeout` set for this
    /// transaction, in the same round trip.
    async fn begin(&self) -> Result<Self::Tx<'static>, StoreError> {
        let most = self.pool().size().min(MAX_BROKEN);
        let mut broken = 0;
        loop {
            let (pool, statement) = (self.pool().clone(), self.begin_statement());
            // Dropped half way, the driver would return the connection to the pool with an open
            // transaction unknown to it.
            match Finished::new(async move { pool.begin_with(statement).await }, finish).await {
                Ok(mut tx) => {
                    let may_be_weed = broken < most && self.weeds().are_suspected();
                    if !may_be_weed || !pull(&mut tx).await {
                        return Ok(tx);
                    }
                    broken += 1;
                }
                Err(sqlx::Error::Io(_)) if broken < most => broken += 1,
                Err(error) if !is_sound(&error) && error.as_database_error().is_some() && broken < most => {
                    broken += 1;
                }
                Err(error) => return Err(store_error("begin", error)),
            }
        }
    }

    async fn commit(&self, mut tx: Self::Tx<'static>) -> Committed {
        self.end(&mut tx, COMMIT.into_sql_str()).await
    }

    async fn commit_and_begin(&self, mut tx: Self::Tx<'static>) -> (Committed, Option<Self::Tx<'static>>) {
        // To the driver it is the same transaction all along.
        match self.end(&mut tx, self.commit_and_begin_statement()).await {
            Committed::Yes => (Committed::Yes, Some(tx)),
            failed => (failed, None),
        }
    }

    async fn rollback(&self, tx: Self::Tx<'static>) -> Result<(), StoreError> {
        match tx.rollback().await {
            // The error that broke the connection has ended the transaction too.
            Err(error) if is_sound(&error) => Err(store_error("rollback", error)),
            _ => Ok(()),
        }
    }

    async fn append(&self, tx: &mut Self::Tx<'_>, messages: &[Outgoing]) -> Result<(), AppendError> {
        let appended = append::append(tx, self.sql(), messages).await;
        if let Err(AppendError::Store(error)) = &appended
            && let Some(cause) = std::error::Error::source(error).and_then(|cause| cause.downcast_ref())
        {
            self.weeds().met(cause);
        }
        appended?;
        if !messages.is_empty() {
            self.ring_appended();
        }
        Ok(())
    }

    async fn fence(
        &self,
        tx: &mut Self::Tx<'_>,
        route: &Route,
        stored: &[&Stored],
    ) -> Result<Vec<bool>, StoreError> {
        deduplicate::fence(tx, self.sql(), route, stored).await.map_err(|error| {
            self.weeds().met(&error);
            store_error("fence", error)
        })
    }

    async fn deduplicate(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Dedup>, StoreError> {
        deduplicate::deduplicate(tx, self.sql(), consumer, messages).await.map_err(|error| {
            self.weeds().met(&error);
            store_error("deduplicate", error)
        })
    }

    async fn is_handled(&self, consumer: &Consumer, id: MessageId) -> Result<bool, StoreError> {
        let look = async |connection: &mut PgConnection| {
            deduplicate::is_handled(connection, self.sql(), consumer, id).await
        };
        self.on("is_handled", &self.lines().looking, look).await
    }

    fn blame(&self, error: &(dyn std::error::Error + 'static)) -> Blame {
        error.downcast_ref::<sqlx::Error>().map_or(Blame::Handler, blame)
    }

    fn max_idle(&self) -> Option<Duration> {
        Some(self.options().transaction_idle_timeout)
    }

    fn max_transactions(&self) -> Option<usize> {
        usize::try_from(self.pool().options().get_max_connections()).ok()
    }
}
