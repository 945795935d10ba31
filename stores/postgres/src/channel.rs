//! Name of the channel on which the programs of an outbox wake one another.

use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Row};

use crate::check::named;

/// Returns `outbox`, and in another schema than `public` `outbox_SCHEMA`. The schema is that of the
/// table, and not the one in the options: one program may name it where another one has it in its
/// `search_path`. The name is cut to the length that channels can have. One step: it works behind a
/// pooler.
pub(crate) async fn channel(
    connection: &mut PgConnection,
    schema: Option<&str>,
) -> Result<String, sqlx::Error> {
    // The name of a schema in the options has nothing to escape.
    let table = named(schema, "outbox_message");
    let statement = format!(
        "select case n.nspname when 'public' then 'outbox' else ('outbox_' || n.nspname)::name::text end
         from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass('{table}')"
    );
    sqlx::raw_sql(AssertSqlSafe(statement)).fetch_one(connection).await?.try_get(0)
}
