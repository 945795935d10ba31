//! Settings of the server, the database or the role under which an outbox can't work, reported by
//! their names.

use sqlx::Row;
use sqlx::postgres::PgConnection;

/// Returns the problem with the settings, as text. None: there is none.
pub(crate) async fn problem(connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    // The store's own connections override some of them: those of the pool use the reset values.
    let rows = sqlx::query(
        "select name, reset_val, source from pg_settings where name in ('default_transaction_read_only', 'standard_conforming_strings')",
    )
    .persistent(false)
    .fetch_all(connection)
    .await?;
    for row in rows {
        let (name, value, source): (&str, &str, &str) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        match (name, value) {
            ("default_transaction_read_only", "on") => {
                return Ok(Some(format!(
                    "default_transaction_read_only is on (set by: {source}), so nothing can be written; reset it for the role (alter role ... reset \
                     default_transaction_read_only), the database or the server, or connect to the server that takes writes"
                )));
            }
            ("standard_conforming_strings", "off") => {
                return Ok(Some(
                    "standard_conforming_strings is off, and the functions of the outbox would read their texts wrongly; reset it for the role (alter \
                     role ... reset standard_conforming_strings), the database or the server"
                        .to_owned(),
                ));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Returns the schema of an outbox's tables that the search path does not find. None: there are
/// none.
pub(crate) async fn elsewhere(connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    let row = sqlx::query(
        "select string_agg(n.nspname, ', ' order by n.nspname), current_setting('search_path') from pg_class c \
         join pg_namespace n on n.oid = c.relnamespace where c.relname = 'outbox_schema' and c.relkind = 'r'",
    )
    .persistent(false)
    .fetch_one(connection)
    .await?;
    let (schemas, path): (Option<String>, String) = (row.try_get(0)?, row.try_get(1)?);
    Ok(schemas.map(|schemas| {
        format!(
            "no outbox is found by the search_path, which is {path}, but tables of one are in the schema {schemas}: name it in PostgresOptions, or correct \
             the search_path of the role (alter role ... set search_path) or of the connect options"
        )
    }))
}
