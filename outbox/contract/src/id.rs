//! Identifiers: of a message, a relay, a position in the outbox, and an ownership of a bucket.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::name::{NameError, no_uuid};

/// Permanent identifier of a message everywhere: in the store, on the wire and in the inbox.
///
/// A UUID of version 7, created with the message. It identifies the message; it does not reflect
/// the order in which messages were committed (the [`Position`] does).
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::MessageId;
///
/// let id = MessageId::new();
/// assert_eq!(id.to_string().parse::<MessageId>().unwrap(), id);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(Uuid);

impl MessageId {
    /// Creates a fresh identifier from the system clock and the system's randomness.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "an identifier has no default: every call makes another one"
    )]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Takes an existing identifier. Any UUID works: only its uniqueness matters.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// Returns the identifier of another program's event: the same for the same source and id,
    /// whatever texts they are.
    #[must_use]
    pub fn of_event(source: &str, id: &str) -> Self {
        crate::backend::cloudevents::foreign_id(source, id)
    }

    /// Returns the identifier as a UUID.
    #[must_use]
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }
}

/// Identifier of one life of one relay. Each start creates a fresh one; it is never configured. Two
/// processes, or two lives of one process, can therefore never be mistaken for each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RelayId(Uuid);

impl RelayId {
    /// Creates a fresh identifier.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "an identifier has no default: every call makes another one"
    )]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Takes an existing identifier (of a seeded test).
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// Returns the identifier as a UUID.
    #[must_use]
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }
}

/// Identity of an outbox: made with its tables, and unlike that of any other.
///
/// It is the CloudEvents `source` of what its relays publish, unless they are configured with
/// another one. A copy of a database has the same identity until it is
/// [renewed](crate::Admin::renew_identity).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OutboxId(Uuid);

impl OutboxId {
    /// Creates a fresh identity. For authors of stores.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "an identity has no default: every call makes another one"
    )]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Takes an existing identity.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// Returns the identity as a UUID.
    #[must_use]
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }

    /// Returns the identity as a CloudEvents `source`: `urn:uuid:` and the UUID.
    #[must_use]
    pub fn source(self) -> String {
        format!("urn:uuid:{}", self.0)
    }
}

macro_rules! uuid_text {
    ($name:ident, $what:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                text.parse().map(Self).map_err(|_| no_uuid($what, text))
            }
        }
    };
}

uuid_text!(MessageId, "message id");
uuid_text!(RelayId, "relay id");
uuid_text!(OutboxId, "identity");

/// Position of a message in its store. Positions start at 1; 0 precedes all of them.
///
/// For one topic and key, the order of positions is the order in which the transactions committed
/// (each store documents how it guarantees this). Across keys, positions serve fairness only. A
/// restore from backup, or a failover that lost commits, reuses positions. This is why nothing is
/// ever removed by position alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(pub i64);

impl Position {
    /// The position before every message.
    pub const START: Self = Self(0);
    /// The position at or after every message.
    pub const END: Self = Self(i64::MAX);

    /// Returns the preceding position; [`START`](Self::START) returns itself.
    #[must_use]
    pub const fn before(self) -> Self {
        if self.0 <= 0 { Self::START } else { Self(self.0 - 1) }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Ownership counter of a bucket: each acquisition gets the next number. The store rejects a
/// statement that carries an older number (promise P7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub i64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
