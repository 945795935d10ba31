//! Check that the server, and the tables in it, are what this version needs.
//!
//! Statements fail without a table or a column, and the server says so when it prepares them.
//! Promises fail without an index, with another engine or with a text type that takes two keys for
//! one, and the server says nothing: the check looks for those.

use outbox_contract::backend::STRIPES;
use outbox_contract::{StoreError, StoreErrorKind};
use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Executor, Row, SqlSafeStr};

use crate::error::{ALTERED, NOT_MIGRATED, of_beginning, store_error};
use crate::migrate::{MIGRATIONS, version};
use crate::{deduplicate, fetch, promote, settle, sql, transition, turns};

/// Indexes that a promise needs, with their columns: for order, for uniqueness, or so that what
/// waits costs nothing and is not locked.
const INDEXES: &[(&str, &str, &str)] = &[
    ("outbox_message", "PRIMARY", "route,position"),
    ("outbox_stripe", "PRIMARY", "route,stripe"),
    ("outbox_key", "PRIMARY", "route,topic,key"),
    ("outbox_key", "outbox_key_due", "route,held,next_attempt_at"),
    ("outbox_parked", "PRIMARY", "route,topic,order_key,position,id"),
    ("outbox_dead", "PRIMARY", "entry"),
    ("outbox_scheduled", "outbox_scheduled_due", "due_at,entry"),
    ("outbox_scheduled", "outbox_scheduled_id", "id"),
    ("outbox_lease", "PRIMARY", "route,bucket"),
    ("outbox_relay", "PRIMARY", "route,relay"),
    ("outbox_role", "PRIMARY", "role"),
    ("outbox_identity", "PRIMARY", "one"),
    ("outbox_audit", "PRIMARY", "entry"),
    ("outbox_handled", "PRIMARY", "consumer,id"),
    ("outbox_handled", "outbox_handled_at", "consumer,handled_at"),
    ("outbox_retention", "PRIMARY", "handled_ids_kept,handled_ids_max_age"),
];

/// The oldest servers that have what the statements need: checks that are enforced, `json_table`,
/// `skip locked`.
const OLDEST_MYSQL: (u32, u32, u32) = (8, 0, 16);
const OLDEST_MARIADB: (u32, u32, u32) = (10, 6, 0);

const OPERATION: &str = "check";

pub(crate) async fn check(connection: &mut MySqlConnection) -> Result<(), StoreError> {
    let failed = |error| store_error(OPERATION, error);
    server(connection, OPERATION).await?;
    let version = version(connection).await.map_err(failed)?;
    MIGRATIONS.check(OPERATION, version, NOT_MIGRATED)?;
    let wrong = wrong_parts(connection).await.map_err(failed)?;
    if !wrong.is_empty() {
        return Err(altered(&wrong.join("; ")));
    }
    let [fence, lock] = transition::samples();
    let [fetch_all, fetch_some] = fetch::samples();
    let [failing, waiting] = turns::samples();
    let samples = [
        ("fetch", fetch_all),
        ("fetch", fetch_some),
        ("settle", settle::sample()),
        ("fence", fence),
        ("transition", lock),
        ("promote", promote::sample()),
        ("fence", deduplicate::sample()),
        ("deduplicate", failing),
        ("deduplicate", waiting),
    ];
    let samples = samples.map(|(name, sample)| (name, AssertSqlSafe(sample).into_sql_str()));
    let statements = sql::ALL.iter().map(|(name, statement)| (*name, (*statement).into_sql_str()));
    for (name, statement) in statements.chain(samples) {
        let Err(error) = connection.prepare(statement).await else { continue };
        // The server's refusal of this statement, or no server.
        return Err(match store_error(OPERATION, error) {
            error if matches!(error.kind(), StoreErrorKind::SchemaAltered | StoreErrorKind::NotMigrated) => {
                altered(&format!("the statement `{name}` does not fit them")).with_source(error)
            }
            error => error,
        });
    }
    Ok(())
}

/// Checks that the server has what is needed, and takes writes.
pub(crate) async fn server(
    connection: &mut MySqlConnection,
    operation: &'static str,
) -> Result<(), StoreError> {
    let failed = |error| store_error(operation, of_beginning(error));
    let row = sqlx::query("select version(), cast(@@global.read_only as char)")
        .persistent(false)
        .fetch_one(connection)
        .await
        .map_err(failed)?;
    let name: String = row.try_get_unchecked(0).map_err(failed)?;
    supported(&name).map_err(|words| StoreError::new(StoreErrorKind::Unsupported, operation, words))?;
    let read_only: String = row.try_get_unchecked(1).map_err(failed)?;
    if !is_writable(&read_only) {
        return Err(StoreError::new(
            StoreErrorKind::Unavailable,
            operation,
            format!(
                "the server is a replica or read-only (read_only is {read_only}); connect to the primary (read_only is off there)"
            ),
        ));
    }
    Ok(())
}

/// Returns true if a server with this `read_only` takes writes: a number on MySQL and older
/// MariaDBs, one of several words on MariaDB from 12.0.1 on.
fn is_writable(read_only: &str) -> bool {
    read_only == "0" || read_only.eq_ignore_ascii_case("off")
}

/// Checks that a server of this name and version has what is needed; the error is the remedy.
fn supported(name: &str) -> Result<(), String> {
    let (product, oldest) = if name.to_ascii_lowercase().contains("mariadb") {
        ("MariaDB", OLDEST_MARIADB)
    } else {
        ("MySQL", OLDEST_MYSQL)
    };
    let mut numbers = name
        .split(|c: char| !c.is_ascii_digit())
        .take(3)
        .map(|number| number.parse::<u32>().unwrap_or_default());
    let mut next = || numbers.next().unwrap_or_default();
    if (next(), next(), next()) < oldest {
        let (major, minor, patch) = oldest;
        return Err(format!(
            "the server is {product} {name}; upgrade it to {major}.{minor}.{patch} or later"
        ));
    }
    Ok(())
}

fn altered(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::SchemaAltered, OPERATION, format!("{ALTERED} ({what})"))
}

/// Returns the differences from the tables that the migrations made, in words.
async fn wrong_parts(connection: &mut MySqlConnection) -> Result<Vec<String>, sqlx::Error> {
    let mut wrong = Vec::new();
    let engines = sqlx::query(
        "select table_name, coalesce(engine, 'no engine') from information_schema.tables \
         where table_schema = database() and table_name like 'outbox\\_%' and table_type = 'BASE TABLE' and coalesce(engine, '') <> 'InnoDB'",
    );
    for row in engines.persistent(false).fetch_all(&mut *connection).await? {
        let (table, engine): (String, String) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
        wrong.push(format!("{table} uses the engine {engine}, which has no transactions; it needs InnoDB"));
    }
    let texts = sqlx::query(
        "select table_name, column_name, data_type from information_schema.columns \
         where table_schema = database() and table_name like 'outbox\\_%' and data_type <> 'varbinary' \
           and column_name in ('route', 'topic', 'key', 'order_key', 'consumer', 'role', 'name')",
    );
    for row in texts.persistent(false).fetch_all(&mut *connection).await? {
        let (table, column): (String, String) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
        let kind: String = row.try_get_unchecked(2)?;
        wrong.push(format!(
            "{table}.{column} has the type {kind}, which can treat two different keys as equal; it needs varbinary"
        ));
    }
    let found = sqlx::query(
        "select table_name, index_name, cast(group_concat(column_name order by seq_in_index) as char) from information_schema.statistics \
         where table_schema = database() and table_name like 'outbox\\_%' group by table_name, index_name",
    );
    let mut indexes = Vec::new();
    for row in found.persistent(false).fetch_all(&mut *connection).await? {
        let (table, index): (String, String) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
        indexes.push((table, index, row.try_get_unchecked::<String, _>(2)?));
    }
    for (table, index, columns) in INDEXES {
        let there = indexes
            .iter()
            .any(|(t, i, c)| (t.as_str(), i.as_str(), c.as_str()) == (*table, *index, *columns));
        if !there {
            wrong.push(format!("the index {index} of {table} is missing, or is not one of ({columns})"));
        }
    }
    if indexes.iter().any(|(table, ..)| table == "outbox_stripe") {
        let row = sqlx::query("select count(*) from outbox_stripe where route = x'64656661756c74'")
            .persistent(false)
            .fetch_one(connection)
            .await?;
        let stripes: i64 = row.try_get_unchecked(0)?;
        if stripes != i64::from(STRIPES) {
            wrong.push(format!("outbox_stripe has {stripes} rows of the route default; it needs {STRIPES}"));
        }
    }
    Ok(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_server_that_refuses_no_writes_is_writable() {
        for (read_only, writable) in [
            ("0", true),
            ("OFF", true),
            ("off", true),
            ("1", false),
            ("ON", false),
            ("NO_LOCK", false),
            ("NO_LOCK_NO_ADMIN", false),
            ("", false),
        ] {
            assert_eq!(is_writable(read_only), writable, "{read_only}");
        }
    }

    #[test]
    fn a_server_that_is_too_old_is_refused() {
        for name in [
            "8.0.16",
            "8.4.3",
            "9.7.4-2",
            "8.0.40-31",
            "10.6.0-MariaDB",
            "10.11.18-MariaDB-0+deb12u1-log",
            "12.0.1-MariaDB",
        ] {
            assert!(supported(name).is_ok(), "{name}");
        }
        for (name, needs) in [
            ("5.7.44-log", "8.0.16"),
            ("8.0.15", "8.0.16"),
            ("10.5.29-MariaDB", "10.6.0"),
            ("nonsense", "8.0.16"),
        ] {
            let refused = supported(name).unwrap_err();
            assert!(refused.contains(name) && refused.contains(needs), "{refused}");
        }
    }
}
