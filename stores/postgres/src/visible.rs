//! Check that this role sees every row, and has a relay's permissions.
//!
//! A row that is hidden from a relay waits forever without notice; one that it may not delete is
//! delivered repeatedly.

use sqlx::Row;
use sqlx::postgres::PgConnection;

use crate::check::named;

/// Privileges that a relay needs on each table and sequence. A message that is due moves to
/// `outbox_message`, and each step of a failing key takes a version.
const NEEDED: &[(&str, &str)] = &[
    ("outbox_message", "select,insert,delete"),
    ("outbox_key", "select,insert,update,delete"),
    ("outbox_parked", "select,insert,delete"),
    ("outbox_dead", "select,insert"),
    ("outbox_scheduled", "select,delete"),
    ("outbox_lease", "select,insert,update"),
    ("outbox_relay", "select,insert,update,delete"),
    ("outbox_role", "select,insert,update"),
    ("outbox_pause", "select,insert"),
    ("outbox_identity", "select,insert"),
    ("outbox_audit", "select,insert,delete"),
    ("outbox_handled", "select,delete"),
    ("outbox_retention", "select,insert,update"),
    ("outbox_history", "select,insert"),
    ("outbox_message_position", "select,usage"),
    ("outbox_key_version", "usage"),
];

/// Further privileges of a relay that keeps a history: each settlement takes numbers. It removes
/// rows of the default partition by its own name, and privileges on the whole history do not cover
/// that.
const NEEDED_FOR_HISTORY: &[(&str, &str)] =
    &[("outbox_history_rest", "select,delete"), ("outbox_history_number", "usage")];

/// Returns the reasons why this role can't see or change a relay's rows, as text; empty if there
/// are none.
pub(crate) async fn hindrances(
    connection: &mut PgConnection,
    schema: Option<&str>,
    keeps_history: bool,
) -> Result<Vec<String>, sqlx::Error> {
    let for_history = if keeps_history { NEEDED_FOR_HISTORY } else { &[] };
    let needed = NEEDED.iter().chain(for_history);
    let (names, privileges): (Vec<String>, Vec<&str>) =
        needed.map(|(name, privileges)| (named(schema, name), *privileges)).unzip();
    // A missing table is reported elsewhere. The next value of a sequence needs one of two privileges.
    let rows = sqlx::query(
        "select n.name, c.relkind::text, row_security_active(c.oid), \
                array(select p from unnest(string_to_array(n.privileges, ',')) p \
                      where not case when p <> 'usage' then has_table_privilege(c.oid, p) \
                                     when c.relkind = 'S' then has_sequence_privilege(c.oid, 'usage, update') \
                                     else true end) \
         from unnest($1::text[], $2::text[]) n(name, privileges) join pg_class c on c.oid = to_regclass(n.name)",
    )
    .persistent(false)
    .bind(names)
    .bind(privileges)
    .fetch_all(connection)
    .await?;
    let mut found = Vec::new();
    for row in rows {
        let (name, kind, policies, missing): (String, String, bool, Vec<String>) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
        if !matches!(kind.as_str(), "r" | "p" | "S") {
            found.push(format!(
                "{name} is a view or a foreign table, which may hide rows; use the table itself"
            ));
        }
        if policies {
            found.push(format!(
                "row-level security is in force on {name} for this role, which may hide rows from it: disable it there, or use a role that owns the \
                 table or has BYPASSRLS"
            ));
        }
        if !missing.is_empty() {
            let missing = missing.join(", ");
            found.push(if kind == "S" {
                let sequence = format!("sequence {name}");
                format!("this role lacks {missing} on {sequence}: grant {missing} on {sequence} to it")
            } else {
                format!("this role may not {missing} on {name}: grant {missing} on {name} to it")
            });
        }
    }
    Ok(found)
}

/// Partitions of the history that this role could not drop when their time is over, each with its
/// owner; none where it does not own the history itself: then it makes and drops none.
pub(crate) async fn partitions_of_others(
    connection: &mut PgConnection,
    schema: Option<&str>,
) -> Result<Vec<String>, sqlx::Error> {
    let rows = sqlx::query(
        "select c.oid::regclass::text, pg_get_userbyid(c.relowner)::text
         from pg_class h join pg_inherits i on i.inhparent = h.oid join pg_class c on c.oid = i.inhrelid
         where h.oid = to_regclass($1) and pg_has_role(h.relowner, 'usage') and not pg_has_role(c.relowner, 'usage')
         order by 1",
    )
    .persistent(false)
    .bind(named(schema, "outbox_history"))
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| Ok(format!("{} of {}", row.try_get::<String, _>(0)?, row.try_get::<String, _>(1)?)))
        .collect()
}
