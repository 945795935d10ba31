//! Effects in tables of MySQL and MariaDB, which have no `on conflict` and no `returning`.

use outbox_contract::MessageId;
use outbox_engine::HandlerError;
use outbox_store_mysql::MySqlStore;
use sqlx::Executor as _;

use super::{ConnectionOf, Effect, Effects, Failed};

impl Effects for MySqlStore {
    type Store = Self;

    fn store(&self) -> &Self {
        self
    }

    async fn make_tables(&self) -> Result<(), Failed> {
        for table in [
            "create table counters (of_key varchar(255) primary key, handled bigint not null)",
            "create table effects (of_key varchar(255) not null, number bigint not null, id varchar(36) not null)",
        ] {
            self.pool().execute(table).await?;
        }
        Ok(())
    }

    async fn note(&self, tx: &mut ConnectionOf<Self>, key: &str, id: MessageId) -> Result<(), HandlerError> {
        let count = "insert into counters values (?, 1) on duplicate key update handled = handled + 1";
        sqlx::query(count).bind(key).execute(&mut *tx).await?;
        let number: i64 = sqlx::query_scalar("select handled from counters where of_key = ?")
            .bind(key)
            .fetch_one(&mut *tx)
            .await?;
        sqlx::query("insert into effects values (?, ?, ?)")
            .bind(key)
            .bind(number)
            .bind(id.to_string())
            .execute(&mut *tx)
            .await?;
        Ok(())
    }

    async fn all(&self) -> Result<Vec<Effect>, Failed> {
        let rows = sqlx::query_as("select of_key, number, id from effects order by of_key, number");
        let rows: Vec<(String, i64, String)> = rows.fetch_all(self.pool()).await?;
        rows.into_iter().map(Effect::from_row).collect()
    }
}
