//! Errors that a caller can act on: kind, operation and remedy.

use std::fmt;

use crate::message::MessageError;

type Source = Box<dyn std::error::Error + Send + Sync>;

macro_rules! error {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        $(#[$doc])*
        pub struct $name {
            kind: $kind,
            operation: &'static str,
            message: String,
            source: Option<Source>,
        }

        impl $name {
            /// Creates an error from its kind, the operation, and a message that names the value
            /// and the remedy.
            pub fn new(kind: $kind, operation: &'static str, message: impl Into<String>) -> Self {
                Self { kind, operation, message: message.into(), source: None }
            }

            /// Attaches the cause.
            #[must_use]
            pub fn with_source(mut self, source: impl Into<Source>) -> Self {
                self.source = Some(source.into());
                self
            }

            /// Returns the kind of this error, on which a caller can act.
            #[must_use]
            pub const fn kind(&self) -> $kind {
                self.kind
            }

            /// Returns the stable code of this error's kind, as the book's page on errors lists it.
            #[must_use]
            pub const fn code(&self) -> &'static str {
                self.kind.code()
            }

            /// Returns the operation, such as `fetch`.
            #[must_use]
            pub const fn operation(&self) -> &'static str {
                self.operation
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}: {}", self.operation, self.message)?;
                // The cause is part of the text, because most people print errors without walking
                // their sources.
                if let Some(source) = &self.source {
                    write!(f, ": {source}")?;
                }
                write!(f, " [{}]", self.code())
            }
        }

        /// The text: a `main` that returns an error prints it so.
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl std::error::Error for $name {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                self.source.as_deref().map(|source| source as _)
            }
        }
    };
}

error! {
    /// Error of a store.
    StoreError, StoreErrorKind
}

error! {
    /// Error of a transport, apart from the outcomes of single messages.
    TransportError, TransportErrorKind
}

/// Kind of a store error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The database is unreachable, busy, starting, read-only or out of space, or the connection
    /// was lost. The operation may or may not have taken effect. Retry later, and discard what is
    /// known of positions and leases.
    Unavailable,
    /// The database gave no transaction in time: the pool has no free connection, or others write
    /// where one transaction writes at a time. Nothing began, and nothing that is known becomes
    /// doubtful. Retry later. Returned by [`begin`](crate::Transactional::begin).
    Busy,
    /// A deadlock or a serialization failure ended the transaction. Retry the whole transaction,
    /// never only the statement.
    Conflict,
    /// The tables are missing. Run the migration.
    NotMigrated,
    /// A newer version of the library created the tables. Upgrade the program.
    SchemaTooNew,
    /// The tables differ from what the migrations created: they were altered.
    SchemaAltered,
    /// The database denies permission to this user or for this statement. Grant the named right.
    NotPermitted,
    /// The server lacks a feature that this store needs: it is too old, or has no transactions.
    Unsupported,
    /// The given handle is not in a transaction.
    NotInTransaction,
    /// The request is invalid: a key that is not failing, a message that does not exist.
    Invalid,
    /// Any other error; see the message.
    Other,
}

impl StoreErrorKind {
    /// Returns the stable code of this kind, as the book's page on errors lists it.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unavailable => "OBX-STORE-UNAVAILABLE",
            Self::Busy => "OBX-STORE-BUSY",
            Self::Conflict => "OBX-STORE-CONFLICT",
            Self::NotMigrated => "OBX-STORE-NOT-MIGRATED",
            Self::SchemaTooNew => "OBX-STORE-SCHEMA-TOO-NEW",
            Self::SchemaAltered => "OBX-STORE-SCHEMA-ALTERED",
            Self::NotPermitted => "OBX-STORE-NOT-PERMITTED",
            Self::Unsupported => "OBX-STORE-UNSUPPORTED",
            Self::NotInTransaction => "OBX-STORE-NOT-IN-TRANSACTION",
            Self::Invalid => "OBX-STORE-INVALID",
            Self::Other => "OBX-STORE-OTHER",
        }
    }
}

impl StoreError {
    /// Returns true if the same call, or for a [`Conflict`](StoreErrorKind::Conflict) the same
    /// transaction, can succeed later without intervention.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable | StoreErrorKind::Busy | StoreErrorKind::Conflict)
    }
}

/// Kind of a transport error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportErrorKind {
    /// The broker is unreachable or currently accepts nothing. Retry later.
    Unavailable,
    /// A topic, queue, exchange or stream does not exist. Create it, or let the transport declare
    /// it.
    Missing,
    /// The broker rejects these credentials or denies permission to this user. Grant the named
    /// right.
    NotPermitted,
    /// The server lacks a feature that this transport needs.
    Unsupported,
    /// The configuration is invalid; the message names the value.
    Invalid,
    /// This subscription has ended: it was closed, or another member took its place.
    Closed,
    /// Any other error; see the message.
    Other,
}

impl TransportErrorKind {
    /// Returns the stable code of this kind, as the book's page on errors lists it.
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unavailable => "OBX-TRANSPORT-UNAVAILABLE",
            Self::Missing => "OBX-TRANSPORT-MISSING",
            Self::NotPermitted => "OBX-TRANSPORT-NOT-PERMITTED",
            Self::Unsupported => "OBX-TRANSPORT-UNSUPPORTED",
            Self::Invalid => "OBX-TRANSPORT-INVALID",
            Self::Closed => "OBX-TRANSPORT-CLOSED",
            Self::Other => "OBX-TRANSPORT-OTHER",
        }
    }
}

impl TransportError {
    /// Returns true if the same call can succeed later without intervention.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind, TransportErrorKind::Unavailable)
    }
}

/// Error of an append. The user decides to roll back the transaction.
#[non_exhaustive]
pub enum AppendError {
    /// The message is invalid. Nothing was written, and the transaction can continue.
    Message(MessageError),
    /// A deadlock or a conflict with another writer **has ended the transaction**. Roll it back,
    /// and retry it from its beginning. Appending again would commit the message without the rest
    /// (MySQL accepts this). After a lock timeout, MySQL and SQLite undo only the statement: a
    /// commit would then write the rest without its message.
    Conflict(StoreError),
    /// The store failed. Roll back the transaction.
    Store(StoreError),
}

impl AppendError {
    /// Returns the stable code of the error inside, as the book's page on errors lists it.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Message(error) => error.code(),
            Self::Conflict(error) | Self::Store(error) => error.code(),
        }
    }

    /// Returns true if the same transaction, retried from its beginning, can succeed without
    /// intervention.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Message(_) => false,
            Self::Conflict(_) => true,
            Self::Store(error) => error.is_retryable(),
        }
    }
}

impl fmt::Display for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(error) => write!(f, "not appended: {error}"),
            Self::Conflict(error) => {
                write!(f, "not appended, and the transaction has ended; retry it from its beginning: {error}")
            }
            Self::Store(error) => write!(f, "not appended: {error}"),
        }
    }
}

/// The text: a `main` that returns an error prints it so.
impl fmt::Debug for AppendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for AppendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Message(error) => Some(error),
            Self::Conflict(error) | Self::Store(error) => Some(error),
        }
    }
}

impl From<MessageError> for AppendError {
    fn from(error: MessageError) -> Self {
        Self::Message(error)
    }
}

impl From<StoreError> for AppendError {
    fn from(error: StoreError) -> Self {
        if error.kind() == StoreErrorKind::Conflict { Self::Conflict(error) } else { Self::Store(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_the_same_however_it_is_printed() {
        let store =
            || StoreError::new(StoreErrorKind::Busy, "begin", "timed out").with_source("the pool is empty");
        let text = "begin: timed out: the pool is empty [OBX-STORE-BUSY]";
        assert_eq!((store().to_string(), format!("{:?}", store())), (text.to_owned(), text.to_owned()));
        let transport = TransportError::new(TransportErrorKind::Missing, "subscribe", "no topic");
        assert_eq!(format!("{transport:?}"), "subscribe: no topic [OBX-TRANSPORT-MISSING]");
        assert_eq!(format!("{:?}", AppendError::from(store())), format!("not appended: {text}"));
    }
}
