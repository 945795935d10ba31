//! Making the tables, and bringing them to this version.

use outbox_contract::{StoreError, StoreErrorKind};
use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use crate::check;
use crate::error::{number, store_error};
use crate::line::run;

/// One step from one version of the tables to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migration {
    /// The version that it makes, from 1.
    pub version: i64,
    /// Its purpose, in a word.
    pub name: &'static str,
    /// Its statements. Each can be run again, since the server commits each by itself; the last one records the version, so that any migration
    /// tool can run it.
    pub sql: &'static str,
}

/// Every migration, in order. Never changed once released.
pub(crate) const MIGRATIONS: &[Migration] =
    &[Migration { version: 1, name: "create", sql: include_str!("../migrations/0001_create.sql") }];

/// The version that this code needs.
pub(crate) const NEEDED: i64 = MIGRATIONS[MIGRATIONS.len() - 1].version;

const OPERATION: &str = "migrate";

/// Number of attempts of a migration while others do the same: on nodes of a cluster, which don't wait for each other, one of two is refused.
const MAX_CONFLICTS: u32 = 10;
/// Error of that one.
const DEADLOCK: u16 = 1213;

/// Brings the tables to this version. The server can't change tables in a transaction: what a migration has done when it is cut short is done, and
/// the next one goes on from there. Of several programs at once, each does what is not done yet.
pub(crate) async fn migrate(connection: &mut MySqlConnection) -> Result<(), StoreError> {
    let failed = |error| store_error(OPERATION, error);
    check::server(connection, OPERATION).await?;
    let version = version(connection).await.map_err(failed)?;
    if version > NEEDED {
        return Err(too_new(OPERATION, version));
    }
    for migration in MIGRATIONS.iter().filter(|migration| migration.version > version) {
        let mut conflicts = 0;
        while let Err(error) = run(connection, migration.sql).await {
            conflicts += 1;
            if number(&error) != Some(DEADLOCK) || conflicts == MAX_CONFLICTS {
                return Err(failed(error));
            }
        }
        tracing::info!(
            version = migration.version,
            name = migration.name,
            "the tables of the outbox were migrated"
        );
    }
    Ok(())
}

/// The version of the tables; 0 where there are none.
pub(crate) async fn version(connection: &mut MySqlConnection) -> Result<i64, sqlx::Error> {
    let there = sqlx::query(
        "select 1 from information_schema.tables where table_schema = database() and table_name = 'outbox_schema'",
    )
    .persistent(false)
    .fetch_optional(&mut *connection)
    .await?;
    if there.is_none() {
        return Ok(0);
    }
    sqlx::query("select coalesce(max(version), 0) from outbox_schema")
        .persistent(false)
        .fetch_one(connection)
        .await?
        .try_get_unchecked(0)
}

pub(crate) fn too_new(operation: &'static str, version: i64) -> StoreError {
    StoreError::new(
        StoreErrorKind::SchemaTooNew,
        operation,
        format!("the tables are of version {version}, and this program knows {NEEDED}; upgrade the program"),
    )
}
