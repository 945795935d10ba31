//! Examination of the server beneath the outbox: settings that weaken durability, free space
//! within the tables, and what holds back the purge of removed rows.
//!
//! InnoDB keeps removed rows until no transaction may still read them, and the purge has caught up.
//! Until then each fetch walks over them. Transactions of others and, on MySQL, the length of the
//! history are open to roles with PROCESS only; without it that is reported instead.

use std::time::Duration;

use outbox_contract::admin::{Diagnosis, DiagnosisKind};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Row};

use crate::error::{is_denied, number};

/// Values from which something is a finding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Age of a transaction that may read what was removed since.
    pub(crate) transaction: Duration,
    /// Transactions whose removed rows were not purged yet.
    pub(crate) history: u64,
    /// Free space within a table, in bytes, if it is more than its content.
    pub(crate) free: u64,
}

pub(crate) const LIMITS: Limits =
    Limits { transaction: Duration::from_secs(5 * 60), history: 1_000_000, free: 1 << 30 };

/// A statement of some session has bytes that are no text, and the server shows no session at all.
const NO_TEXT: u16 = 3854;

/// Figures that not every role may see, or not at any time.
enum Seen<T> {
    Yes(T),
    Denied,
    NotNow,
}

impl<T> Seen<T> {
    fn of(found: Result<T, sqlx::Error>) -> Result<Self, sqlx::Error> {
        match found {
            Ok(found) => Ok(Self::Yes(found)),
            Err(error) if is_denied(&error) => Ok(Self::Denied),
            Err(error) if number(&error) == Some(NO_TEXT) => Ok(Self::NotNow),
            Err(error) => Err(error),
        }
    }
}

/// Examines the server.
pub(crate) async fn find(
    connection: &mut MySqlConnection,
    limits: Limits,
) -> Result<Vec<Diagnosis>, sqlx::Error> {
    let mut found = settings(connection).await?;
    found.extend(free_space(connection, limits).await?);
    let mut hidden = Vec::new();
    match Seen::of(history(connection).await)? {
        Seen::Yes(length) => found.extend(of_history(length, limits)),
        Seen::Denied | Seen::NotNow => hidden.push("the length of the undo history"),
    }
    match Seen::of(oldest(connection, limits).await)? {
        Seen::Yes(oldest) => found.extend(oldest),
        Seen::Denied => hidden.push("the age of transactions"),
        Seen::NotNow => found.push(Diagnosis::unseen(
            "the server lists no transactions while a statement of some session has bytes that are no text",
            "repeat it later",
        )),
    }
    if !hidden.is_empty() {
        found.push(of_hidden(connection, &hidden).await?);
    }
    Ok(found)
}

/// Returns findings about settings.
async fn settings(connection: &mut MySqlConnection) -> Result<Vec<Diagnosis>, sqlx::Error> {
    let row = sqlx::query(
        "select cast(@@global.innodb_flush_log_at_trx_commit as char), cast(@@global.sync_binlog as char), cast(@@global.log_bin as char), \
                cast(@@global.innodb_doublewrite as char)",
    )
    .persistent(false)
    .fetch_one(connection)
    .await?;
    let [flush, sync, binlog, doublewrite] = [text(&row, 0)?, text(&row, 1)?, text(&row, 2)?, text(&row, 3)?];
    Ok(of_settings(&flush, &sync, &binlog, &doublewrite))
}

/// Judges settings by their values. Pure.
fn of_settings(flush: &str, sync: &str, binlog: &str, doublewrite: &str) -> Vec<Diagnosis> {
    let is_off = |value: &str| value == "0" || value.eq_ignore_ascii_case("off");
    let mut found = Vec::new();
    let mut add = |text: String, set: &str| {
        found.push(Diagnosis::new(
            DiagnosisKind::Durability,
            text,
            format!("set global {set}, and in my.cnf"),
        ));
    };
    // MariaDB knows 3, which is as durable.
    if !matches!(flush, "1" | "3") {
        add(
            format!(
                "innodb_flush_log_at_trx_commit is {flush}: a crash of the machine can lose messages of the last second that were committed"
            ),
            "innodb_flush_log_at_trx_commit = 1",
        );
    }
    if sync != "1" && !is_off(binlog) {
        add(
            format!(
                "sync_binlog is {sync}: after a crash of the machine, replicas can differ from this server"
            ),
            "sync_binlog = 1",
        );
    }
    if is_off(doublewrite) {
        found.push(Diagnosis::new(
            DiagnosisKind::Durability,
            format!("innodb_doublewrite is {doublewrite}: a crash of the machine can damage the tables"),
            "set innodb_doublewrite = on in my.cnf, unless the file system writes whole pages",
        ));
    }
    found
}

/// Returns findings about tables with more free space than content.
async fn free_space(connection: &mut MySqlConnection, limits: Limits) -> Result<Vec<Diagnosis>, sqlx::Error> {
    // MySQL shows figures of up to a day ago otherwise. MariaDB keeps none.
    sqlx::raw_sql("set @outbox_looks = 1 /*!80000 , session information_schema_stats_expiry = 0 */")
        .execute(&mut *connection)
        .await?;
    let rows = sqlx::query(
        "select table_name, cast(coalesce(data_length, 0) + coalesce(index_length, 0) as unsigned), cast(coalesce(data_free, 0) as unsigned), \
                cast(coalesce(table_rows, 0) as unsigned) \
         from information_schema.tables \
         where table_schema = database() and table_name like 'outbox\\_%' and table_type = 'BASE TABLE' and table_name <> 'outbox_history' \
         order by table_name",
    )
    .persistent(false)
    .fetch_all(connection)
    .await?;
    let tables = rows.iter().map(|row| {
        let (used, free) = (row.try_get_unchecked(1)?, row.try_get_unchecked(2)?);
        Ok(Table { name: text(row, 0)?, used, free, rows: row.try_get_unchecked(3)? })
    });
    Ok(of_tables(&tables.collect::<Result<Vec<_>, sqlx::Error>>()?, limits))
}

/// A table with its sizes in bytes. The server estimates its rows.
#[derive(Clone, Debug)]
struct Table {
    name: String,
    used: u64,
    free: u64,
    rows: u64,
}

/// Judges the sizes. Pure.
fn of_tables(tables: &[Table], limits: Limits) -> Vec<Diagnosis> {
    // Of tables in a shared file, each has all free space of it.
    let is_shared = |free: u64| tables.iter().filter(|table| table.free == free).count() > 1;
    let mut found = Vec::new();
    let mut shared = 0;
    for Table { name, used, free, rows } in tables.iter().filter(|table| table.free >= limits.free) {
        if is_shared(*free) {
            shared = *free;
        } else if free > used {
            let (free, used) = (Diagnosis::size(*free), Diagnosis::size(*used));
            found.push(Diagnosis::bloat(
                format!("{name} has {free} of free space beside {used} for about {rows} rows"),
                format!("the space is used again. To give it back: optimize table {name}, in quiet hours: it copies the table"),
            ));
        }
    }
    if shared > tables.iter().map(|table| table.used).sum() {
        found.push(Diagnosis::bloat(
            format!("the file that the tables share has {} of free space", Diagnosis::size(shared)),
            "the space is used again. Only a dump and a restore under innodb_file_per_table = on give it back",
        ));
    }
    found
}

/// Returns the number of transactions whose removed rows were not purged.
async fn history(connection: &mut MySqlConnection) -> Result<u64, sqlx::Error> {
    // MariaDB shows it to every role, under this name.
    let status = sqlx::raw_sql("show global status like 'Innodb_history_list_length'");
    if let Some(row) = status.fetch_optional(&mut *connection).await? {
        return Ok(text(&row, 1)?.parse().unwrap_or_default());
    }
    let metric = "select cast(count as signed) from information_schema.innodb_metrics where name = 'trx_rseg_history_len'";
    let row = sqlx::query(metric).persistent(false).fetch_one(connection).await?;
    Ok(u64::try_from(row.try_get_unchecked::<i64, _>(0)?).unwrap_or_default())
}

fn of_history(length: u64, limits: Limits) -> Option<Diagnosis> {
    (length >= limits.history).then(|| {
        Diagnosis::cleanup(
            format!(
                "removed rows of {length} transactions were not purged: each fetch walks over those of the outbox"
            ),
            "end the oldest transaction; if there is none, raise innodb_purge_threads, or write less at once",
        )
    })
}

/// Returns the finding about the oldest transaction whose snapshot holds back the purge. Under READ
/// COMMITTED there is none between two statements.
async fn oldest(connection: &mut MySqlConnection, limits: Limits) -> Result<Option<Diagnosis>, sqlx::Error> {
    // The server shows the beginning in the time zone of its system, whatever the session's is.
    const AGE: &str = "timestampdiff(second, t.trx_started, convert_tz(utc_timestamp(), '+00:00', 'SYSTEM'))";
    let statement = format!(
        "select cast(t.trx_mysql_thread_id as unsigned), coalesce(p.user, ''), coalesce(p.command, ''), cast({AGE} as signed), \
                cast(t.trx_state as char) \
         from information_schema.innodb_trx t left join information_schema.processlist p on p.id = t.trx_mysql_thread_id \
         where t.trx_isolation_level in ('REPEATABLE READ', 'SERIALIZABLE') and t.trx_mysql_thread_id <> connection_id() \
           and {AGE} >= {limit} \
         order by t.trx_started limit 1",
        limit = limits.transaction.as_secs(),
    );
    let row = sqlx::query(AssertSqlSafe(statement)).persistent(false).fetch_optional(connection).await?;
    let Some(row) = row else { return Ok(None) };
    let (session, seconds): (u64, i64) = (row.try_get_unchecked(0)?, row.try_get_unchecked(3)?);
    let (user, command) = (text(&row, 1)?, text(&row, 2)?);
    let keeps = "rows that were removed since its first read are kept, in all tables";
    let age = Diagnosis::age(seconds.unsigned_abs());
    if session == 0 {
        return Ok(Some(Diagnosis::cleanup(
            format!("a prepared XA transaction has been open for {age}: {keeps}"),
            "ask its transaction manager; then xa recover, and xa commit or xa rollback",
        )));
    }
    Ok(Some(Diagnosis::cleanup(
        format!("session {session} (user {user}, {command}) has had a transaction open for {age}: {keeps}"),
        format!("end it: kill {session}; wait_timeout ends sessions that forget theirs"),
    )))
}

async fn of_hidden(connection: &mut MySqlConnection, hidden: &[&str]) -> Result<Diagnosis, sqlx::Error> {
    let row = sqlx::query("select current_user()").persistent(false).fetch_one(connection).await?;
    let user = text(&row, 0)?;
    let account = user.rsplit_once('@').map_or_else(
        || user.clone(),
        |(name, host)| format!("'{}'@'{}'", name.replace('\'', "''"), host.replace('\'', "''")),
    );
    Ok(Diagnosis::unseen(
        format!("hidden from {account}, which lacks the privilege PROCESS: {}", hidden.join(", ")),
        format!("grant process on *.* to {account}, or look as a user that has it"),
    ))
}

fn text(row: &MySqlRow, column: usize) -> Result<String, sqlx::Error> {
    row.try_get_unchecked(column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_lose_commits_are_found() {
        let found = |flush, sync, binlog, doublewrite| {
            let found = of_settings(flush, sync, binlog, doublewrite);
            found.into_iter().map(|it| it.text).collect::<Vec<_>>().join("; ")
        };
        for sound in [("1", "1", "1", "1"), ("1", "0", "0", "ON"), ("3", "1", "ON", "DETECT_AND_RECOVER")] {
            assert_eq!(found(sound.0, sound.1, sound.2, sound.3), "", "{sound:?}");
        }
        assert!(found("2", "1", "1", "ON").contains("innodb_flush_log_at_trx_commit is 2"));
        assert!(found("1", "0", "1", "ON").contains("sync_binlog is 0"));
        assert!(found("1", "1", "1", "OFF").contains("innodb_doublewrite is OFF"));
    }

    #[test]
    fn free_space_of_a_shared_file_is_told_once() {
        let limits = Limits { free: 100, ..LIMITS };
        let table = |name: &str, used, free| Table { name: name.to_owned(), used, free, rows: 7 };
        let count = |tables: &[Table]| of_tables(tables, limits).len();
        assert_eq!(count(&[table("a", 10, 200), table("b", 10, 200), table("c", 10, 0)]), 1);
        assert_eq!(count(&[table("a", 10, 200), table("b", 10, 201), table("c", 500, 400)]), 2);
        assert_eq!(count(&[table("a", 10, 99), table("b", 300, 200), table("c", 10, 200)]), 0);
    }
}
