//! Conversion of errors of MySQL and MariaDB to errors that a caller can act on.

use std::io;

use crate::line::LINE;
use crate::stripes::{AUTOCOMMIT_IS_OFF, PACKET};
use outbox_contract::{StoreError, StoreErrorKind};
use sqlx::mysql::MySqlDatabaseError;

use StoreErrorKind as Kind;

/// The remedy for tables that are not there.
pub(crate) const NOT_MIGRATED: &str =
    "the tables of the outbox do not exist, or are older than this version; call `migrate` on the store";

/// The remedy for tables that are not as they were made.
pub(crate) const ALTERED: &str =
    "the tables of the outbox differ from those of the migrations; undo the change, or restore them";

/// The remedy for a node of a cluster that is not in step with the others.
const NOT_IN_STEP: &str = "this node of the cluster accepts no statements now: it is not synced, or has no quorum (see wsrep_cluster_status and \
     wsrep_local_state_comment); connect to another node, or let it rejoin";

/// The error of a statement that begins a transaction or asks a server what it is. It waits for no
/// lock: what does not come in time is that a node of a cluster catches up with the others.
pub(crate) fn of_beginning(error: sqlx::Error) -> sqlx::Error {
    if number(&error) == Some(1205) { sqlx::Error::Protocol(NOT_IN_STEP.to_owned()) } else { error }
}

/// The number of an error, where it is the server's. SQLSTATEs say too little here.
pub(crate) fn number(error: &sqlx::Error) -> Option<u16> {
    Some(error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// Converts an error in one of the store's statements.
pub(crate) fn store_error(operation: &'static str, error: sqlx::Error) -> StoreError {
    let (kind, words) = meaning(&error);
    StoreError::new(kind, operation, words).with_source(error)
}

/// Returns true if a check, a key, a column or a trigger refuses a row.
pub(crate) fn is_refusal(error: &sqlx::Error) -> bool {
    // 1644: a trigger of somebody's raises an error.
    matches!(number(error), Some(1048 | 1062 | 1264 | 1366 | 1406 | 1644 | 3819 | 4025))
}

/// Returns true if a deadlock, a conflict or a lock timeout is in the transaction's way.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    meaning(error).0 == Kind::Conflict
}

/// Returns true if this server takes no writes, or none any more: a replica since a switchover, a
/// node that has left its cluster. Connections that are open there stay there, though the name in
/// the address stands for another server by now. One that broke, or was ended, may have been for
/// that reason.
pub(crate) fn is_elsewhere(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) => true,
        sqlx::Error::Protocol(words) => words == NOT_IN_STEP,
        error => {
            matches!(number(error), Some(1047 | 1053 | 1077 | 1079 | 1290 | 1792 | 1836 | 1927 | 3100 | 3101))
        }
    }
}

/// Returns true if the server refuses the user, or denies a right.
pub(crate) fn is_denied(error: &sqlx::Error) -> bool {
    meaning(error).0 == Kind::NotPermitted
}

/// Returns true if a connection remains usable after an error.
pub(crate) fn is_sound(error: &sqlx::Error) -> bool {
    match error {
        // The server is ending, has ended the session, or could not read what was sent; or a
        // statement was prepared for other tables.
        sqlx::Error::Database(_) => !matches!(
            number(error),
            None | Some(1053 | 1080 | 1153..=1161 | 1243 | 1615 | 1927 | 3169 | 4031)
        ),
        sqlx::Error::RowNotFound
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::ColumnNotFound(_)
        | sqlx::Error::Decode(_)
        | sqlx::Error::Encode(_) => true,
        _ => false,
    }
}

/// Returns true if a commit with this error certainly did not happen: the server says that it has
/// rolled the transaction back, refuses to commit, or had no transaction to commit, or was not
/// asked to. Whatever ends a session or cancels a statement may come after the commit; and a node
/// that is cut off from its cluster in the middle of a commit (1180) may have been heard by the
/// others.
pub(crate) fn is_surely_not_committed(error: &sqlx::Error) -> bool {
    number(error).is_some_and(rules_out_a_commit) || is_autocommit_off(error)
}

/// Returns true if a transaction was refused because autocommit is off.
fn is_autocommit_off(error: &sqlx::Error) -> bool {
    number(error) == Some(1690)
        && error.as_database_error().is_some_and(|refusal| refusal.message().contains(AUTOCOMMIT_IS_OFF))
}

/// Returns true if a savepoint of this name is not there.
pub(crate) fn lacks_savepoint(error: &sqlx::Error, name: &str) -> bool {
    number(error) == Some(1305)
        && error.as_database_error().is_some_and(|refusal| refusal.message().contains(name))
}

/// Pure.
fn rules_out_a_commit(number: u16) -> bool {
    matches!(number, 1020 | 1205 | 1213 | 1290 | 1305 | 1836 | 3101)
}

fn meaning(error: &sqlx::Error) -> (Kind, &'static str) {
    match error {
        sqlx::Error::Database(refusal) => match number(error) {
            Some(1305) if [PACKET, LINE].iter().any(|name| refusal.message().contains(name)) => (
                Kind::Conflict,
                "a commit on another node of the cluster came first; start this transaction again from its beginning",
            ),
            Some(1690) if is_autocommit_off(error) => (Kind::Invalid, NOT_ITS_BEGIN),
            Some(number) => meaning_of(number),
            None => (Kind::Other, "the server returned an error without a number"),
        },
        sqlx::Error::Protocol(words) if words == NOT_IN_STEP => (Kind::Unavailable, NOT_IN_STEP),
        sqlx::Error::PoolTimedOut => (
            Kind::Busy,
            "timed out waiting for a connection of the pool; transactions may be held open elsewhere, or the pool is too small",
        ),
        sqlx::Error::PoolClosed => (Kind::Unavailable, "the connection pool is closed"),
        // rustls speaks through an input error of its own kind.
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
            _ => (
                Kind::Unavailable,
                "the connection to the server was lost (if this happens with large messages: raise max_allowed_packet)",
            ),
        },
        sqlx::Error::BeginFailed | sqlx::Error::WorkerCrashed => {
            (Kind::Unavailable, "the connection to the server was lost")
        }
        // The driver does not encrypt a password by itself; a URL that can't be one is told before.
        sqlx::Error::Configuration(_) => (
            Kind::NotPermitted,
            "authentication failed: the user is unknown, or its password would have to be sent without TLS; check user and password, and enable TLS on \
             the server",
        ),
        _ => (Kind::Other, "unexpected"),
    }
}

const NOT_ITS_BEGIN: &str = "autocommit is off on this connection, so a transaction that the server has rolled back looks like an open one; begin \
     with Transactional::begin, or set autocommit = 1 before the transaction begins";

const NO_TLS: &str = "the TLS connection failed; check ssl-mode, and with verify_ca or verify_identity that ssl-ca names the authority that \
     signed the server's certificate, and that the host is the one in it";

/// Returns the meaning of an error's number for an outbox, and the remedy. Pure. One table, however
/// long: a number is looked up in one place.
pub(crate) fn meaning_of(number: u16) -> (Kind, &'static str) {
    match number {
        1213 => (
            Kind::Conflict,
            "deadlock detected with another transaction, and the server has rolled this one back; start it again from its beginning, \
             and append once in a transaction, or keys always in the same order",
        ),
        1205 | 3572 => (
            Kind::Conflict,
            "lock wait timeout: another transaction holds the lock; it may have been left open, or this node of a cluster has not caught up \
             with the others. Roll back, and start again from the beginning",
        ),
        1180 => (
            Kind::Unavailable,
            "the commit was interrupted, and its result is unknown; read the database before you repeat the transaction",
        ),
        1020 | 3101 => (
            Kind::Conflict,
            "serialization failure: another transaction came first; start this one again from its beginning",
        ),
        1412 => (
            Kind::Conflict,
            "a table was altered after this transaction had begun to read; start it again from its beginning",
        ),
        1614 | 3058 | 3132 | 3133 => (
            Kind::Conflict,
            "another session holds a lock that this transaction waits for; roll back, and start again from the beginning",
        ),
        1305 => (
            Kind::NotInTransaction,
            "the server has already ended this transaction: by a deadlock, a lock wait timeout, or a statement that commits (such as CREATE \
             TABLE); start again from the beginning",
        ),
        1461 => (
            Kind::Unavailable,
            "too many prepared statements on the server; raise max_prepared_stmt_count, or lower the statement-cache-capacity of the \
             clients' connections",
        ),
        1040 | 1203 | 1226 => (
            Kind::Unavailable,
            "too many connections: the server has none left; raise max_connections or the user's limit, or use fewer connections",
        ),
        1290 | 1836 => (
            Kind::Unavailable,
            "the server is a replica or read-only; connect to the primary (read_only and super_read_only are off there)",
        ),
        1792 => (
            Kind::Unavailable,
            "the transaction is READ ONLY; begin one that can write, and set transaction_read_only = OFF (tx_read_only on MariaDB) on the server",
        ),
        1021 | 1114 | 3675 => (Kind::Unavailable, "the server's disk, or the tablespace, is full; make room"),
        1037 | 1038 | 1041 | 1135 | 1206 | 3015 | 3950 => (
            Kind::Unavailable,
            "the server is out of memory, or of memory for locks; give it more (innodb_buffer_pool_size for locks)",
        ),
        1317 | 1969 | 3024 => (
            Kind::Unavailable,
            "the statement was canceled, by its timeout or by an administrator; raise statement_timeout, or find out what it waits for",
        ),
        1153 => (
            Kind::Invalid,
            "a message is over the server's max_allowed_packet; raise it, or store the data elsewhere and send a reference",
        ),
        1665 => (
            Kind::Unsupported,
            "binlog_format is STATEMENT, which the server does not support for READ COMMITTED transactions; set binlog_format = ROW",
        ),
        1615 | 1243 => (Kind::Unavailable, "a statement was prepared for other tables; it is prepared anew"),
        1047 => (Kind::Unavailable, NOT_IN_STEP),
        1053 | 1077 | 1079 | 1080 | 1152 | 1158..=1161 | 1927 | 2006 | 2013 | 3032 | 3169 | 4031 => {
            (Kind::Unavailable, "the server is starting, stopping, or has ended the connection")
        }
        1142 | 1143 | 1227 | 1370 | 1419 => (
            Kind::NotPermitted,
            "this user lacks a privilege; grant it select, insert, update and delete on the tables of the outbox (to migrate, also create, and to \
             keep a history, also alter and drop)",
        ),
        1045 | 1698 => {
            (Kind::NotPermitted, "authentication failed: the server refuses this user or password")
        }
        1044 | 1049 => (
            Kind::NotPermitted,
            "there is no such database on this server, or this user has no access to it; create it, grant access, or correct its name",
        ),
        1046 => (Kind::Invalid, "no database is named; put its name at the end of the URL"),
        3159 => (Kind::NotPermitted, "the server requires TLS; set ssl-mode=required or stricter"),
        1130 | 1251 | 1524 | 1820 | 1862 | 3118 | 4151 => (
            Kind::NotPermitted,
            "authentication failed: the server refuses this user, its host, its expired password or its authentication plugin",
        ),
        1051 | 1146 => (Kind::NotMigrated, NOT_MIGRATED),
        1054 | 1072 | 1091 | 1136 | 1147 | 1176 | 1364 | 1366 => (Kind::SchemaAltered, ALTERED),
        1048 | 1062 | 1264 | 1406 | 3819 | 4025 => {
            (Kind::Invalid, "the database refuses the written values (constraint, length or encoding)")
        }
        1030 | 1034 | 1194 | 1195 => {
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
    fn every_number_means_what_a_caller_can_act_on() {
        let table = [
            (1213, Kind::Conflict),
            (1205, Kind::Conflict),
            (1020, Kind::Conflict),
            (1412, Kind::Conflict),
            (1792, Kind::Unavailable),
            (1180, Kind::Unavailable),
            (1047, Kind::Unavailable),
            (1305, Kind::NotInTransaction),
            (1690, Kind::Other),
            (1040, Kind::Unavailable),
            (1290, Kind::Unavailable),
            (1114, Kind::Unavailable),
            (3024, Kind::Unavailable),
            (1969, Kind::Unavailable),
            (1053, Kind::Unavailable),
            (4031, Kind::Unavailable),
            (1142, Kind::NotPermitted),
            (1044, Kind::NotPermitted),
            (1045, Kind::NotPermitted),
            (1049, Kind::NotPermitted),
            (3159, Kind::NotPermitted),
            (1146, Kind::NotMigrated),
            (1054, Kind::SchemaAltered),
            (1153, Kind::Invalid),
            (1665, Kind::Unsupported),
            (3819, Kind::Invalid),
            (4025, Kind::Invalid),
            (1034, Kind::Other),
            (65_000, Kind::Other),
        ];
        for (number, kind) in table {
            let (meant, words) = meaning_of(number);
            assert_eq!(meant, kind, "{number}");
            assert!(!words.is_empty() && !words.ends_with('.'), "{number}: {words}");
        }
    }

    #[test]
    fn only_what_the_server_says_before_it_commits_is_surely_not_committed() {
        let lost = sqlx::Error::Io(io::ErrorKind::UnexpectedEof.into());
        assert!(!is_surely_not_committed(&lost));
        assert!(rules_out_a_commit(1213) && rules_out_a_commit(1305));
        for number in [1047, 1053, 1180, 1317, 1927] {
            assert!(!rules_out_a_commit(number), "{number}: others may have heard of it");
        }
        assert!(!is_sound(&lost), "a connection that broke is not used again");
        assert!(is_elsewhere(&lost), "nor those of the others, which may be with a server that was left");
        let behind = sqlx::Error::Protocol(NOT_IN_STEP.to_owned());
        assert!(is_elsewhere(&behind) && !is_sound(&behind), "another node may be in step");
        assert_eq!(meaning(&behind), (Kind::Unavailable, NOT_IN_STEP));
        assert!(is_sound(&sqlx::Error::RowNotFound) && !is_elsewhere(&sqlx::Error::RowNotFound));
    }
}
