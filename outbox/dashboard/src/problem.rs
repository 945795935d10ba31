//! Problems, as pages with a code and a remedy.

use std::time::Duration;

use axum::http::StatusCode;
use outbox::{StoreError, StoreErrorKind};

/// A page that could not be shown, or an operation that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    /// Stable code, as the book's page on errors lists it, or a word.
    pub(crate) code: String,
    pub(crate) title: &'static str,
    pub(crate) text: String,
    pub(crate) remedy: String,
}

impl Problem {
    /// Creates a problem of a request.
    pub(crate) fn bad(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            code: "bad-request".to_owned(),
            title: "This request can't be carried out",
            text: text.into(),
            remedy: remedy.into(),
        }
    }

    /// Creates a problem of a page or message that is not there.
    pub(crate) fn missing(text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            code: "not-found".to_owned(),
            title: "Not found",
            text: text.into(),
            remedy: remedy.into(),
        }
    }

    /// Creates a problem of a visitor who may not do this.
    pub(crate) fn forbidden(code: &str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            code: code.to_owned(),
            title: "Refused",
            text: text.into(),
            remedy: remedy.into(),
        }
    }

    /// Creates the problem of a store that gave no answer in time.
    fn silent(limit: Duration) -> Self {
        Self {
            status: StatusCode::GATEWAY_TIMEOUT,
            code: StoreErrorKind::Unavailable.code().to_owned(),
            title: "The database gave no answer",
            text: format!("no answer from the database within {limit:?}; an operation may have taken effect"),
            remedy: "check address, network and load of the database, then look again".to_owned(),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let (status, title, remedy) = match error.kind() {
            StoreErrorKind::Unavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The database is not available",
                "check address, network and state of the database, then look again; an operation may have \
                 taken effect",
            ),
            StoreErrorKind::Busy | StoreErrorKind::Conflict => {
                (StatusCode::SERVICE_UNAVAILABLE, "The database is busy", "try again in a moment")
            }
            StoreErrorKind::NotMigrated => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "The tables are missing",
                "create them with `outbox migrate`, or call `migrate` of the store",
            ),
            StoreErrorKind::SchemaTooNew => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "The tables are newer than this program",
                "use the version that created the tables, or a later one",
            ),
            StoreErrorKind::NotPermitted => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "The database denies permission",
                "grant the right that the error names to the user of this program",
            ),
            StoreErrorKind::Invalid => (
                StatusCode::CONFLICT,
                "The operation no longer applies",
                "look again: a relay or another operator may have been faster",
            ),
            _ => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "The database reported an error",
                "see the text of the error, and the page on errors in the documentation",
            ),
        };
        Self {
            status,
            code: error.code().to_owned(),
            title,
            text: error.to_string(),
            remedy: remedy.to_owned(),
        }
    }
}

/// Waits for a store's answer, for a limited time.
pub(crate) async fn limited<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, Problem> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(Problem::from),
        Err(_) => Err(Problem::silent(limit)),
    }
}
