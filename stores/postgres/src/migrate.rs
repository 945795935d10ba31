//! Creation of the tables, and their migration to this version.

use outbox_contract::StoreError;
use outbox_store_sql::{Migration, Migrations};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::config::PostgresOptions;
use crate::error::{code, store_error};

/// Every migration, in order. Never changed once released.
pub(crate) const MIGRATIONS: Migrations = Migrations(&[
    Migration::new(1, "tables", include_str!("../migrations/0001_tables.sql")),
    Migration::new(2, "append", include_str!("../migrations/0002_append.sql")),
    Migration::new(3, "relay", include_str!("../migrations/0003_relay.sql")),
    Migration::new(4, "operate", include_str!("../migrations/0004_operate.sql")),
]);

/// Advisory lock of migrations: of several programs that migrate a database at once, one does it
/// and the others wait. Other programs are unlikely to lock this number.
const MIGRATING: i64 = 0x6f75_7462_6f78_0001;

const OPERATION: &str = "migrate";

/// Brings the tables to this version, in one transaction. The connection may be one from a pooler.
pub(crate) async fn migrate(
    connection: &mut PgConnection,
    options: &PostgresOptions,
) -> Result<(), StoreError> {
    let failed = |error| store_error(OPERATION, error);
    run(connection, format!("begin isolation level read committed; set local lock_timeout = 0; select pg_advisory_xact_lock({MIGRATING})"))
        .await
        .map_err(failed)?;
    let done = in_transaction(connection, options).await;
    let end = if done.is_ok() { "commit" } else { "rollback" };
    let ended = run(connection, end.to_owned()).await;
    done.and(ended.map_err(failed))
}

async fn in_transaction(connection: &mut PgConnection, options: &PostgresOptions) -> Result<(), StoreError> {
    let failed = |error| store_error(OPERATION, error);
    if let Some(schema) = &options.schema {
        // Checked first: a role without the right to create a schema may migrate an existing one.
        let there = sqlx::query("select 1 from pg_namespace where nspname = $1")
            .persistent(false)
            .bind(schema)
            .fetch_optional(&mut *connection)
            .await
            .map_err(failed)?;
        if there.is_none() {
            run(connection, format!("create schema \"{schema}\"")).await.map_err(failed)?;
        }
        run(connection, format!("set local search_path to \"{schema}\"")).await.map_err(failed)?;
    }
    let version = version(connection, options).await.map_err(failed)?;
    for migration in MIGRATIONS.pending(OPERATION, version)? {
        sqlx::raw_sql(migration.sql)
            .execute(&mut *connection)
            .await
            .map_err(|error| misfit(migration, error))?;
        migration.done();
    }
    Ok(())
}

fn misfit(migration: &Migration, error: sqlx::Error) -> StoreError {
    // An object of that name exists, or one is missing, that the earlier migrations did not create.
    const MISFITS: [&str; 6] = ["42P07", "42710", "42723", "42P01", "42703", "42883"];
    if code(&error).is_some_and(|code| MISFITS.contains(&code.as_str())) {
        let remedy = "; remove the objects in its way, or restore the tables";
        return migration.conflicts(OPERATION, remedy).with_source(error);
    }
    store_error(OPERATION, error)
}

/// Returns the version of the tables; 0 if there are none.
pub(crate) async fn version(
    connection: &mut PgConnection,
    options: &PostgresOptions,
) -> Result<i64, sqlx::Error> {
    let table = match &options.schema {
        Some(schema) => format!("\"{schema}\".outbox_schema"),
        None => "outbox_schema".to_owned(),
    };
    // With a volatile function, so that poolers that spread reads ask the primary.
    let there: bool = sqlx::query("select to_regclass($1) is not null, pg_is_in_recovery()")
        .persistent(false)
        .bind(&table)
        .fetch_one(&mut *connection)
        .await?
        .try_get(0)?;
    if !there {
        return Ok(0);
    }
    let applied = format!("select coalesce(max(version), 0), pg_is_in_recovery() from {table}");
    sqlx::query(AssertSqlSafe(applied)).persistent(false).fetch_one(&mut *connection).await?.try_get(0)
}

/// Runs statements without values.
pub(crate) async fn run(connection: &mut PgConnection, statements: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(connection).await.map(|_| ())
}
