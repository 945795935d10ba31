//! Every statement, by name: the files of `queries/`, with the schema of this outbox.
//!
//! One list, so that `check` can have the server parse all of them: a statement that parses has the
//! tables, columns and functions it needs.

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, Postgres, SqlSafeStr, SqlStr};

macro_rules! statements {
    ($($name:ident)*) => {
        /// The statements of an outbox.
        pub(crate) struct Statements {
            /// True if they stay prepared on their connection.
            persistent: bool,
            $(pub(crate) $name: SqlStr,)*
        }

        impl Statements {
            /// Returns the statements for an outbox in a schema; without one, for the outbox that
            /// the `search_path` finds.
            pub(crate) fn of(schema: Option<&str>, persistent: bool) -> Self {
                Self {
                    persistent,
                    $($name: qualified(include_str!(concat!("queries/", stringify!($name), ".sql")), schema),)*
                }
            }

            /// Returns every statement, with the name of its file.
            pub(crate) fn all(&self) -> Vec<(&'static str, &SqlStr)> {
                vec![$((stringify!($name), &self.$name)),*]
            }
        }
    };
}

statements! {
    audit
    deduplicate
    deduplicate_first
    deduplicate_one
    deduplicate_single
    is_handled
    append_many
    append_one
    backlog
    below
    browse_dead
    browse_history
    browse_keys
    browse_parked
    browse_scheduled
    browse_waiting
    cancel_scheduled
    content
    discard
    transition
    due_keys
    due_messages
    edit_choose
    edit_requeue
    elect
    fence
    fetch
    give_back
    handled_count
    handled_forget
    hold
    identity
    identity_first
    identity_renew
    lease
    lease_routes
    maintain
    maintain_audit
    ownership
    routes
    topics
    pause
    purge
    record_retention
    release
    replay
    requeue
    schedule
    settle
    settle_history
    skip
    turn_history
    unpause
    unserved
    writers
}

impl Statements {
    /// Returns true if they reach the server through a pooler with another connection for each
    /// transaction.
    pub(crate) fn is_pooled(&self) -> bool {
        !self.persistent
    }

    /// Returns one of these statements, to bind and run.
    pub(crate) fn query<'q>(&self, statement: &SqlStr) -> Query<'q, Postgres, PgArguments> {
        sqlx::query(statement.clone()).persistent(self.persistent)
    }
}

/// Returns a list from its other end.
pub(crate) fn newest_first(list: &SqlStr) -> SqlStr {
    AssertSqlSafe(outbox_store_sql::statements::newest_first(list.as_str())).into_sql_str()
}

/// Prefix of the names of everything in an outbox.
const PREFIX: &str = "outbox_";

/// Puts the schema before every name of the outbox in a statement. A schema is a plain name, and so
/// are these: nothing has to be escaped.
fn qualified(statement: &'static str, schema: Option<&str>) -> SqlStr {
    let Some(schema) = schema else { return statement.into_sql_str() };
    let mut text = String::with_capacity(statement.len() + 256);
    let mut rest = statement;
    while let Some(at) = rest.find(PREFIX) {
        let (before, from) = rest.split_at(at);
        text.push_str(before);
        let inside_a_name = before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        if !inside_a_name {
            text.push('"');
            text.push_str(schema);
            text.push_str("\".");
        }
        text.push_str(PREFIX);
        rest = &from[PREFIX.len()..];
    }
    text.push_str(rest);
    AssertSqlSafe(text).into_sql_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_queries_is_a_statement_and_says_what_it_is() {
        let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/queries");
        let mut files: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let statements = Statements::of(None, true);
        let mut named: Vec<String> = statements.all().iter().map(|(name, _)| format!("{name}.sql")).collect();
        named.sort();
        assert_eq!(files, named);
        for (name, sql) in statements.all() {
            assert!(sql.as_str().starts_with("-- "), "{name}");
        }
    }

    /// A pooler that spreads reads (Pgpool) sends a statement to the primary if it writes or calls
    /// a volatile function. One in a part of the statement that nothing reads from is not run.
    #[test]
    fn a_statement_that_writes_nothing_calls_a_volatile_function() {
        const WRITES: [&str; 2] = ["insert into", "delete from"];
        const VOLATILE: [&str; 7] =
            ["now", "note", "heartbeat", "give_back", "maintain", "turn_history", "transition"];
        for (name, sql) in Statements::of(None, true).all() {
            let text: String = sql.as_str().lines().filter(|line| !line.starts_with("--")).collect();
            let writes = WRITES.iter().any(|write| text.contains(write));
            let calls = VOLATILE.iter().any(|function| text.contains(&format!("outbox_{function}(")));
            assert!(writes || calls, "{name} may be answered by a standby");
        }
    }

    #[test]
    fn a_schema_stands_before_every_name_of_ours() {
        let statement =
            "select nextval('outbox_message_position'), outbox_now() from outbox_key k, my_outbox_key";
        assert_eq!(
            qualified(statement, Some("shop")).as_str(),
            "select nextval('\"shop\".outbox_message_position'), \"shop\".outbox_now() from \"shop\".outbox_key k, my_outbox_key"
        );
        assert_eq!(qualified(statement, None).as_str(), statement);
    }
}
