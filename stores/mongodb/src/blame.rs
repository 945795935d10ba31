//! Cause of a driver's error in one of the user's own statements: another transaction, the
//! environment, or the statement.
//!
//! By the driver's labels, its kinds of errors, and the server's codes. What is not certain is the
//! statement's, as is every code that is not named.

use mongodb::error::{Error, ErrorKind, RETRYABLE_WRITE_ERROR, SYSTEM_OVERLOADED_ERROR};
use outbox_contract::backend::Blame;

use crate::error::{code, is_away_or_exhausted, is_conflict, is_network};

/// The cause of an error. Pure.
pub(crate) fn blame(error: &Error) -> Blame {
    if is_conflict(error) {
        return Blame::Conflict;
    }
    // Labels of a server that shuts down or is overloaded.
    let is_labelled =
        error.contains_label(RETRYABLE_WRITE_ERROR) || error.contains_label(SYSTEM_OVERLOADED_ERROR);
    let is_of_the_way = matches!(
        &*error.kind,
        ErrorKind::Authentication { .. }
            | ErrorKind::InvalidTlsConfig { .. }
            | ErrorKind::InvalidResponse { .. }
    );
    let is_of_the_server = first_code(error).is_some_and(is_environment);
    if is_network(error) || is_labelled || is_of_the_way || is_of_the_server {
        Blame::Environment
    } else {
        Blame::Handler
    }
}

/// The code of an error, also of `Client::bulk_write`: that of its first write that failed.
fn first_code(error: &Error) -> Option<i32> {
    let ErrorKind::BulkWrite(bulk) = &*error.kind else { return code(error) };
    let write = bulk.write_errors.iter().min_by_key(|(index, _)| **index).map(|(_, error)| error.code);
    write.or_else(|| bulk.write_concern_errors.first().map(|error| error.code))
}

/// Returns true for a code of the server, of the way to it, or of its administration.
fn is_environment(code: i32) -> bool {
    // The server does not let this user in (18), not even again (391).
    is_away_or_exhausted(code) || matches!(code, 18 | 391)
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    const ENVIRONMENT: &[i32] = &[
        6, 7, 18, 50, 64, 89, 91, 100, 133, 134, 146, 189, 202, 208, 216, 237, 262, 292, 317, 384, 391, 462,
        9_001, 10_058, 10_107, 11_600, 11_601, 11_602, 13_435, 13_436, 14_031,
    ];
    /// Bad values, rights, tables, documents, duplicates.
    const HANDLER: &[i32] = &[
        0, 1, 2, 8, 9, 13, 14, 20, 26, 28, 43, 48, 52, 59, 66, 67, 85, 121, 256, 10_334, 11_000, 16_755,
        17_280,
    ];

    #[test]
    fn every_code_has_a_decision() {
        for code in ENVIRONMENT {
            assert!(is_environment(*code), "{code}");
        }
        for code in HANDLER {
            assert!(!is_environment(*code), "{code}");
        }
        assert_eq!(blame(&Error::from(io::Error::from(io::ErrorKind::ConnectionReset))), Blame::Environment);
        assert_eq!(blame(&Error::custom("the handler's own")), Blame::Handler);
    }
}
