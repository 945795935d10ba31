//! Cause of a driver error in a statement of the user: another transaction, the environment, or the
//! statement.
//!
//! Every primary result code of SQLite has a decision. An uncertain error is blamed on the
//! statement.

use outbox_contract::backend::Blame;

use crate::error::{self, code, is_conflict};

/// Returns the cause of an error. Pure.
pub(crate) fn blame(error: &sqlx::Error) -> Blame {
    if is_conflict(error) {
        return Blame::Conflict;
    }
    let is_environment = match error {
        sqlx::Error::Database(_) => code(error).is_some_and(is_environment),
        // The thread that works on the file, or the pool in front of it.
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::BeginFailed
        | sqlx::Error::WorkerCrashed => true,
        _ => false,
    };
    if is_environment { Blame::Environment } else { Blame::Handler }
}

/// Returns true if a primary result code is the fault of the machine, the file or its
/// administrator. READONLY is also the error of a file that was moved away, and IOERR that of a
/// rollback that the machine could not perform.
const fn is_environment(code: i32) -> bool {
    matches!(
        code,
        error::PERMISSION
            | error::NO_MEMORY
            | error::READ_ONLY
            | error::INPUT_OUTPUT
            | error::CORRUPT
            | error::FULL
            | error::CANNOT_OPEN
            | error::PROTOCOL
            | error::SCHEMA
            | error::NO_LARGE_FILES
            | error::NOT_A_DATABASE
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_primary_code_has_a_decision() {
        let environment: Vec<i32> = (0..=101).filter(|code| is_environment(*code)).collect();
        assert_eq!(environment, [3, 7, 8, 10, 11, 13, 14, 15, 17, 22, 26]);
        assert_eq!(blame(&sqlx::Error::PoolTimedOut), Blame::Environment);
        assert_eq!(blame(&sqlx::Error::WorkerCrashed), Blame::Environment);
        assert_eq!(blame(&sqlx::Error::RowNotFound), Blame::Handler);
    }
}
