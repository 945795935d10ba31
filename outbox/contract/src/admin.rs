//! Admin operations: inspect failed messages and decide their fate.

mod actor;
mod archived;
mod audit;
mod diagnosis;
mod failing_key;
mod figures;
mod filter;
mod hidden;
mod misplaced;
mod ownership;

use std::sync::Arc;

use async_trait::async_trait;

use crate::backend::Stored;
use crate::backend::{Archive, KeyOperation, Listed, Steered, View};
pub use crate::backend::{Requeue, requeued};
use crate::clock::Timestamp;
pub use crate::edit::Edit;
use crate::error::StoreError;
pub use crate::handled::HandledFilter;
use crate::id::MessageId;
pub use crate::id::OutboxId;
use crate::message::Message;
use crate::name::{KeyId, Route, Topic};
pub use actor::Actor;
pub use archived::{DeadLetter, Past};
pub use audit::AuditEntry;
pub use diagnosis::{Diagnosis, DiagnosisKind};
pub use failing_key::FailingKey;
pub use figures::{Figure, TopicFigures, TopicTally};
pub use filter::{Filter, MAX_BYTES_PER_CALL, MAX_PER_CALL};
pub use hidden::is_hidden;
pub use misplaced::Misplaced;
pub use ownership::{BucketOwner, Ownership, RelayStatus, RouteStatus, RouteTally};

/// Admin operations. Every store implements them.
///
/// No operation needs a lease. Operations on keys lock the key's row, change it and the messages
/// parked behind it, and create the next version of the row. The store then rejects a relay that
/// works from an older version, and the relay reads the key again. Operations are durable when they
/// return; a canceled or failed one may have taken effect. Any caller may call any of them at any
/// time, and repeat it.
///
/// Stores implement [`failing_keys`](Self::failing_keys), [`browse`](Self::browse),
/// [`steer`](Self::steer), [`append_again`](Self::append_again),
/// [`requeue_edited`](Self::requeue_edited), [`purge`](Self::purge),
/// [`set_paused`](Self::set_paused), [`cancel_scheduled`](Self::cancel_scheduled),
/// [`identity`](Self::identity), [`renew_identity`](Self::renew_identity),
/// [`count_handled`](Self::count_handled), [`forget`](Self::forget),
/// [`acting_as`](Self::acting_as), [`audit`](Self::audit), [`ownership`](Self::ownership),
/// [`routes`](Self::routes) and [`topics`](Self::topics). The other methods call these, under the
/// names that operators use.
///
/// Each operation that changes something writes an [`AuditEntry`] in its own transaction, under the
/// name of the [`Actor`] of this handle: by default [`Actor::process`].
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::admin::{Actor, Filter};
/// use outbox::{Admin, StoreError};
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
    /// [`waiting`](Self::waiting), [`parked`](Self::parked), [`dead_letters`](Self::dead_letters),
    /// [`history`](Self::history) and [`scheduled`](Self::scheduled) each show one view.
    async fn browse(&self, view: View, filter: &Filter) -> Result<Vec<Listed>, StoreError>;

    /// Changes a key: [`hold`](Self::hold), [`release`](Self::release), [`skip`](Self::skip) or
    /// [`discard`](Self::discard).
    async fn steer(&self, route: &Route, key: &KeyId, operation: KeyOperation)
    -> Result<Steered, StoreError>;

    /// Appends archived messages again: [`requeue`](Self::requeue) or [`replay`](Self::replay).
    /// Returns their number.
    async fn append_again(&self, archive: Archive, filter: &Filter) -> Result<u64, StoreError>;

    /// Corrects the oldest dead letter that the filter selects, and appends it as
    /// [`requeue`](Self::requeue) does: at the end of the key that it now has. Its id stays, unless
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

    /// Begins or ends a pause: [`pause`](Self::pause) or [`resume`](Self::resume).
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
    /// this alone. A forgotten message that arrives again ([replayed](Self::replay), or from a
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

    /// Lists messages to publish, neither parked nor scheduled, in the order of their positions:
    /// about the order in which they were appended. A store looks at a bounded number of messages
    /// from the beginning, or from the end for the newest, at least 10,000: what a filter selects
    /// beyond that is not found.
    async fn waiting(&self, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        self.browse(View::Waiting, filter).await
    }

    /// Lists messages parked behind failing keys, key by key, in the order of their delivery.
    async fn parked(&self, filter: &Filter) -> Result<Vec<Arc<Stored>>, StoreError> {
        let listed = self.browse(View::Parked, filter).await?;
        Ok(listed.into_iter().map(|listed| listed.stored).collect())
    }

    /// Lists dead letters, the oldest first.
    async fn dead_letters(&self, filter: &Filter) -> Result<Vec<DeadLetter>, StoreError> {
        let listed = self.browse(View::DeadLetters, filter).await?;
        Ok(listed.into_iter().map(DeadLetter::from).collect())
    }

    /// Lists delivered messages, the oldest first. Empty if the store keeps no history.
    async fn history(&self, filter: &Filter) -> Result<Vec<Past>, StoreError> {
        let listed = self.browse(View::History, filter).await?;
        Ok(listed.into_iter().map(Past::from).collect())
    }

    /// Lists scheduled messages that are not due yet, each with its due time, the next due first.
    async fn scheduled(&self, filter: &Filter) -> Result<Vec<(Timestamp, Message)>, StoreError> {
        let listed = self.browse(View::Scheduled, filter).await?;
        Ok(listed.into_iter().map(|listed| (listed.at, listed.stored.message.clone())).collect())
    }

    /// Holds a key: the store parks its messages from now on, until an operator releases it.
    /// Messages of the key that a relay has in flight may still be delivered.
    async fn hold(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.steer(route, key, KeyOperation::Hold).await.map(drop)
    }

    /// Lets a held or failing key retry now, with its attempts reset to 0.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::StoreErrorKind::Invalid) if the key is neither held nor failing. `skip`
    /// and `discard` return the same.
    async fn release(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.steer(route, key, KeyOperation::Release).await.map(drop)
    }

    /// Makes the first parked message of a key a dead letter (`skipped`); the key then tries the
    /// next message immediately. Returns `None` if no message is parked.
    async fn skip(&self, route: &Route, key: &KeyId) -> Result<Option<MessageId>, StoreError> {
        Ok(self.steer(route, key, KeyOperation::Skip).await?.skipped)
    }

    /// Makes every parked message of a key a dead letter (`discarded`) and lets the key flow again.
    /// Returns their number.
    async fn discard(&self, route: &Route, key: &KeyId) -> Result<u64, StoreError> {
        Ok(self.steer(route, key, KeyOperation::Discard).await?.buried)
    }

    /// Appends dead letters again, each at the end of its key, in their old order, with their old
    /// ids. Returns their number.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::StoreErrorKind::Invalid) if the database refuses some of them, because
    /// they are no messages or break a check. All others were requeued. The error says how many,
    /// and names the refused ones with column and rule. They stay dead letters.
    async fn requeue(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.append_again(Archive::DeadLetters, filter).await
    }

    /// Appends delivered messages of the history again, each at the end of its key, in their old
    /// order, with their old ids. An inbox that still knows the id drops the message; a new
    /// consumer handles it. Returns their number.
    ///
    /// The messages stay in the history. To replay more than one call can take, skip what earlier
    /// calls replayed, until a call returns 0. `before` excludes messages delivered in the
    /// meantime, and with them the replayed ones. `since` excludes messages that expire and are
    /// removed in the meantime:
    ///
    /// ```
    /// # extern crate outbox_contract as outbox;
    /// # use outbox::{Admin, StoreError, Timestamp};
    /// # use outbox::admin::Filter;
    /// # async fn replay(store: impl Admin, since: Timestamp, before: Timestamp) -> Result<(), StoreError> {
    /// let mut filter = Filter { since: Some(since), before: Some(before), ..Filter::all_routes() };
    /// loop {
    ///     let replayed = store.replay(&filter).await?;
    ///     if replayed == 0 {
    ///         break;
    ///     }
    ///     filter.offset += usize::try_from(replayed).unwrap_or(usize::MAX);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    async fn replay(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.append_again(Archive::History, filter).await
    }

    /// Pauses publishing of a route, or of one of its topics, on every relay, from the relay's next
    /// heartbeat on. No message is lost, and no attempt is counted.
    async fn pause(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        self.set_paused(route, topic, true).await
    }

    /// Ends a pause. Resuming a topic does not end a pause of the whole route.
    async fn resume(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        self.set_paused(route, topic, false).await
    }
}
