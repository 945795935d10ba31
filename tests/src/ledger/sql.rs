//! Effects in tables, where the statements are the same.

use outbox_contract::MessageId;
use outbox_engine::HandlerError;
use outbox_store_postgres::PostgresStore;
use outbox_store_sqlite::SqliteStore;
use sqlx::Executor as _;

use super::{ConnectionOf, Effect, Effects, Failed};

macro_rules! effects {
    ($store:ty) => {
        impl Effects for $store {
            type Store = Self;

            fn store(&self) -> &Self {
                self
            }

            async fn make_tables(&self) -> Result<(), Failed> {
                for table in [
                    "create table counters (of_key text primary key, handled bigint not null)",
                    "create table effects (of_key text not null, number bigint not null, id text not null)",
                ] {
                    self.pool().execute(table).await?;
                }
                Ok(())
            }

            async fn note(&self, tx: &mut ConnectionOf<Self>, key: &str, id: MessageId) -> Result<(), HandlerError> {
                let number: i64 = sqlx::query_scalar(
                    "insert into counters values ($1, 1) on conflict (of_key) do update set handled = counters.handled + 1
                     returning handled",
                )
                .bind(key)
                .fetch_one(&mut *tx)
                .await?;
                sqlx::query("insert into effects values ($1, $2, $3)")
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
    };
}

effects!(PostgresStore);
effects!(SqliteStore);
