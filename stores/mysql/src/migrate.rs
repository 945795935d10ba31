//! Making the tables, and bringing them to this version.

use outbox_contract::StoreError;
use outbox_store_sql::{Migration, Migrations};
use sqlx::Row;
use sqlx::mysql::MySqlConnection;

use crate::check;
use crate::error::{number, store_error};
use crate::line::run;

/// Every migration, in order. Never changed once released. Each of their statements can be run
/// again, since the server commits each by itself.
pub(crate) const MIGRATIONS: Migrations =
    Migrations(&[Migration::new(1, "create", include_str!("../migrations/0001_create.sql"))]);

const OPERATION: &str = "migrate";

/// Number of attempts of a migration while others do the same: on nodes of a cluster, which don't
/// wait for each other, one of two is refused.
pub(crate) const MAX_CONFLICTS: u32 = 10;
/// Error of that one.
pub(crate) const DEADLOCK: u16 = 1213;

/// Brings the tables to this version. The server can't change tables in a transaction: what a
/// migration has done when it is cut short is done, and the next one goes on from there. Of several
/// programs at once, each does what is not done yet.
pub(crate) async fn migrate(connection: &mut MySqlConnection) -> Result<(), StoreError> {
    let failed = |error| store_error(OPERATION, error);
    check::server(connection, OPERATION).await?;
    let version = version(connection).await.map_err(failed)?;
    for migration in MIGRATIONS.pending(OPERATION, version)? {
        let mut conflicts = 0;
        while let Err(error) = run(connection, migration.sql).await {
            conflicts += 1;
            if number(&error) != Some(DEADLOCK) || conflicts == MAX_CONFLICTS {
                return Err(failed(error));
            }
        }
        migration.done();
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
