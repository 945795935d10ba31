//! Check of the tables against the needs of this version.
//!
//! Statements fail without a table or a column, and the server reports that when it parses them.
//! Promises fail silently without a trigger, an index or the uncached sequence: the check looks for
//! those by name.

use std::time::Duration;

use outbox_contract::admin::Misplaced;
use outbox_contract::{StoreError, StoreErrorKind};
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::{Executor, Row};

use crate::below;
use crate::config::PostgresOptions;
use crate::error::{ALTERED, NOT_MIGRATED, store_error};
use crate::migrate::{MIGRATIONS, version};
use crate::settings;
use crate::sql::Statements;
use crate::visible::{hindrances, partitions_of_others};

/// The oldest server that is supported, in the format of `server_version_num`.
const OLDEST: i32 = 130_005;
/// The first release of 14. In it, as in every release before 13.5, a prepared transaction takes
/// another name among the holders of locks than it had before it was prepared. It would count as
/// over, and readers could pass its messages.
const PASSED_OVER: i32 = 140_000;

const OPERATION: &str = "check";

/// Remedy for partitions of the history that have another owner than the history itself.
pub(crate) const OF_OTHERS: &str = "these partitions of the history belong to other roles, and this role can't drop them when they expire: \
                                    alter table PARTITION owner to the role that owns outbox_history";

/// Time limit for a connection of the user's pool: if all of them are in use, a relay may still
/// start.
const POOL: Duration = Duration::from_secs(2);

/// Indexes that a promise needs: for order, for uniqueness, or so that waiting messages cost
/// nothing.
const INDEXES: &[&str] = &[
    "outbox_message_pkey",
    "outbox_message_inbox",
    "outbox_key_pkey",
    "outbox_key_due",
    "outbox_key_held",
    "outbox_parked_pkey",
    "outbox_parked_key",
    "outbox_parked_route",
    "outbox_scheduled_due",
    "outbox_lease_pkey",
    "outbox_relay_pkey",
    "outbox_handled_pkey",
];

/// Triggers that a promise needs, with their tables.
const TRIGGERS: &[(&str, &str)] =
    &[("outbox_message_place", "outbox_message"), ("outbox_scheduled_check", "outbox_scheduled")];

pub(crate) async fn check(
    connection: &mut PgConnection,
    pool: &PgPool,
    sql: &Statements,
    options: &PostgresOptions,
) -> Result<(), StoreError> {
    let failed = |error| store_error(OPERATION, error);
    check_server(connection).await?;
    if let Some(problem) = settings::problem(connection).await.map_err(failed)? {
        return Err(StoreError::new(StoreErrorKind::Unavailable, OPERATION, problem));
    }
    if options.schema.is_none() {
        same_outbox(connection, pool).await?;
    }
    let version = version(connection, options).await.map_err(failed)?;
    if version == 0
        && options.schema.is_none()
        && let Some(elsewhere) = settings::elsewhere(connection).await.map_err(failed)?
    {
        return Err(StoreError::new(StoreErrorKind::NotMigrated, OPERATION, elsewhere));
    }
    MIGRATIONS.check(OPERATION, version, NOT_MIGRATED)?;
    let missing = missing_parts(connection, options).await.map_err(failed)?;
    if !missing.is_empty() {
        return Err(altered(&missing.join("; ")));
    }
    let (schema, keeps_history) = (options.schema.as_deref(), options.history.is_some());
    let hindered = hindrances(connection, schema, keeps_history).await.map_err(failed)?;
    if !hindered.is_empty() {
        return Err(StoreError::new(StoreErrorKind::NotPermitted, OPERATION, hindered.join("; ")));
    }
    if keeps_history {
        // Their rows cost room and nothing else.
        let others = partitions_of_others(connection, schema).await.map_err(failed)?;
        if !others.is_empty() {
            tracing::warn!(partitions = others.join(", "), "{OF_OTHERS}");
        }
    }
    check_statements(connection, sql).await?;
    // A relay delivers them, so it is no reason not to start one.
    let look = below::find(connection, sql, options.counting_limit);
    match tokio::time::timeout(below::MOST, look).await {
        Ok(Ok(found)) => found.iter().for_each(Misplaced::warn),
        _ => tracing::debug!("the check for messages below the saved marks of relays failed"),
    }
    Ok(())
}

/// Checks the server: its version, its encoding, and that it takes writes.
async fn check_server(connection: &mut PgConnection) -> Result<(), StoreError> {
    let failed = |error| store_error(OPERATION, error);
    let server = sqlx::query(
        "select current_setting('server_version_num')::integer, current_setting('server_version'), pg_is_in_recovery(), \
         current_setting('server_encoding')",
    )
    .persistent(false)
    .fetch_one(&mut *connection)
    .await
    .map_err(failed)?;
    let (number, name, standby, encoding): (i32, String, bool, String) = (
        server.try_get(0).map_err(failed)?,
        server.try_get(1).map_err(failed)?,
        server.try_get(2).map_err(failed)?,
        server.try_get(3).map_err(failed)?,
    );
    supported(number, &name, &encoding)?;
    if standby {
        return Err(StoreError::new(
            StoreErrorKind::Unavailable,
            OPERATION,
            "the server is a standby and takes no writes; connect to the primary; behind Pgpool, add outbox_.*,pg_is_in_recovery to \
             write_function_list, or set load_balance_mode = off",
        ));
    }
    Ok(())
}

/// Lets the server prepare every statement, as a table may have been altered by hand.
async fn check_statements(connection: &mut PgConnection, sql: &Statements) -> Result<(), StoreError> {
    for (name, statement) in sql.all() {
        if let Err(error) = connection.prepare(statement.clone()).await {
            // The server's refusal of this statement, or no server.
            return Err(match store_error(OPERATION, error) {
                error
                    if matches!(
                        error.kind(),
                        StoreErrorKind::SchemaAltered | StoreErrorKind::NotMigrated
                    ) =>
                {
                    altered(&format!("the statement `{name}` does not fit them")).with_source(error)
                }
                error => error,
            });
        }
    }
    Ok(())
}

fn supported(number: i32, name: &str, encoding: &str) -> Result<(), StoreError> {
    let refused = |words: String| Err(StoreError::new(StoreErrorKind::Unsupported, OPERATION, words));
    if number < OLDEST || number == PASSED_OVER {
        return refused(format!(
            "the server is PostgreSQL {name}; upgrade it to 13.5, 14.1 or any later release"
        ));
    }
    if encoding != "UTF8" {
        return refused(format!("the database's encoding is {encoding}; make one with encoding UTF8"));
    }
    Ok(())
}

/// Checks that connections of the pool find the same tables as the store's own: messages that were
/// appended to others would wait forever.
async fn same_outbox(connection: &mut PgConnection, pool: &PgPool) -> Result<(), StoreError> {
    let failed = |error| store_error(OPERATION, error);
    let found = async |connection: &mut PgConnection| -> Result<String, sqlx::Error> {
        // In one step: behind a pooler, two may reach two servers. With a volatile function, so
        // that one that spreads reads asks the primary.
        let which = "select coalesce(to_regclass('outbox_message')::oid::text, ''), pg_is_in_recovery()";
        sqlx::raw_sql(which).fetch_one(connection).await?.try_get_unchecked(0)
    };
    let mut users = match tokio::time::timeout(POOL, pool.acquire()).await {
        Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => {
            tracing::debug!(
                "no connection of the pool was free: the check that they find the same outbox was skipped"
            );
            return Ok(());
        }
        Ok(users) => users.map_err(failed)?,
    };
    let (own, theirs) = (found(connection).await.map_err(failed)?, found(&mut users).await.map_err(failed)?);
    if own == theirs {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Invalid,
        OPERATION,
        "connections of the pool find another outbox_message than the store's own, on which no hook of the pool is run, or one of them finds none: \
         appended messages would never be relayed; set the schema in PostgresOptions, or search_path in the pool's connect options or for the \
         role, not in after_connect",
    ))
}

fn altered(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::SchemaAltered, OPERATION, format!("{ALTERED} ({what})"))
}

/// Returns the parts that differ from the migrations, as text.
async fn missing_parts(
    connection: &mut PgConnection,
    options: &PostgresOptions,
) -> Result<Vec<String>, sqlx::Error> {
    let schema = options.schema.as_deref();
    let mut missing = Vec::new();
    for index in INDEXES {
        let valid = sqlx::query("select 1 from pg_index where indexrelid = to_regclass($1) and indisvalid");
        let row = valid.persistent(false).bind(named(schema, index)).fetch_optional(&mut *connection).await?;
        if row.is_none() {
            missing.push(format!("the index {index} is missing or invalid"));
        }
    }
    for (trigger, table) in TRIGGERS {
        let enabled = sqlx::query(
            "select 1 from pg_trigger where tgrelid = to_regclass($1) and tgname = $2 and tgenabled in ('O', 'A')",
        );
        let query = enabled.persistent(false).bind(named(schema, table)).bind(*trigger);
        if query.fetch_optional(&mut *connection).await?.is_none() {
            missing.push(format!("the trigger {trigger} on {table} is missing or disabled"));
        }
    }
    for sequence in ["outbox_message_position", "outbox_key_version"] {
        let row = sqlx::query(
            "select seqcache, seqincrement, seqcycle from pg_sequence where seqrelid = to_regclass($1)",
        )
        .persistent(false)
        .bind(named(schema, sequence))
        .fetch_optional(&mut *connection)
        .await?;
        let Some(row) = row else {
            missing.push(format!("the sequence {sequence} is missing"));
            continue;
        };
        let (cache, increment, cycle): (i64, i64, bool) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        if (cache, increment, cycle) != (1, 1, false) {
            missing.push(format!(
                "the sequence {sequence} has cache {cache}, increment {increment}, cycle {cycle}; it needs 1, 1, false, \
                 or positions are not in the order of commits"
            ));
        }
    }
    Ok(missing)
}

pub(crate) fn named(schema: Option<&str>, name: &str) -> String {
    match schema {
        Some(schema) => format!("\"{schema}\".{name}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_too_old_or_not_in_unicode_is_refused() {
        for (number, name) in [(130_005, "13.5"), (140_001, "14.1"), (180_000, "18.0")] {
            assert!(supported(number, name, "UTF8").is_ok(), "{name}");
        }
        for (number, name) in [(120_022, "12.22"), (130_004, "13.4"), (140_000, "14.0")] {
            let old = supported(number, name, "UTF8").unwrap_err();
            assert_eq!(old.kind(), StoreErrorKind::Unsupported);
            assert!(old.to_string().contains(name), "{old}");
        }
        let latin = supported(180_000, "18.0", "LATIN1").unwrap_err();
        assert!(latin.to_string().contains("LATIN1"), "{latin}");
    }
}
