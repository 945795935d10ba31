//! Errors that a caller can act on: what kind, what was attempted, what to do.

use std::fmt;

use crate::message::MessageError;

type Source = Box<dyn std::error::Error + Send + Sync>;

macro_rules! error {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            kind: $kind,
            operation: &'static str,
            message: String,
            source: Option<Source>,
        }

        impl $name {
            /// An error of a kind, met in an operation, in words that name the value and the remedy.
            pub fn new(kind: $kind, operation: &'static str, message: impl Into<String>) -> Self {
                Self { kind, operation, message: message.into(), source: None }
            }

            /// Keeps the cause.
            #[must_use]
            pub fn with_source(mut self, source: impl Into<Source>) -> Self {
                self.source = Some(source.into());
                self
            }

            /// What kind of error this is: what a caller can act on.
            #[must_use]
            pub const fn kind(&self) -> $kind {
                self.kind
            }

            /// What was attempted, such as `fetch`.
            #[must_use]
            pub const fn operation(&self) -> &'static str {
                self.operation
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}: {}", self.operation, self.message)?;
                // The cause is part of the text: most people print errors without walking their sources.
                if let Some(source) = &self.source {
                    write!(f, ": {source}")?;
                }
                Ok(())
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
    /// What went wrong in a store.
    StoreError, StoreErrorKind
}

error! {
    /// What went wrong in a transport, apart from the outcome of single messages.
    TransportError, TransportErrorKind
}

/// What kind of error a store met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The database can't be reached, is busy, starting, read-only or out of room; or the connection was lost. What was
    /// asked may or may not have happened. Try again later, and forget what was known of positions and leases.
    Unavailable,
    /// A deadlock or a serialisation conflict ended the transaction. Start the whole transaction again; never only the
    /// statement.
    Conflict,
    /// The tables are not there. Migrate.
    NotMigrated,
    /// The tables were made by a newer version of the library. Upgrade the program.
    SchemaTooNew,
    /// The tables are not what the migrations made. Somebody altered them.
    SchemaAltered,
    /// The database refuses this user or this statement. Grant what is named.
    NotPermitted,
    /// The server can't do what this store needs: too old, or without transactions.
    Unsupported,
    /// The handle that was given is not in a transaction.
    NotInTransaction,
    /// What was asked makes no sense: a key that is not failing, a message that is not there.
    Invalid,
    /// Anything else; see the words.
    Other,
}

impl StoreError {
    /// Whether the same call, or for a [`Conflict`](StoreErrorKind::Conflict) the same transaction, can succeed later
    /// without anybody changing anything.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Unavailable | StoreErrorKind::Conflict)
    }
}

/// What kind of error a transport met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TransportErrorKind {
    /// The broker can't be reached or does not take anything for now. Try again later.
    Unavailable,
    /// A topic, queue, exchange or stream is missing. Create it, or let the transport declare it.
    Missing,
    /// The broker refuses these credentials or this user. Grant what is named.
    NotPermitted,
    /// The server can't do what this transport needs.
    Unsupported,
    /// The configuration makes no sense; the words name the value.
    Invalid,
    /// This subscription is over: it was closed, or its place was taken.
    Closed,
    /// Anything else; see the words.
    Other,
}

impl TransportError {
    /// Whether the same call can succeed later without anybody changing anything.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        matches!(self.kind, TransportErrorKind::Unavailable)
    }
}

/// Why a message was not appended. The user's transaction is theirs to roll back.
#[derive(Debug)]
#[non_exhaustive]
pub enum AppendError {
    /// The message can't be one. Nothing was written, and the transaction can go on.
    Message(MessageError),
    /// A deadlock or a conflict with another writer **has ended the transaction**. Roll it back, and start it again from its beginning; appending again
    /// would commit a message without the rest (on MySQL it would go through). After a lock that did not come in time MySQL and SQLite have undone the
    /// statement alone: committed all the same, the rest would be without its message.
    Conflict(StoreError),
    /// The store failed. Roll the transaction back.
    Store(StoreError),
}

impl AppendError {
    /// Whether the same transaction, started again from its beginning, can succeed without anybody changing anything.
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
                write!(
                    f,
                    "not appended, and the transaction is over: start it again from its beginning: {error}"
                )
            }
            Self::Store(error) => write!(f, "not appended: {error}"),
        }
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
