//! The tables: their creation, and the check that they are those of this version.

use outbox_contract::{StoreError, StoreErrorKind};
use outbox_store_sql::{Migration, Migrations};
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{Connection, Executor, Row, SqlSafeStr};

use crate::error::{ALTERED, NOT_MIGRATED, is_unavailable, store_error};
use crate::sql;

/// Every migration, in order. Never changed once released.
pub(crate) const MIGRATIONS: Migrations =
    Migrations(&[Migration::new(1, "create", include_str!("../migrations/0001_create.sql"))]);

/// Parts without which promises fail though statements do not: the partial indexes, and positions
/// that never come back.
const PARTS: &[(&str, &str)] = &[
    ("outbox_message", "autoincrement"),
    ("outbox_message_unplaced", "bucket is null"),
    ("outbox_message_inbox", "inbox/"),
    ("outbox_key_due", "next_attempt_at"),
    ("outbox_key_held", "held"),
    ("outbox_parked_key", "order_key"),
    ("outbox_parked_route", "position"),
    ("outbox_dead_route", "route"),
    ("outbox_scheduled_due", "due_at"),
];

/// Brings the tables to this version, under the write lock: of several programs one does it and the
/// others wait.
pub(crate) async fn migrate(pool: &SqlitePool) -> Result<(), StoreError> {
    const OPERATION: &str = "migrate";
    let failed = |error| store_error(OPERATION, error);
    let mut tx = pool.begin_with(sql::BEGIN).await.map_err(failed)?;
    let version = version(&mut tx).await.map_err(failed)?;
    for migration in MIGRATIONS.pending(OPERATION, version)? {
        sqlx::raw_sql(migration.sql).execute(&mut *tx).await.map_err(|error| {
            if is_unavailable(&error) {
                return failed(error);
            }
            migration.conflicts(OPERATION, "").with_source(error)
        })?;
        migration.done();
    }
    tx.commit().await.map_err(failed)
}

/// Checks that the tables are the ones that this version needs.
pub(crate) async fn check(pool: &SqlitePool) -> Result<(), StoreError> {
    const OPERATION: &str = "check";
    let failed = |error| store_error(OPERATION, error);
    let mut connection = pool.acquire().await.map_err(failed)?;
    let version = version(&mut connection).await.map_err(failed)?;
    MIGRATIONS.check(OPERATION, version, NOT_MIGRATED)?;
    let altered =
        |what: &str| StoreError::new(StoreErrorKind::SchemaAltered, OPERATION, format!("{ALTERED} ({what})"));
    for (part, has) in PARTS {
        let made: Option<String> = sqlx::query_scalar("select lower(sql) from sqlite_schema where name = ?1")
            .bind(part)
            .fetch_optional(&mut *connection)
            .await
            .map_err(failed)?;
        if !made.is_some_and(|made| made.contains(has)) {
            return Err(altered(&format!("{part} is missing, or was made without `{has}`")));
        }
    }
    // An earlier compilation says nothing of the present tables.
    connection.clear_cached_statements().await.map_err(failed)?;
    for (name, statement) in sql::ALL {
        match connection.prepare(statement.into_sql_str()).await {
            Ok(_) => {}
            Err(error) if is_unavailable(&error) => return Err(failed(error)),
            Err(error) => {
                return Err(altered(&format!("the statement `{name}` does not fit them")).with_source(error));
            }
        }
    }
    let mode: String =
        sqlx::query_scalar("pragma journal_mode").fetch_one(&mut *connection).await.map_err(failed)?;
    if mode != "wal" {
        tracing::warn!(
            journal_mode = mode,
            "without WAL, readers and writers wait for one another; set `pragma journal_mode = wal` once"
        );
    }
    Ok(())
}

/// Returns the version of the tables; 0 if there are none.
async fn version(connection: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    let there = sqlx::query("select 1 from sqlite_schema where type = 'table' and name = 'outbox_schema'")
        .fetch_optional(&mut *connection)
        .await?;
    if there.is_none() {
        return Ok(0);
    }
    let row = sqlx::query("select coalesce(max(version), 0) from outbox_schema")
        .fetch_one(&mut *connection)
        .await?;
    row.try_get(0)
}
