//! The writing side: the user's transactions.

use outbox_contract::backend::{Blame, Committed, Dedup, Stored};
use outbox_contract::{
    AppendError, Consumer, Message, MessageId, Outgoing, Route, StoreError, StoreErrorKind, Transactional,
    async_trait,
};
use sqlx::Sqlite;
use sqlx::sqlite::SqliteConnection;

use crate::error::{in_transaction, is_no_transaction, is_surely_not_committed, of_beginning, store_error};
use crate::store::SqliteStore;
use crate::{append, blame, deduplicate, sql};

/// Refuses a transaction that has already ended.
///
/// When the disk is full or fails, SQLite itself rolls a transaction back and continues without
/// one. The driver does not see it, and a caller that continues in spite of the error would commit
/// a message alone (promise P1). SQL has no query for an open transaction, but beginning one in
/// another is refused.
async fn require_transaction(
    connection: &mut SqliteConnection,
    operation: &'static str,
) -> Result<(), StoreError> {
    if sqlx::query("begin").execute(&mut *connection).await.is_err() {
        return Ok(());
    }
    let ended = sqlx::query("rollback").execute(&mut *connection).await;
    ended.map_err(|error| store_error(operation, error))?;
    Err(StoreError::new(
        StoreErrorKind::NotInTransaction,
        operation,
        "the database has rolled this transaction back after an earlier error in it; start again from the beginning",
    ))
}

#[async_trait]
impl Transactional for SqliteStore {
    type Tx<'t> = sqlx::Transaction<'t, Sqlite>;
    type Connection = sqlx::SqliteConnection;

    fn connection<'c>(tx: &'c mut Self::Tx<'_>) -> &'c mut Self::Connection {
        tx
    }

    async fn begin(&self) -> Result<Self::Tx<'static>, StoreError> {
        self.pool().begin_with(sql::BEGIN).await.map_err(of_beginning)
    }

    async fn commit(&self, tx: Self::Tx<'static>) -> Committed {
        match tx.commit().await {
            Ok(()) => {
                self.bell().transaction_committed();
                Committed::Yes
            }
            Err(error) if is_surely_not_committed(&error) => Committed::No(in_transaction("commit", error)),
            Err(error) => Committed::Unknown(store_error("commit", error)),
        }
    }

    async fn rollback(&self, tx: Self::Tx<'static>) -> Result<(), StoreError> {
        match tx.rollback().await {
            Err(error) if !is_no_transaction(&error) => Err(store_error("rollback", error)),
            _ => Ok(()),
        }
    }

    async fn append(&self, tx: &mut Self::Tx<'_>, messages: &[Outgoing]) -> Result<(), AppendError> {
        for outgoing in messages {
            outgoing.message.validate()?;
        }
        if messages.is_empty() {
            return Ok(());
        }
        require_transaction(tx, "append").await?;
        append::append(tx, messages).await.map_err(|error| in_transaction("append", error))?;
        self.bell().appended();
        Ok(())
    }

    async fn fence(
        &self,
        tx: &mut Self::Tx<'_>,
        route: &Route,
        stored: &[&Stored],
    ) -> Result<Vec<bool>, StoreError> {
        require_transaction(tx, "fence").await?;
        deduplicate::fence(tx, route, stored).await.map_err(|error| in_transaction("fence", error))
    }

    async fn deduplicate(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Dedup>, StoreError> {
        require_transaction(tx, "deduplicate").await?;
        deduplicate::deduplicate(tx, consumer, messages)
            .await
            .map_err(|error| in_transaction("deduplicate", error))
    }

    async fn is_handled(&self, consumer: &Consumer, id: MessageId) -> Result<bool, StoreError> {
        deduplicate::is_handled(&self.pools().reads, consumer, id)
            .await
            .map_err(|error| store_error("is_handled", error))
    }

    fn blame(&self, error: &(dyn std::error::Error + 'static)) -> Blame {
        error.downcast_ref::<sqlx::Error>().map_or(Blame::Handler, blame::blame)
    }
}
