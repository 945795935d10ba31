//! Conversion of PostgreSQL errors to errors that a caller can act on.

use std::io;

use outbox_contract::{StoreError, StoreErrorKind};
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use StoreErrorKind as Kind;

/// The remedy for missing tables.
pub(crate) const NOT_MIGRATED: &str = "the tables of the outbox do not exist, or are older than this version; call `migrate` on the store, \
     and check the schema that is configured and the search_path of the role";

/// The remedy for altered tables.
pub(crate) const ALTERED: &str =
    "the tables of the outbox differ from those of the migrations; undo the change, or restore them";

/// Returns the SQLSTATE of an error, if it is the server's.
pub(crate) fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

/// Error if a standby has answered: it may lag behind, and knows of no writer. The connection is
/// not used again.
pub(crate) fn answered_by_a_standby() -> sqlx::Error {
    sqlx::Error::Protocol(
        "a standby answered a statement of the relay; connect to the primary; behind Pgpool, add outbox_.*,pg_is_in_recovery to \
             write_function_list, or set load_balance_mode = off"
            .to_owned(),
    )
}

/// Text for an answer of another life of the database than the one in which the leases were
/// renewed: it may lack commits, and positions come back for other messages.
pub(crate) const ANOTHER_LIFE: &str = "the server was started again, has ended the session of heartbeats, or another one answers (failover); what was read before is read again";

/// Error if another life of the database answers behind a pooler.
pub(crate) fn answered_in_another_life() -> sqlx::Error {
    sqlx::Error::Protocol(ANOTHER_LIFE.to_owned())
}

/// Error if a row that one statement shows repeatedly has no content in the next one.
pub(crate) fn content_is_hidden(position: i64) -> sqlx::Error {
    sqlx::Error::Protocol(format!(
        "the content of the message at position {position} can't be read, though its row is there; a pooler may send reads to a standby that lags \
         (Pgpool: load_balance_mode = off), or a policy hides rows from this role. The message and those behind it wait"
    ))
}

/// Converts an error in one of the store's statements.
pub(crate) fn store_error(operation: &'static str, error: sqlx::Error) -> StoreError {
    let (kind, words) = meaning(&error);
    StoreError::new(kind, operation, words).with_source(error)
}

/// Returns true if a code reports that a deadlock, a serialization conflict or a lock timeout has
/// ended its transaction.
pub(crate) fn is_conflict_code(code: &str) -> bool {
    meaning_of(code).0 == Kind::Conflict
}

/// Returns true if a connection remains usable after an error.
pub(crate) fn is_sound(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            let ended = error
                .try_downcast_ref::<PgDatabaseError>()
                .is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic));
            // A statement that was prepared for other tables, or on another connection: a new one
            // prepares it again.
            !ended && !matches!(error.code().as_deref(), Some("0A000" | "26000" | "42P05"))
        }
        sqlx::Error::RowNotFound
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::Decode(_)
        | sqlx::Error::Encode(_) => true,
        _ => false,
    }
}

/// Returns true if an error reports that a connection leads to a server that takes no writes (any
/// more).
pub(crate) fn takes_no_writes(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Protocol(_)) || code(error).is_some_and(|code| code == "25006")
}

/// Returns true if the server has ended a session because it was idle: the next statement did not
/// run.
pub(crate) fn idled_out(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| code == "57P05")
}

/// Returns true if a commit with this error certainly did not happen: the error reports the
/// transaction's own work, before it commits. Errors that end a session or cancel a statement may
/// occur after the commit.
pub(crate) fn is_surely_not_committed(error: &sqlx::Error) -> bool {
    // Data, constraints, transaction state, rollbacks, access, locks, errors raised by a deferred
    // trigger.
    const BEFORE: [&str; 7] = ["22", "23", "25", "40", "42", "55", "P0"];
    is_sound(error) && code(error).is_some_and(|code| BEFORE.iter().any(|class| code.starts_with(class)))
}

fn meaning(error: &sqlx::Error) -> (Kind, &'static str) {
    match error {
        sqlx::Error::Database(_) => match code(error) {
            // PgBouncer's. It uses this code for so many errors that the text decides.
            Some(_) if error.to_string().contains("unsupported startup parameter") => (
                Kind::Unsupported,
                "a pooler refuses a parameter with which connections are opened; set ignore_startup_parameters in PgBouncer to those that it names, \
                 such as extra_float_digits, or leave `options` out of the address",
            ),
            Some(code) => meaning_of(&code),
            None => (Kind::Other, "the server returned an error without an SQLSTATE"),
        },
        sqlx::Error::PoolTimedOut => (
            Kind::Busy,
            "timed out waiting for a connection of the pool; transactions may be held open elsewhere, or the pool is too small",
        ),
        sqlx::Error::PoolClosed => (Kind::Unavailable, "the connection pool is closed"),
        // rustls reports its errors as a special kind of input error.
        sqlx::Error::Tls(_) => (Kind::NotPermitted, NO_TLS),
        sqlx::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => (Kind::NotPermitted, NO_TLS),
        sqlx::Error::Io(error) => match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                (Kind::Unavailable, "connection refused; check host and port, and that the server runs")
            }
            io::ErrorKind::TimedOut => {
                (Kind::Unavailable, "connection timed out: the server did not answer in time")
            }
            // It has no kind of its own.
            _ if error.to_string().contains("failed to lookup address") => {
                (Kind::Unavailable, "the name of the host can't be resolved; check host and DNS")
            }
            _ => (Kind::Unavailable, "the connection to the server was lost"),
        },
        sqlx::Error::BeginFailed | sqlx::Error::WorkerCrashed => {
            (Kind::Unavailable, "the connection to the server was lost")
        }
        sqlx::Error::Protocol(_) => {
            (Kind::Unavailable, "unexpected answer from the server, or from a pooler in front of it")
        }
        sqlx::Error::Configuration(_) => (Kind::Invalid, "invalid database URL or connection options"),
        _ => (Kind::Other, "unexpected"),
    }
}

const NO_TLS: &str = "the TLS connection failed; check sslmode, and with verify-ca or verify-full that sslrootcert names the authority \
     that signed the server's certificate, and that the host is the one in it";

/// Returns the meaning of a SQLSTATE for an outbox, and the remedy. Pure. One table, however long:
/// a code is looked up in one place.
pub(crate) fn meaning_of(code: &str) -> (Kind, &'static str) {
    match code {
        "40001" => (
            Kind::Conflict,
            "serialization failure: another transaction came first; start this one again from its beginning",
        ),
        "40P01" => (
            Kind::Conflict,
            "deadlock detected with another transaction; start this one again from its beginning, and append once in a \
             transaction, or keys always in the same order",
        ),
        "55P03" => (
            Kind::Conflict,
            "lock timeout: another transaction holds the lock; it may have been left open, or its commit waits for a synchronous standby \
             (wait_event SyncRep in pg_stat_activity)",
        ),
        "25P02" => (
            Kind::NotInTransaction,
            "an earlier statement failed and aborted this transaction; roll it back and start again from its beginning",
        ),
        "25P03" => (
            Kind::Conflict,
            "the server has ended this transaction because it was idle for too long; start again, and do not wait for other services in it",
        ),
        "25P04" => (
            Kind::Unavailable,
            "the server has ended this transaction at its transaction_timeout; raise that for this role, or do less in a transaction",
        ),
        "25P01" => (Kind::NotInTransaction, "there is no transaction"),
        "25006" => (
            Kind::Unavailable,
            "the server is a standby or read-only: connect to the primary (all hosts behind one name, or a proxy that finds it); or this role, database or \
             session is set to be (default_transaction_read_only): reset that",
        ),
        "53300" | "53400" => (
            Kind::Unavailable,
            "too many connections: the server has none left; raise max_connections or the role's limit, or put a pooler in front",
        ),
        "53100" => (Kind::Unavailable, "the server's disk is full; make room"),
        "53200" => (
            Kind::Unavailable,
            "the server is out of memory, or of room for locks, which one transaction with thousands of appends fills for all others too: give \
             many messages to one call of append, or raise max_locks_per_transaction",
        ),
        "57014" => (
            Kind::Unavailable,
            "the statement was canceled, by its timeout or by an administrator; raise statement_timeout for this role, or find out what it waits for",
        ),
        "57P01" | "57P02" | "57P03" | "57P05" | "57P04" => {
            (Kind::Unavailable, "the server is starting, stopping, or has ended the connection")
        }
        "42501" => (
            Kind::NotPermitted,
            "this role lacks a permission; grant it select, insert, update and delete on the tables of the outbox, usage on its schema and \
             sequences, execute on its functions (and, to migrate, create on the schema)",
        ),
        "28P01" => (Kind::NotPermitted, "authentication failed: the server refuses this user or password"),
        "28000" => (
            Kind::NotPermitted,
            "authentication failed: the server refuses this user, host or database; check pg_hba.conf, and whether it requires TLS",
        ),
        "3D000" => {
            (Kind::NotPermitted, "there is no such database on this server; create it, or correct its name")
        }
        "42P01" | "42883" => (Kind::NotMigrated, NOT_MIGRATED),
        "3F000" => (
            Kind::NotMigrated,
            "there is no schema for the outbox: the search_path of the role or the connection names none that exists, or the one that is configured is not \
             there; correct it (PostgresOptions::schema, or alter role ... set search_path), then call `migrate` on the store",
        ),
        "42703" | "42P10" | "42804" | "42704" => (Kind::SchemaAltered, ALTERED),
        "72000" => {
            (Kind::Conflict, "the snapshot of this transaction is too old; start it again from its beginning")
        }
        "0A000" | "26000" | "42P05" => (
            Kind::Unavailable,
            "a statement was prepared for other tables, or on another connection; it is prepared anew. Behind a pooler, set \
             transaction_pooler, and .persistent(false) for queries of your own",
        ),
        "23514" | "23502" | "23505" | "22001" | "22021" => {
            (Kind::Invalid, "the database refuses the written values (constraint, length or encoding)")
        }
        code if code.starts_with("08") || code.starts_with("58") || code.starts_with("57") => {
            (Kind::Unavailable, "the connection to the server was lost, or its machine fails")
        }
        code if code.starts_with("40") => {
            (Kind::Conflict, "the server has rolled this transaction back; start it again")
        }
        code if code.starts_with("53") => (Kind::Unavailable, "the server is out of resources"),
        code if code.starts_with("28") => {
            (Kind::NotPermitted, "authentication failed: the server refuses this user")
        }
        code if code.starts_with("XX") => {
            (Kind::Other, "data corruption, or an internal error of the server; check its log")
        }
        _ => (Kind::Other, "unexpected"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_has_no_address_is_named_as_such() {
        let words = "failed to lookup address information: Name or service not known";
        let error = store_error("connect", sqlx::Error::Io(io::Error::other(words)));
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("the name of the host can't be resolved"), "{error}");
    }

    #[test]
    fn every_sqlstate_means_what_a_caller_can_act_on() {
        let table = [
            ("40001", Kind::Conflict),
            ("40P01", Kind::Conflict),
            ("40003", Kind::Conflict),
            ("55P03", Kind::Conflict),
            ("25P02", Kind::NotInTransaction),
            ("25P03", Kind::Conflict),
            ("25006", Kind::Unavailable),
            ("53300", Kind::Unavailable),
            ("53100", Kind::Unavailable),
            ("53200", Kind::Unavailable),
            ("57014", Kind::Unavailable),
            ("57P01", Kind::Unavailable),
            ("57P02", Kind::Unavailable),
            ("57P03", Kind::Unavailable),
            ("08006", Kind::Unavailable),
            ("58030", Kind::Unavailable),
            ("42501", Kind::NotPermitted),
            ("28P01", Kind::NotPermitted),
            ("28000", Kind::NotPermitted),
            ("3D000", Kind::NotPermitted),
            ("42P01", Kind::NotMigrated),
            ("42883", Kind::NotMigrated),
            ("42703", Kind::SchemaAltered),
            ("0A000", Kind::Unavailable),
            ("23514", Kind::Invalid),
            ("XX001", Kind::Other),
            ("99999", Kind::Other),
        ];
        for (code, kind) in table {
            let (meant, words) = meaning_of(code);
            assert_eq!(meant, kind, "{code}");
            assert!(!words.is_empty() && !words.ends_with('.'), "{code}: {words}");
        }
    }

    #[test]
    fn only_what_the_server_says_before_it_commits_is_surely_not_committed() {
        let lost = sqlx::Error::Io(io::ErrorKind::UnexpectedEof.into());
        assert!(!is_surely_not_committed(&lost));
        assert!(!is_sound(&lost), "a connection that broke is not used again");
        assert!(is_sound(&sqlx::Error::RowNotFound));
    }
}
