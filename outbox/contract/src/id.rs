//! Identities: of a message, of a relay, of a place in the outbox, of one ownership of a bucket.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Identifies a message for good, everywhere: in the store, on the wire and in the inbox.
///
/// A UUID of version 7, made where the message is made. It says *which* message; it does not say in which order
/// messages were committed (that is the [`Position`]'s work).
///
/// ```
/// use outbox_contract::MessageId;
///
/// let id = MessageId::new();
/// assert_eq!(id.to_string().parse::<MessageId>().unwrap(), id);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(Uuid);

impl MessageId {
    /// Makes a fresh identifier from the system clock and the system's randomness.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "an identifier has no default: every call makes another one"
    )]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Takes an identifier that was made elsewhere. Any UUID will do: only its uniqueness is relied on.
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// The identifier as a UUID.
    #[must_use]
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }
}

/// Identifies one life of one relay: made fresh at each start, never configured, so that no two processes, and no
/// two lives of one process, can be taken for each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RelayId(Uuid);

impl RelayId {
    /// Makes a fresh identifier.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "an identifier has no default: every call makes another one"
    )]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// Takes an identifier that was made elsewhere (by a seeded test).
    #[must_use]
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// The identifier as a UUID.
    #[must_use]
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }
}

macro_rules! uuid_text {
    ($name:ident) => {
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
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

uuid_text!(MessageId);
uuid_text!(RelayId);

/// Where a message stands in its store. Positions start at 1; 0 stands before all of them.
///
/// For one topic and key, the order of positions is the order in which the transactions committed (each store says
/// how it makes that true). Across keys it serves fairness only. Positions are reused after a restore from backup or a
/// failover that lost commits, which is why nothing is ever removed by position alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Position(pub i64);

impl Position {
    /// Before every message.
    pub const START: Self = Self(0);
    /// At or behind every message.
    pub const END: Self = Self(i64::MAX);

    /// The position just before this one; [`START`](Self::START) has none and stays.
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

/// Counts the owners of a bucket: whoever acquires it gets the next number. A statement that carries an older number is
/// refused (promise P7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub i64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
