//! The verbs of operators: look at what failed, and decide.

use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::Timestamp;
pub use crate::edit::Edit;
use crate::error::StoreError;
use crate::failure::Failure;
use crate::fetch::Stored;
use crate::id::MessageId;
use crate::message::Message;
use crate::name::{Key, KeyId, Route, Topic};

/// Which of many are meant. The default: all, **of every route**: what waits or died in the inboxes of this database (routes `inbox/…`) is among it.
/// To mean what a relay sends, set `route`:
///
/// ```
/// use outbox_contract::{Route, Topic, admin::Filter};
///
/// let topic = Some(Topic::new("invoices")?);
/// let sent = Filter { route: Some(Route::default()), topic, ..Filter::default() };
/// # Ok::<(), outbox_contract::NameError>(())
/// ```
///
/// ```
/// use outbox_contract::admin::{Filter, MOST_PER_CALL};
///
/// // Nothing was selected: no message is meant, where no list at all would mean whichever.
/// let none = Filter { ids: Some(Vec::new()), ..Filter::default() };
/// assert_eq!((none.limit(), Filter::default().limit()), (0, MOST_PER_CALL));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only of this route. None: of all, those of inboxes included.
    pub route: Option<Route>,
    /// Only of this topic.
    pub topic: Option<Topic>,
    /// Only of this key.
    pub key: Option<Key>,
    /// Only these messages; of an empty list, none. None: whichever.
    pub ids: Option<Vec<MessageId>>,
    /// Only what was set aside, delivered, or for scheduled messages is due, at or after this instant.
    pub since: Option<Timestamp>,
    /// Only what was set aside, delivered, or is due, before this instant.
    pub before: Option<Timestamp>,
    /// At most this many, the oldest first; of 0, none. None, or more than that: [`MOST_PER_CALL`].
    pub limit: Option<usize>,
    /// Pass over this many first: for browsing page by page, until a page is empty (a page of fewer than `limit` may have ended for its size,
    /// [`MOST_BYTES_PER_CALL`]), and for [`replay`](Admin::replay). `requeue` and `purge` take away what they
    /// found, so they begin with the oldest that is left, whatever it says here.
    pub offset: usize,
}

/// The most that one call looks at or changes.
pub const MOST_PER_CALL: usize = 1_000;

/// Behind so many bytes of messages a page ends, whatever its limit: no call takes more memory than this and one message. The first message of a page always comes.
pub const MOST_BYTES_PER_CALL: usize = 64 * 1_024 * 1_024;

impl Filter {
    /// For authors of stores: the first of what is meant, from the beginning.
    #[must_use]
    pub fn first(&self) -> Self {
        Self { limit: Some(self.limit().min(1)), offset: 0, ..self.clone() }
    }

    /// The limit in force: at most [`MOST_PER_CALL`], and 0 where no message is meant.
    #[must_use]
    pub fn limit(&self) -> usize {
        let most = if self.ids.as_ref().is_some_and(Vec::is_empty) { 0 } else { MOST_PER_CALL };
        self.limit.unwrap_or(most).min(most)
    }
}

/// A failing key, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailingKey {
    /// The route.
    pub route: Route,
    /// The key.
    pub key: KeyId,
    /// Whether it waits for an operator; else it is tried again by itself.
    pub held: bool,
    /// When it is tried again, where it is not held.
    pub next_attempt_at: Option<Timestamp>,
    /// How often its first message was tried.
    pub attempts: u32,
    /// How that failed the first time.
    pub first_failure: Option<Failure>,
    /// How that failed last.
    pub last_failure: Option<Failure>,
    /// How many of its messages are parked.
    pub parked: u64,
    /// The first of them.
    pub first: Option<MessageId>,
    /// Since when the key has been failing or held.
    pub since: Timestamp,
}

impl FailingKey {
    /// A failing key of which nothing is known but its name and since when.
    #[must_use]
    pub fn new(route: Route, key: KeyId, since: Timestamp) -> Self {
        Self {
            route,
            key,
            held: false,
            next_attempt_at: None,
            attempts: 0,
            first_failure: None,
            last_failure: None,
            parked: 0,
            first: None,
            since,
        }
    }
}

/// A message that exhausted its policy, or was skipped or discarded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// The route.
    pub route: Route,
    /// The message as it stood.
    pub stored: Arc<Stored>,
    /// Why, in a word: `exhausted`, `rejected`, `malformed`, `skipped`, `discarded`.
    pub reason: String,
    /// How often it was tried.
    pub attempts: u32,
    /// How that failed the first time.
    pub first_failure: Option<Failure>,
    /// How that failed last.
    pub last_failure: Option<Failure>,
    /// When it became a dead letter, by the database's clock.
    pub died_at: Timestamp,
}

impl DeadLetter {
    /// A dead letter without a record of attempts.
    #[must_use]
    pub fn new(route: Route, stored: Arc<Stored>, reason: impl Into<String>, died_at: Timestamp) -> Self {
        let reason = reason.into();
        Self { route, stored, reason, attempts: 0, first_failure: None, last_failure: None, died_at }
    }
}

/// A message that was delivered, where a history is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Past {
    /// The route.
    pub route: Route,
    /// The message, with the position that it had.
    pub message: Arc<Stored>,
    /// When its delivery was settled, by the database's clock.
    pub delivered_at: Timestamp,
}

impl Past {
    /// A message that was delivered.
    #[must_use]
    pub fn new(route: Route, message: Arc<Stored>, delivered_at: Timestamp) -> Self {
        Self { route, message, delivered_at }
    }
}

/// What operators can do. Every store has it.
///
/// No verb needs a lease: those on keys change the key's row and what is parked behind it, under the row's lock, and make the next
/// version of it, so that a relay that works from an older version is refused and reads again. Verbs are durable when they return; a
/// cancelled or failed one may have happened. All may be called at any time, by anybody, again.
#[async_trait]
pub trait Admin: Send + Sync + 'static {
    /// Failing and held keys, the longest failing first.
    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError>;

    /// What is parked behind failing keys, in the order in which it will go out, key by key.
    async fn parked(&self, filter: &Filter) -> Result<Vec<Arc<Stored>>, StoreError>;

    /// Dead letters, the oldest first.
    async fn dead_letters(&self, filter: &Filter) -> Result<Vec<DeadLetter>, StoreError>;

    /// Delivered messages, the oldest first. Empty where no history is kept.
    async fn history(&self, filter: &Filter) -> Result<Vec<Past>, StoreError>;

    /// Holds a key: from now on its messages are parked until an operator releases it. What a relay has in flight of it may still go out.
    async fn hold(&self, route: &Route, key: &KeyId) -> Result<(), StoreError>;

    /// Lets a held or failing key try again now, its attempts counted from 0.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::StoreErrorKind::Invalid) for a key that is neither held nor failing; so for `skip` and `discard`.
    async fn release(&self, route: &Route, key: &KeyId) -> Result<(), StoreError>;

    /// Makes the first parked message of a key a dead letter (`skipped`); the key then tries the next one now. None: nothing is parked.
    async fn skip(&self, route: &Route, key: &KeyId) -> Result<Option<MessageId>, StoreError>;

    /// Makes every parked message of a key a dead letter (`discarded`) and lets the key flow again. Says how many.
    async fn discard(&self, route: &Route, key: &KeyId) -> Result<u64, StoreError>;

    /// Appends dead letters again, each at the end of its key, in their old order, with their old ids. Says how many.
    async fn requeue(&self, filter: &Filter) -> Result<u64, StoreError>;

    /// Corrects the oldest dead letter that a filter means, and appends it as [`requeue`](Self::requeue) does: at the end of the key that it has now. Its id stays,
    /// unless the correction has another. Says which message was appended; none: the filter means no dead letter.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::StoreErrorKind::Invalid) with what is still wrong, column and rule, where the result is no message; the dead letter then stays as it was.
    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError>;

    /// Removes dead letters for good. Says how many. Nothing else removes them: whoever keeps none for ever calls this now and then, with `before`.
    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError>;

    /// Appends delivered messages of the history again, each at the end of its key, in their old order, with their old ids: an inbox that
    /// still knows the id drops it, a new consumer handles it. Says how many.
    ///
    /// They stay in the history. So to replay more than one call takes, pass over what the calls before took, until one says 0. `before` keeps
    /// out what is delivered meanwhile, and with it what was replayed; `since` what is removed meanwhile because its time is over:
    ///
    /// ```
    /// # use outbox_contract::{Admin, StoreError, Timestamp, admin::Filter};
    /// # async fn replay(store: impl Admin, since: Timestamp, before: Timestamp) -> Result<(), StoreError> {
    /// let mut filter = Filter { since: Some(since), before: Some(before), ..Filter::default() };
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
    async fn replay(&self, filter: &Filter) -> Result<u64, StoreError>;

    /// Stops publishing of a route, or of one topic of it, on every relay, from their next heartbeat on. Nothing is lost or counted.
    async fn pause(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError>;

    /// Takes a pause back. One of a topic does not end one of the route.
    async fn resume(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError>;

    /// Scheduled messages that are not due yet, the next due first, with the instant at which each is due.
    async fn scheduled(&self, filter: &Filter) -> Result<Vec<(Timestamp, Message)>, StoreError>;

    /// Removes scheduled messages before they are due. Says how many were removed.
    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError>;
}
