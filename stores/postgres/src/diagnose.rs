//! Examination of the server beneath the outbox: settings that weaken durability, dead rows and
//! oversized files, and what holds back their cleaning.
//!
//! A relay deletes what it has delivered, so these tables live from autovacuum. Where it is off,
//! behind or held back, each fetch walks over more dead rows, and nothing else reports it.
//!
//! Everything here is open to every role, except the sessions of other roles: their transactions
//! are hidden without `pg_read_all_stats`, which is reported instead.

use std::time::Duration;

use outbox_contract::admin::{Diagnosis, DiagnosisKind};
use sqlx::Row;
use sqlx::postgres::{PgConnection, PgRow};

use crate::check::named;

/// Tables that lose rows in operation. Partitions of the history are dropped whole.
const TABLES: &[&str] = &[
    "outbox_message",
    "outbox_key",
    "outbox_parked",
    "outbox_dead",
    "outbox_history_rest",
    "outbox_scheduled",
    "outbox_lease",
    "outbox_relay",
    "outbox_role",
    "outbox_audit",
    "outbox_handled",
];

/// Values from which something is a finding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Age of a transaction, open or prepared.
    pub(crate) transaction: Duration,
    /// Age of a replication slot's snapshot, in transactions. An unused slot has no limit.
    pub(crate) slot: i64,
    /// Dead rows, as a multiple of the number at which autovacuum begins.
    pub(crate) overdue: i64,
    /// Time since the last vacuum that is not long, however many rows died: under load more die
    /// in a minute than autovacuum waits for.
    pub(crate) vacuumed: Duration,
    /// Size from which a file may be too large for its rows.
    pub(crate) file: i64,
}

pub(crate) const LIMITS: Limits = Limits {
    transaction: Duration::from_secs(5 * 60),
    slot: 1_000_000,
    overdue: 4,
    vacuumed: Duration::from_secs(10 * 60),
    file: 1 << 30,
};

/// Maximum size of a row in a table or of a chunk beside it: larger values are in chunks.
const ROW: i64 = 2_100;
/// Size of an entry of an index that no usual names exceed.
const ENTRY: i64 = 300;
/// Size of a file that is too large, as a multiple of its rows at their maximum size.
const OVERSIZED: i64 = 4;

/// A table with its counts, as the server keeps them. Tables of long values have a row of their own.
#[derive(Clone, Debug, Default)]
struct Table {
    name: String,
    is_toast: bool,
    live: i64,
    dead: i64,
    /// Number of dead rows at which autovacuum begins.
    threshold: i64,
    autovacuum: bool,
    /// Seconds since it was vacuumed. None: never, as far as the server remembers.
    vacuumed: Option<i64>,
    bytes: i64,
    /// Size of its largest index, with the name.
    index: Option<(String, i64)>,
}

/// Examines the server.
pub(crate) async fn find(
    connection: &mut PgConnection,
    schema: Option<&str>,
    limits: Limits,
) -> Result<Vec<Diagnosis>, sqlx::Error> {
    let (mut found, autovacuum) = settings(connection).await?;
    let tables = tables(connection, schema).await?;
    for table in &tables {
        found.extend(table.diagnoses(limits, autovacuum));
    }
    let dead = tables.iter().map(|table| table.dead).sum();
    found.extend(transactions(connection, limits, dead).await?);
    found.extend(prepared(connection, limits).await?);
    found.extend(slots(connection, limits).await?);
    found.extend(hidden_sessions(connection).await?);
    Ok(found)
}

/// Returns findings about settings, and whether autovacuum is on.
async fn settings(connection: &mut PgConnection) -> Result<(Vec<Diagnosis>, bool), sqlx::Error> {
    // The store's own connections override some of them: those of the pool use the reset values.
    let rows = sqlx::query(
        "select name, reset_val, pg_is_in_recovery() from pg_settings \
         where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts') and reset_val = 'off' order by name",
    )
    .persistent(false)
    .fetch_all(connection)
    .await?;
    let (mut found, mut autovacuum) = (Vec::new(), true);
    for row in rows {
        let name: &str = row.try_get(0)?;
        let (effect, remedy) = match name {
            "fsync" | "full_page_writes" => (
                "a crash of the machine or the operating system can lose messages and damage the tables",
                format!("set {name} = on in postgresql.conf, unless the data may be lost"),
            ),
            "synchronous_commit" => (
                "a crash of the server can lose messages that were committed just before",
                "set synchronous_commit = on for the role or the database, or postgresql.conf".to_owned(),
            ),
            _ => {
                autovacuum = false;
                let effect = "dead rows are never removed, and a relay reads over more of them each day";
                found.push(Diagnosis::bloat(
                    format!("{name} is off: {effect}"),
                    format!("set {name} = on in postgresql.conf, and reload it"),
                ));
                continue;
            }
        };
        let text = format!("{name} is off: {effect}");
        found.push(Diagnosis::new(DiagnosisKind::Durability, text, remedy));
    }
    Ok((found, autovacuum))
}

/// Reads the counts of the tables, and of the tables of their long values.
async fn tables(connection: &mut PgConnection, schema: Option<&str>) -> Result<Vec<Table>, sqlx::Error> {
    let names: Vec<String> = TABLES.iter().map(|name| named(schema, name)).collect();
    let rows = sqlx::query(
        "with parts as ( \
            select c.oid, c.relname, c.oid as part, false as is_toast from pg_class c where c.oid = any (select to_regclass(n) from unnest($1::text[]) n) \
            union all \
            select c.oid, c.relname, c.reltoastrelid, true from pg_class c \
            where c.reltoastrelid <> 0 and c.oid = any (select to_regclass(n) from unnest($1::text[]) n)) \
         select p.relname::text, p.is_toast, greatest(coalesce(s.n_live_tup, 0), c.reltuples::bigint), coalesce(s.n_dead_tup, 0), \
                (coalesce(o.threshold::bigint, current_setting('autovacuum_vacuum_threshold')::bigint) \
                 + coalesce(o.scale::float8, current_setting('autovacuum_vacuum_scale_factor')::float8) * greatest(c.reltuples, 0))::bigint, \
                coalesce(o.enabled::boolean, true), \
                extract(epoch from now() - greatest(s.last_autovacuum, s.last_vacuum))::bigint, \
                pg_relation_size(p.part), i.name, i.bytes, pg_is_in_recovery() \
         from parts p \
         join pg_class c on c.oid = p.part \
         left join pg_stat_all_tables s on s.relid = p.part \
         cross join lateral ( \
            select max(option_value) filter (where option_name = 'autovacuum_enabled') as enabled, \
                   max(option_value) filter (where option_name = 'autovacuum_vacuum_threshold') as threshold, \
                   max(option_value) filter (where option_name = 'autovacuum_vacuum_scale_factor') as scale \
            from pg_options_to_table(c.reloptions)) o \
         left join lateral ( \
            select n.relname::text as name, pg_relation_size(n.oid) as bytes from pg_index x join pg_class n on n.oid = x.indexrelid \
            where x.indrelid = p.part order by 2 desc limit 1) i on true \
         order by p.is_toast, p.relname",
    )
    .persistent(false)
    .bind(names)
    .fetch_all(connection)
    .await?;
    rows.iter().map(Table::read).collect()
}

impl Table {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        let name: Option<String> = row.try_get(8)?;
        Ok(Self {
            name: row.try_get(0)?,
            is_toast: row.try_get(1)?,
            live: row.try_get::<i64, _>(2)?.max(0),
            dead: row.try_get(3)?,
            threshold: row.try_get(4)?,
            autovacuum: row.try_get(5)?,
            vacuumed: row.try_get(6)?,
            bytes: row.try_get(7)?,
            index: name.zip(row.try_get::<Option<i64>, _>(9)?),
        })
    }

    /// Returns the name for people.
    fn label(&self) -> String {
        let Self { name, is_toast, .. } = self;
        if *is_toast { format!("{name} (long values)") } else { name.clone() }
    }

    /// Judges the counts. Pure.
    fn diagnoses(&self, limits: Limits, autovacuum: bool) -> Vec<Diagnosis> {
        let Self { name, live, dead, .. } = self;
        let label = self.label();
        let mut found = Vec::new();
        if !self.autovacuum && !self.is_toast {
            found.push(Diagnosis::bloat(
                format!("autovacuum is off for {name}, which has {dead} dead rows beside {live}"),
                format!("alter table {name} reset (autovacuum_enabled), then vacuum {name}"),
            ));
        } else if autovacuum && self.is_overdue(limits) {
            let last = self.vacuumed.map_or_else(
                || "it was never vacuumed, as far as the server remembers".to_owned(),
                |seconds| format!("it was last vacuumed {} ago", age(seconds)),
            );
            found.push(Diagnosis::bloat(
                format!("{label} has {dead} dead rows beside {live}; {last}"),
                format!(
                    "vacuum {name}; autovacuum is behind: look for its errors in the server's log, then raise autovacuum_max_workers"
                ),
            ));
        }
        let is_oversized =
            |bytes: i64, row: i64| bytes >= limits.file && live.saturating_mul(row * OVERSIZED) < bytes;
        if is_oversized(self.bytes, ROW) {
            found.push(Diagnosis::bloat(
                format!("{label} takes {} for {live} rows", size(self.bytes)),
                format!(
                    "the space is used again. To give it back: vacuum full {name}, while no relay runs and nothing is appended"
                ),
            ));
        }
        if let Some((index, bytes)) = self.index.as_ref().filter(|(_, bytes)| is_oversized(*bytes, ENTRY)) {
            let remedy = if self.is_toast {
                format!("reindex table concurrently {name}, in quiet hours")
            } else {
                format!("reindex index concurrently {index}, in quiet hours")
            };
            found.push(Diagnosis::bloat(
                format!("the index {index} of {label} takes {} for {live} rows", size(*bytes)),
                remedy,
            ));
        }
        found
    }

    fn is_overdue(&self, limits: Limits) -> bool {
        let long = i64::try_from(limits.vacuumed.as_secs()).unwrap_or(i64::MAX);
        self.dead > self.live
            && self.dead > self.threshold.saturating_mul(limits.overdue)
            && self.vacuumed.is_none_or(|seconds| seconds > long)
    }
}

/// Returns the finding about the oldest transaction of this database that holds back vacuum.
async fn transactions(
    connection: &mut PgConnection,
    limits: Limits,
    dead: i64,
) -> Result<Option<Diagnosis>, sqlx::Error> {
    let row = sqlx::query(
        "select a.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''), coalesce(a.state, a.backend_type, ''), \
                extract(epoch from clock_timestamp() - a.xact_start)::bigint, count(*) over (), pg_is_in_recovery() \
         from pg_stat_activity a \
         where a.datname = current_database() and a.pid <> pg_backend_pid() and a.backend_type is distinct from 'autovacuum worker' \
           and (a.backend_xid is not null or a.backend_xmin is not null) and a.xact_start < clock_timestamp() - make_interval(secs => $1) \
         order by a.xact_start limit 1",
    )
    .persistent(false)
    .bind(limits.transaction.as_secs_f64())
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let (pid, role, program): (i32, String, String) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let (state, seconds, count): (String, i64, i64) = (row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
    let program = if program.is_empty() { String::new() } else { format!(", application {program}") };
    let others = if count > 1 { format!(" ({} more are long, too)", count - 1) } else { String::new() };
    Ok(Some(Diagnosis::cleanup(
        format!(
            "session {pid} (role {role}{program}, {state}) has had a transaction open for {}{others}: vacuum keeps every row that was \
             deleted since, in all tables; the outbox has {dead} dead rows",
            age(seconds)
        ),
        format!(
            "end it: select pg_terminate_backend({pid}); idle_in_transaction_session_timeout ends sessions that forget theirs"
        ),
    )))
}

/// Returns the finding about the oldest prepared transaction.
async fn prepared(connection: &mut PgConnection, limits: Limits) -> Result<Option<Diagnosis>, sqlx::Error> {
    let row = sqlx::query(
        "select gid, owner::text, extract(epoch from clock_timestamp() - prepared)::bigint, pg_is_in_recovery() from pg_prepared_xacts \
         where database = current_database() and prepared < clock_timestamp() - make_interval(secs => $1) order by prepared limit 1",
    )
    .persistent(false)
    .bind(limits.transaction.as_secs_f64())
    .fetch_optional(connection)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let (gid, owner, seconds): (String, String, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    let quoted = gid.replace('\'', "''");
    Ok(Some(Diagnosis::cleanup(
        format!(
            "a transaction of {owner} has been prepared for {} and neither committed nor rolled back: {gid}; vacuum keeps every row \
             that was deleted since",
            age(seconds)
        ),
        format!(
            "ask its transaction manager; then commit prepared '{quoted}' or rollback prepared '{quoted}'"
        ),
    )))
}

/// Returns findings about replication slots whose standby is gone, or far behind.
async fn slots(connection: &mut PgConnection, limits: Limits) -> Result<Vec<Diagnosis>, sqlx::Error> {
    let rows = sqlx::query(
        "select slot_name::text, active, age(xmin)::bigint, pg_is_in_recovery() from pg_replication_slots \
         where xmin is not null and (not active or age(xmin) > $1) order by 3 desc limit 10",
    )
    .persistent(false)
    .bind(limits.slot)
    .fetch_all(connection)
    .await?;
    rows.iter()
        .map(|row| {
            let (name, active, age): (String, bool, i64) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let state = if active { "in use" } else { "unused" };
            let text = format!(
                "the replication slot {name} ({state}) holds a snapshot that is {age} transactions old: vacuum keeps every row that was \
                 deleted since"
            );
            let remedy = if active {
                "end long queries on its standby, or set hot_standby_feedback = off there".to_owned()
            } else {
                format!("start its standby again; if that is gone: select pg_drop_replication_slot('{name}')")
            };
            Ok(Diagnosis::cleanup(text, remedy))
        })
        .collect()
}

/// Returns the finding that transactions of other roles are hidden from this one.
async fn hidden_sessions(connection: &mut PgConnection) -> Result<Option<Diagnosis>, sqlx::Error> {
    let row = sqlx::query(
        "select count(*), current_user::text, pg_is_in_recovery() from pg_stat_activity a \
         where a.datname = current_database() and a.usesysid is not null \
           and not pg_has_role('pg_read_all_stats', 'usage') and not pg_has_role(a.usesysid, 'usage')",
    )
    .persistent(false)
    .fetch_one(connection)
    .await?;
    let (hidden, role): (i64, String) = (row.try_get(0)?, row.try_get(1)?);
    Ok((hidden > 0).then(|| {
        Diagnosis::unseen(
            format!("the age of transactions in {hidden} sessions of other roles is hidden from {role}"),
            format!("grant pg_read_all_stats to {role}, or look as a role that has it"),
        )
    }))
}

fn size(bytes: i64) -> String {
    Diagnosis::size(bytes.unsigned_abs())
}

fn age(seconds: i64) -> String {
    Diagnosis::age(seconds.unsigned_abs())
}
