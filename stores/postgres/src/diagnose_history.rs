//! Examination of the partitions of the history: missing ones, those that are over, and a default
//! one that is too large for others to be made.

use std::time::Duration;

use outbox_contract::admin::Diagnosis;
use outbox_store_sql::History;
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::check::named;
use crate::error::code;

/// Examines the history. `kept`: its retention, if this program keeps one. `max_rest`: maximum size
/// of the default partition, in bytes.
pub(crate) async fn find(
    connection: &mut PgConnection,
    schema: Option<&str>,
    kept: Option<Duration>,
    max_rest: i64,
) -> Result<Vec<Diagnosis>, sqlx::Error> {
    let (table, rest) = (named(schema, "outbox_history"), named(schema, "outbox_history_rest"));
    let rows = sqlx::query(
        "select c.relname::text, split_part(c.relname, '_', 4)::bigint, pg_is_in_recovery() \
         from pg_inherits i join pg_class c on c.oid = i.inhrelid \
         where i.inhparent = to_regclass($1) and c.relname ~ '^outbox_history_\\d+_\\d+$' order by 2",
    )
    .persistent(false)
    .bind(&table)
    .fetch_all(&mut *connection)
    .await?;
    // The name holds seconds.
    let partition =
        |row| Ok::<_, sqlx::Error>((Row::try_get(row, 0)?, Row::try_get::<i64, _>(row, 1)? * 1_000_000));
    let partitions = rows.iter().map(partition).collect::<Result<_, _>>()?;
    let row = sqlx::query(
        "select (extract(epoch from clock_timestamp()) * 1000000)::bigint, pg_relation_size(to_regclass($1)), \
                (select pg_get_userbyid(relowner)::text from pg_class where oid = to_regclass($2)), pg_is_in_recovery()",
    )
    .persistent(false)
    .bind(&rest)
    .bind(&table)
    .fetch_one(&mut *connection)
    .await?;
    let (now, bytes, owner): (i64, i64, String) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let history = History { now, kept, partitions, rest: ends(connection, &rest).await? };
    let mut found = history.diagnoses(
        &format!("run a relay with `history` as role {owner}, which owns outbox_history; the log of a relay that can't make them says why"),
        &format!(
            "run a relay with `history` as role {owner}, and give it the partitions of other roles: alter table PARTITION owner to {owner}"
        ),
    );
    if bytes > max_rest {
        let kept = kept.map_or_else(|| "MICROSECONDS".to_owned(), |kept| kept.as_micros().to_string());
        found.push(Diagnosis::bloat(
            format!(
                "outbox_history_rest has {}: a relay makes no more partitions, as every delivery would wait while it is read",
                Diagnosis::size(bytes.unsigned_abs())
            ),
            format!("while no relay works: select outbox_turn_history({kept}, null)"),
        ));
    }
    Ok(found)
}

/// Returns the first and the last delivery in the default partition, if this role may read it.
async fn ends(connection: &mut PgConnection, rest: &str) -> Result<Option<(i64, i64)>, sqlx::Error> {
    let statement = format!("select min(delivered_at), max(delivered_at), pg_is_in_recovery() from {rest}");
    match sqlx::query(AssertSqlSafe(statement)).persistent(false).fetch_one(connection).await {
        Ok(row) => Ok(row.try_get::<Option<i64>, _>(0)?.zip(row.try_get(1)?)),
        Err(error) if code(&error).as_deref() == Some("42501") => Ok(None),
        Err(error) => Err(error),
    }
}
