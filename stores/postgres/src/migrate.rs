//! Creation of the tables, and their migration to this version.

use outbox_contract::{StoreError, StoreErrorKind};
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::config::PostgresOptions;
use crate::error::{code, store_error};

/// One step from one version of the tables to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// The version after it, from 1.
    pub version: i64,
    /// Its purpose, in a word.
    pub name: &'static str,
    /// Its statements. The last one records the version, so that any migration tool can run it.
    pub sql: &'static str,
}

/// Every migration, in order. Never changed once released.
pub(crate) const MIGRATIONS: &[Migration] = &[
    Migration { version: 1, name: "tables", sql: include_str!("../migrations/0001_tables.sql") },
    Migration { version: 2, name: "append", sql: include_str!("../migrations/0002_append.sql") },
    Migration { version: 3, name: "relay", sql: include_str!("../migrations/0003_relay.sql") },
    Migration { version: 4, name: "operate", sql: include_str!("../migrations/0004_operate.sql") },
];

/// The version that this code needs.
pub(crate) const NEEDED: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

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
    if version > NEEDED {
        return Err(too_new(OPERATION, version));
    }
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > version) {
        sqlx::raw_sql(migration.sql)
            .execute(&mut *connection)
            .await
            .map_err(|error| misfit(migration, error))?;
        tracing::info!(
            version = migration.version,
            name = migration.name,
            "the tables of the outbox were migrated"
        );
    }
    Ok(())
}

fn misfit(migration: &Migration, error: sqlx::Error) -> StoreError {
    // An object of that name exists, or one is missing, that the earlier migrations did not create.
    const MISFITS: [&str; 6] = ["42P07", "42710", "42723", "42P01", "42703", "42883"];
    if code(&error).is_some_and(|code| MISFITS.contains(&code.as_str())) {
        let words = format!(
            "migration {:04}_{} conflicts with the existing tables; remove the objects in its way, or restore the tables",
            migration.version, migration.name
        );
        return StoreError::new(StoreErrorKind::SchemaAltered, OPERATION, words).with_source(error);
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
    let there: bool = sqlx::query("select to_regclass($1) is not null")
        .persistent(false)
        .bind(&table)
        .fetch_one(&mut *connection)
        .await?
        .try_get(0)?;
    if !there {
        return Ok(0);
    }
    sqlx::query(AssertSqlSafe(format!("select coalesce(max(version), 0) from {table}")))
        .persistent(false)
        .fetch_one(&mut *connection)
        .await?
        .try_get(0)
}

pub(crate) fn too_new(operation: &'static str, version: i64) -> StoreError {
    StoreError::new(
        StoreErrorKind::SchemaTooNew,
        operation,
        format!("the tables have version {version}, and this program supports {NEEDED}; upgrade the program"),
    )
}

/// Runs statements without values.
pub(crate) async fn run(connection: &mut PgConnection, statements: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(connection).await.map(|_| ())
}
