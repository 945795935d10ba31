//! The writing side: the user's transactions.

use std::time::Duration;

use outbox_contract::finished::{Finished, Rest};
use outbox_contract::hints::Hints;
use outbox_contract::transactional::{Admission, Blame, Committed};
use outbox_contract::{
    AppendError, Consumer, Message, MessageId, Outgoing, StoreError, Transactional, async_trait,
};
use sqlx::postgres::PgConnection;
use sqlx::{Postgres, SqlSafeStr, SqlStr};

use crate::error::{is_conflict, is_sound, is_surely_not_committed, store_error};
use crate::store::PostgresStore;
use crate::{admit, append};

/// A COMMIT of a transaction that failed on the server is answered as if all were well, but for its tag, which says ROLLBACK and which the driver
/// does not show. So something goes in front of it, in the same round trip, that such a transaction refuses: then the COMMIT is not run. What is
/// begun behind it is what the driver ends, later and without anybody waiting: it takes a transaction to be open until it has ended it itself.
const COMMIT: &str = "set local outbox.committing = ''; commit; begin";

/// A COMMIT as above, with the next transaction begun behind it.
pub(crate) fn commit_and_begin(begin: &str) -> String {
    format!("set local outbox.committing = ''; commit; {begin}")
}

/// How often a transaction is begun again on another connection of the pool, when one of them turns out to be broken: nothing has happened yet. A
/// server that was restarted has broken them all.
const MOST_BROKEN: u32 = 100;

/// Finishes a `begin` that nobody waits for any more. Without a runtime there is nobody to do it.
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
                // Other programs hear of it by the notifier, which runs since the append.
                self.bell().transaction_committed();
                Committed::Yes
            }
            Err(error) if is_surely_not_committed(&error) => Committed::No(store_error("commit", error)),
            Err(error) => Committed::Unknown(store_error("commit", error)),
        }
    }
}

#[async_trait]
impl Transactional for PostgresStore {
    type Tx<'t> = sqlx::Transaction<'t, Postgres>;

    /// Begins with `lock_timeout` and `idle_in_transaction_session_timeout` set for this transaction, in the same round trip.
    async fn begin(&self) -> Result<Self::Tx<'static>, StoreError> {
        let most = self.pool().size().min(MOST_BROKEN);
        let mut broken = 0;
        loop {
            let (pool, statement) = (self.pool().clone(), self.begin_statement());
            // Dropped half way, the driver would give the connection back with a transaction open that it knows nothing of.
            match Finished::new(async move { pool.begin_with(statement).await }, finish).await {
                Ok(tx) => return Ok(tx),
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
            // Whatever broke the connection has ended the transaction too.
            Err(error) if is_sound(&error) => Err(store_error("rollback", error)),
            _ => Ok(()),
        }
    }

    async fn append(&self, tx: &mut Self::Tx<'_>, messages: &[Outgoing]) -> Result<(), AppendError> {
        append::append(tx, self.sql(), messages).await?;
        if !messages.is_empty() {
            self.ring_appended();
        }
        Ok(())
    }

    async fn admit(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Admission>, StoreError> {
        admit::admit(tx, self.sql(), consumer, messages).await.map_err(|error| store_error("admit", error))
    }

    async fn admitted(&self, consumer: &Consumer, id: MessageId) -> Result<bool, StoreError> {
        let failed = |error| store_error("admitted", error);
        let mut line = self.lines().looking.hold().await.map_err(failed)?;
        let noted = admit::admitted(&mut line.connection, self.sql(), consumer, id).await;
        line.finish(noted).await.map_err(failed)
    }

    fn blame(&self, error: &(dyn std::error::Error + 'static)) -> Blame {
        match error.downcast_ref::<sqlx::Error>() {
            Some(error) if is_conflict(error) => Blame::Conflict,
            _ => Blame::Handler,
        }
    }

    fn most_idle(&self) -> Option<Duration> {
        Some(self.options().transaction_idle_timeout)
    }

    fn hints(&self) -> &Hints {
        self.bell()
    }
}
