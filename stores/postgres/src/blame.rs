//! Cause of a driver error in a statement of the user: another transaction, the environment, or the
//! statement.
//!
//! Every class of SQLSTATE has a decision, and so has every kind of error of the driver. An
//! uncertain error is blamed on the statement.

use outbox_contract::backend::Blame;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::error::{code, is_conflict_code};

/// Returns the cause of an error. Pure.
pub(crate) fn blame(error: &sqlx::Error) -> Blame {
    match error {
        sqlx::Error::Database(cause) => {
            let Some(code) = code(error) else { return Blame::Handler };
            let severity = cause.try_downcast_ref::<PgDatabaseError>().map(PgDatabaseError::severity);
            let has_ended_the_session = matches!(severity, Some(PgSeverity::Fatal | PgSeverity::Panic));
            of_code(&code, cause.message(), has_ended_the_session)
        }
        // The connection to the server, or the pool in front of it.
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::BeginFailed
        | sqlx::Error::WorkerCrashed => Blame::Environment,
        _ => Blame::Handler,
    }
}

/// Returns the cause of a SQLSTATE. `has_ended_the_session`: its severity is FATAL or PANIC.
fn of_code(code: &str, message: &str, has_ended_the_session: bool) -> Blame {
    if is_conflict_code(code) {
        return Blame::Conflict;
    }
    let is_environment = match (code.get(..2).unwrap_or_default(), code) {
        // No connection; authentication; no such database; no resources (memory, disk, connections,
        // locks, a configured limit); an operator or a timeout, or the server ends; the server's
        // machine; its configuration; data corruption.
        ("08" | "28" | "53" | "57" | "58" | "F0", _) | (_, "3D000" | "XX001" | "XX002") => true,
        // Read-only; a limit for transactions.
        (_, "25006" | "25P04") => true,
        // Statements that were prepared in another session, as behind a pooler.
        (_, "26000" | "42P05") => true,
        // The tables were changed under a prepared statement. Every other unsupported feature is
        // the statement's fault.
        (_, "0A000") => message.contains("cached plan"),
        // A server of a foreign table that can't be reached.
        (_, "HV00N") => true,
        _ => has_ended_the_session,
    };
    if is_environment { Blame::Environment } else { Blame::Handler }
}

#[cfg(test)]
mod tests {
    use outbox_contract::StoreErrorKind;

    use super::*;
    use crate::error::meaning_of;

    /// Every class that PostgreSQL has, with codes of its own where they differ.
    const CLASSES: &[(&str, Blame)] = &[
        ("03000", Blame::Handler),
        ("08000", Blame::Environment),
        ("08P01", Blame::Environment),
        ("09000", Blame::Handler),
        ("0A000", Blame::Handler),
        ("0B000", Blame::Handler),
        ("0F000", Blame::Handler),
        ("0L000", Blame::Handler),
        ("0P000", Blame::Handler),
        ("0Z000", Blame::Handler),
        ("20000", Blame::Handler),
        ("21000", Blame::Handler),
        ("22012", Blame::Handler),
        ("23505", Blame::Handler),
        ("24000", Blame::Handler),
        ("25001", Blame::Handler),
        ("25006", Blame::Environment),
        ("25P01", Blame::Handler),
        ("25P02", Blame::Handler),
        ("25P03", Blame::Conflict),
        ("25P04", Blame::Environment),
        ("26000", Blame::Environment),
        ("27000", Blame::Handler),
        ("28000", Blame::Environment),
        ("28P01", Blame::Environment),
        ("2B000", Blame::Handler),
        ("2D000", Blame::Handler),
        ("2F000", Blame::Handler),
        ("34000", Blame::Handler),
        ("38000", Blame::Handler),
        ("39000", Blame::Handler),
        ("3B000", Blame::Handler),
        ("3D000", Blame::Environment),
        ("3F000", Blame::Handler),
        ("40001", Blame::Conflict),
        ("40P01", Blame::Conflict),
        ("42501", Blame::Handler),
        ("42601", Blame::Handler),
        ("42P01", Blame::Handler),
        ("42P05", Blame::Environment),
        ("44000", Blame::Handler),
        ("53100", Blame::Environment),
        ("53200", Blame::Environment),
        ("53300", Blame::Environment),
        ("53400", Blame::Environment),
        ("54001", Blame::Handler),
        ("55006", Blame::Handler),
        ("55P03", Blame::Conflict),
        ("57014", Blame::Environment),
        ("57P01", Blame::Environment),
        ("57P05", Blame::Environment),
        ("58030", Blame::Environment),
        ("72000", Blame::Conflict),
        ("F0000", Blame::Environment),
        ("HV000", Blame::Handler),
        ("HV00N", Blame::Environment),
        ("P0001", Blame::Handler),
        ("XX000", Blame::Handler),
        ("XX001", Blame::Environment),
        ("99999", Blame::Handler),
        ("", Blame::Handler),
    ];

    #[test]
    fn every_class_has_a_decision() {
        for (code, expected) in CLASSES {
            assert_eq!(of_code(code, "", false), *expected, "{code}");
        }
        assert_eq!(of_code("0A000", "cached plan must not change result type", false), Blame::Environment);
        assert_eq!(of_code("XX000", "", true), Blame::Environment, "the session is over");
        assert_eq!(of_code("40001", "", true), Blame::Conflict);
    }

    /// The append and the commit report the same errors by their kinds.
    #[test]
    fn the_kinds_of_errors_say_the_same() {
        for (code, blame) in CLASSES {
            let kind = meaning_of(code).0;
            assert_eq!(kind == StoreErrorKind::Conflict, *blame == Blame::Conflict, "{code}: {kind:?}");
            if kind == StoreErrorKind::Unavailable && *code != "0A000" {
                assert_eq!(*blame, Blame::Environment, "{code}");
            }
        }
    }
}
