//! Dead letters and delivered messages on their way back, in one transaction. Dead letters that the
//! database refuses stay.

use outbox_contract::backend::{AuditNote, Requeue};
use outbox_contract::{MessageId, StoreError};
use outbox_store_sql::dead_letter_name;
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{MySql, QueryBuilder, Row};

use crate::again::{Chosen, append_again, chosen};
use crate::error::is_refusal;
use crate::line::{in_transaction, run};
use crate::store::MySqlStore;
use crate::{audit, sql};

/// In front of each try, within the transaction.
const TRY: &str = "outbox_requeue";

impl MySqlStore {
    /// Appends dead letters again. Their ids stand behind what is read of rows to choose them.
    pub(crate) async fn requeue_chosen(
        &self,
        note: &AuditNote,
        mut query: QueryBuilder<MySql>,
    ) -> Result<u64, StoreError> {
        let requeue = async |connection: &mut MySqlConnection| {
            let rows = query.build().persistent(false).fetch_all(&mut *connection).await?;
            let mut requeue = Requeue::new(chosen(&rows, name)?);
            let mut ids: Vec<MessageId> = Vec::new();
            while let Some(some) = requeue.next() {
                let named: Vec<MessageId> = some.iter().filter_map(|(_, name)| name.parse().ok()).collect();
                let some: Vec<Chosen> = some.iter().map(|(row, _)| row.clone()).collect();
                run(connection, format!("savepoint {TRY}")).await?;
                match append_again(connection, &some, sql::REQUEUE, Some(sql::REQUEUE_REMOVE)).await {
                    Ok(appended) => {
                        ids.extend(named);
                        requeue.appended(appended);
                    }
                    Err(error) if is_refusal(&error) => {
                        run(connection, format!("rollback to savepoint {TRY}")).await?;
                        let words = error
                            .as_database_error()
                            .map_or(String::new(), |error| error.message().to_owned());
                        requeue.refused(words, |(_, name)| name.clone());
                    }
                    Err(error) => return Err(error),
                }
            }
            if requeue.count() > 0 {
                audit::write(connection, note, requeue.count(), &ids).await?;
            }
            Ok(requeue)
        };
        let work = async |connection: &mut MySqlConnection| in_transaction(connection, requeue).await;
        let requeue = self.on("requeue", &self.lines().operating, work).await?;
        self.ring(requeue.count());
        requeue.result()
    }

    /// Appends delivered messages again. Their ids stand behind what is read of rows to choose
    /// them.
    pub(crate) async fn replay_chosen(
        &self,
        note: &AuditNote,
        mut query: QueryBuilder<MySql>,
    ) -> Result<u64, StoreError> {
        let replay = async |connection: &mut MySqlConnection| {
            let rows = query.build().persistent(false).fetch_all(&mut *connection).await?;
            let ids = audit::ids(&rows, 5)?;
            let rows: Vec<Chosen> = chosen(&rows, |_| Ok(()))?.into_iter().map(|(row, ())| row).collect();
            let appended = append_again(connection, &rows, sql::REPLAY, None).await?;
            if appended > 0 {
                audit::write(connection, note, appended, &ids).await?;
            }
            Ok(appended)
        };
        let work = async |connection: &mut MySqlConnection| in_transaction(connection, replay).await;
        let appended = self.on("replay", &self.lines().operating, work).await?;
        self.ring(appended);
        Ok(appended)
    }

    fn ring(&self, appended: u64) {
        if appended > 0 {
            self.bell().committed();
        }
    }
}

/// Returns the name of a dead letter.
fn name(row: &MySqlRow) -> Result<String, sqlx::Error> {
    row.try_get_unchecked(5).map(dead_letter_name)
}
