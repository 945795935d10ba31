//! The audit: a record of the admin operations that changed something.

use super::Actor;
use crate::clock::Timestamp;
use crate::id::MessageId;
use crate::name::{Key, Route, Topic};

/// One admin operation that changed something: who did what, to which messages.
///
/// The store writes it in the transaction of the operation. An operation of several transactions,
/// such as the discard of thousands of messages, has an entry for each. Refused operations, dry
/// runs and those that found nothing to change have none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// Time of the operation, by the database's clock.
    pub at: Timestamp,
    /// Whoever performed it.
    pub actor: Actor,
    /// The operation: `hold`, `release`, `skip`, `discard`, `requeue`, `requeue_edited`, `replay`,
    /// `purge`, `pause`, `resume`, `cancel_scheduled`, `renew_identity` or `forget`. `drop`: a
    /// relay's retry policy deleted a message.
    pub operation: String,
    /// The route that it named. `None`: all routes, or none in particular.
    pub route: Option<Route>,
    /// The topic that it named.
    pub topic: Option<Topic>,
    /// The key that it named.
    pub key: Option<Key>,
    /// Its other arguments, as a JSON object: bounds of a filter, or the names of edited fields. No
    /// payload or header is in it.
    pub detail: String,
    /// Number of messages that it moved or removed; 0 for an operation on a key or a route alone.
    pub affected: u64,
    /// Ids of these messages, the first [`MAX_IDS`](Self::MAX_IDS) of them.
    pub ids: Vec<MessageId>,
}

impl AuditEntry {
    /// Maximum number of ids in an entry.
    pub const MAX_IDS: usize = 100;

    /// Creates an entry of an operation without arguments.
    #[must_use]
    pub fn new(at: Timestamp, actor: Actor, operation: impl Into<String>) -> Self {
        Self {
            at,
            actor,
            operation: operation.into(),
            route: None,
            topic: None,
            key: None,
            detail: "{}".to_owned(),
            affected: 0,
            ids: Vec::new(),
        }
    }
}
