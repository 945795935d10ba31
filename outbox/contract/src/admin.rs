//! Admin operations: inspect failed messages and decide their fate.

mod actor;
mod archived;
mod audit;
mod diagnosis;
mod ext;
mod failing_key;
mod figures;
mod filter;
mod hidden;
mod misplaced;
mod ownership;

use async_trait::async_trait;

pub use crate::backend::{Archive, Death, KeyOperation, Listed, Paused, Position, Steered, Stored, View};
pub use crate::edit::Edit;
use crate::error::StoreError;
pub use crate::handled::HandledFilter;
use crate::id::MessageId;
pub use crate::id::OutboxId;
use crate::name::{KeyId, Route, Topic};
pub use actor::Actor;
pub use archived::{DeadLetter, Past};
pub use audit::AuditEntry;
pub use diagnosis::{Diagnosis, DiagnosisKind};
pub use ext::AdminExt;
pub use failing_key::FailingKey;
pub use figures::TopicFigures;
pub use filter::{Filter, MAX_BYTES_PER_CALL, MAX_PER_CALL};
pub use hidden::is_hidden;
pub use misplaced::Misplaced;
pub use ownership::{BucketOwner, Ownership, RelayStatus, RouteStatus};

/// Admin operations. Every store implements them.
///
/// No operation needs a lease. Operations on keys lock the key's row, change it and the messages
/// parked behind it, and create the next version of the row. The store then rejects a relay that
/// works from an older version, and the relay reads the key again. Operations are durable when they
/// return; a canceled or failed one may have taken effect. Any caller may call any of them at any
/// time, and repeat it.
///
/// [`AdminExt`] adds operations under the names that operators use, which call these.
///
/// Each operation that changes something writes an [`AuditEntry`] in its own transaction, under the
/// name of the [`Actor`] of this handle: by default [`Actor::process`].
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::admin::{Actor, Filter};
/// use outbox::{Admin, AdminExt, StoreError};
///
/// /// Releases all failing keys, on behalf of a user.
/// async fn release_all(store: &impl Admin, user: &str) -> Result<(), StoreError> {
///     let store = store.acting_as(Actor::new(user));
///     for failing in store.failing_keys(&Filter::all_routes()).await? {
///         store.release(&failing.route, &failing.key).await?;
///     }
///     Ok(())
/// }
/// ```
#[async_trait]
pub trait Admin: Send + Sync {
    /// Lists failing and held keys, the longest failing first.
    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError>;

    /// Lists messages of a view, in its order.
    ///
    /// [`waiting`](AdminExt::waiting), [`parked`](AdminExt::parked), [`dead_letters`](AdminExt::dead_letters),
    /// [`history`](AdminExt::history) and [`scheduled`](AdminExt::scheduled) each show one view.
    async fn browse(&self, view: View, filter: &Filter) -> Result<Vec<Listed>, StoreError>;

    /// Changes a key: [`hold`](AdminExt::hold), [`release`](AdminExt::release), [`skip`](AdminExt::skip) or
    /// [`discard`](AdminExt::discard).
    async fn steer(&self, route: &Route, key: &KeyId, operation: KeyOperation)
    -> Result<Steered, StoreError>;

    /// Appends archived messages again: [`requeue`](AdminExt::requeue) or [`replay`](AdminExt::replay).
    /// Returns their number.
    async fn append_again(&self, archive: Archive, filter: &Filter) -> Result<u64, StoreError>;

    /// Corrects the oldest dead letter that the filter selects, and appends it as
    /// [`requeue`](AdminExt::requeue) does: at the end of the key that it now has. Its id stays, unless
    /// the correction replaces it. Returns the appended message's id; `None` if the filter selects
    /// no dead letter.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::StoreErrorKind::Invalid), with column and rule of the remaining fault, if
    /// the result is not a valid message. The dead letter then stays unchanged.
    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError>;

    /// Deletes dead letters permanently. Returns their number. Nothing else deletes dead letters:
    /// to bound their number, call this regularly, with `before`.
    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError>;

    /// Begins or ends a pause: [`pause`](AdminExt::pause) or [`resume`](AdminExt::resume).
    async fn set_paused(&self, route: &Route, topic: Option<&Topic>, paused: bool) -> Result<(), StoreError>;

    /// Removes scheduled messages before they are due. Returns the number removed.
    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError>;

    /// Returns the identity of this outbox. [`Store::migrate`](crate::Store::migrate) makes it.
    /// Where it is missing, because a migration tool created the tables or a test emptied them, the
    /// first call makes it; of several at once, all return the same.
    async fn identity(&self) -> Result<OutboxId, StoreError>;

    /// Gives the outbox a new identity, and returns it.
    ///
    /// Call it on a database that was restored from a backup or copied from another one, **before**
    /// relays start on it: positions begin again there, and consumers would take new messages for
    /// repeats of those that they had under the same `source` and `sequence`. Relays read the
    /// identity when they start.
    async fn renew_identity(&self) -> Result<OutboxId, StoreError>;

    /// Counts the messages that a consumer has handled and whose ids are kept: those that
    /// [`forget`](Self::forget) would forget.
    async fn count_handled(&self, filter: &HandledFilter) -> Result<u64, StoreError>;

    /// Makes a consumer forget that it has handled messages, the oldest first, at most
    /// [`MAX_PER_CALL`]. Returns their number; repeat the call until it returns 0.
    ///
    /// Only the ids are removed. The effects of the handler stay, and nothing is delivered again by
    /// this alone. A forgotten message that arrives again ([replayed](AdminExt::replay), or from a
    /// broker that still has it) is new to the consumer: its handler runs once more, and its id is
    /// recorded again. It takes its turn like every other message of its key: behind those that
    /// wait in the store for this consumer, and at once where none waits, whichever later messages
    /// of the key were handled before.
    ///
    /// Meant for messages whose handler was wrong. A message that the broker may still deliver
    /// again by itself, because it was not acknowledged, is then handled again too.
    async fn forget(&self, filter: &HandledFilter) -> Result<u64, StoreError>;

    /// Returns a handle of the same outbox whose operations are recorded under this name.
    ///
    /// ```
    /// # extern crate outbox_contract as outbox;
    /// # use outbox::{Admin, StoreError};
    /// # use outbox::admin::{Actor, Filter};
    /// # async fn purge(store: impl Admin, signed_in: &str) -> Result<(), StoreError> {
    /// let admin = store.acting_as(Actor::new(signed_in));
    /// admin.purge(&Filter::all_routes()).await?;
    /// # Ok(())
    /// # }
    /// ```
    fn acting_as(&self, actor: Actor) -> Box<dyn Admin + '_>;

    /// Lists operations that changed something, the oldest first, or the newest. Route, topic and
    /// key of the filter are those that the operation named; ids select entries that name one of
    /// them.
    ///
    /// Maintenance removes entries at the end of their retention, by default after 90 days.
    async fn audit(&self, filter: &Filter) -> Result<Vec<AuditEntry>, StoreError>;

    /// Returns the relays of a route, and the owner of each bucket.
    async fn ownership(&self, route: &Route) -> Result<Ownership, StoreError>;

    /// Lists routes that have messages, relays or pauses, in the order of their names: at most
    /// [`RouteStatus::MAX`]. A store looks at a bounded number of waiting messages, so a route
    /// without a relay may be missing behind a large backlog of others.
    async fn routes(&self) -> Result<Vec<RouteStatus>, StoreError>;

    /// Returns figures of the topics of a route, in the order of their names: at most
    /// [`TopicFigures::MAX`].
    async fn topics(&self, route: &Route) -> Result<Vec<TopicFigures>, StoreError>;

    /// Finds messages where none should stand, by a bounded number of rows: those at positions that
    /// relays had passed, or above the counters that number them. Relays deliver them by
    /// themselves; [`check`](crate::Store::check) logs them, too.
    ///
    /// The provided method finds none, for stores that can't be restored.
    async fn misplaced(&self) -> Result<Vec<Misplaced>, StoreError> {
        Ok(Vec::new())
    }

    /// Examines the database beneath the outbox: settings that weaken durability, space that removed
    /// rows do not give back, and what holds back their cleaning. A store asks for figures that its
    /// role may see, and says what it may not: [`Unseen`](DiagnosisKind::Unseen). It reads no
    /// messages, and takes a fraction of a second.
    ///
    /// The provided method finds nothing, for stores without files.
    async fn diagnose(&self) -> Result<Vec<Diagnosis>, StoreError> {
        Ok(Vec::new())
    }
}
