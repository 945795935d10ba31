//! Messages that a consumer has handled, as operators select them.

use crate::clock::Timestamp;
use crate::name::{self, Consumer, Key, NameError, Topic};

/// Selection of the messages that one consumer has handled, for
/// [`count_handled`](crate::admin::Admin::count_handled) and
/// [`forget`](crate::admin::Admin::forget).
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use std::time::Duration;
/// use outbox::Timestamp;
/// use outbox::admin::HandledFilter;
///
/// let since_yesterday = HandledFilter::of("invoices")?
///     .with_topic("orders")?
///     .with_since(Timestamp::parse("2026-01-31T00:00:00Z").expect("a valid time"));
/// # Ok::<(), outbox::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandledFilter {
    /// The consumer.
    pub consumer: Consumer,
    /// Only messages of this topic.
    pub topic: Option<Topic>,
    /// Only messages of this key.
    pub key: Option<Key>,
    /// Only messages handled at or after this instant, by the database's clock.
    pub since: Option<Timestamp>,
    /// Only messages handled before this instant, by the database's clock.
    pub before: Option<Timestamp>,
}

impl HandledFilter {
    /// Selects every message that this consumer has handled and whose id is still kept.
    ///
    /// # Errors
    ///
    /// Describes an invalid name. So do [`with_topic`](Self::with_topic) and
    /// [`with_key`](Self::with_key).
    pub fn of(consumer: impl TryInto<Consumer, Error: Into<NameError>>) -> Result<Self, NameError> {
        let consumer = name::parse(consumer)?;
        Ok(Self { consumer, topic: None, key: None, since: None, before: None })
    }

    /// Selects only messages of this topic.
    pub fn with_topic(
        mut self,
        topic: impl TryInto<Topic, Error: Into<NameError>>,
    ) -> Result<Self, NameError> {
        self.topic = Some(name::parse(topic)?);
        Ok(self)
    }

    /// Selects only messages of this key.
    pub fn with_key(mut self, key: impl TryInto<Key, Error: Into<NameError>>) -> Result<Self, NameError> {
        self.key = Some(name::parse(key)?);
        Ok(self)
    }

    /// Selects only messages handled at or after this instant.
    #[must_use]
    pub const fn with_since(mut self, since: Timestamp) -> Self {
        self.since = Some(since);
        self
    }

    /// Selects only messages handled before this instant.
    #[must_use]
    pub const fn with_before(mut self, before: Timestamp) -> Self {
        self.before = Some(before);
        self
    }

    /// Returns true if it selects a message of its consumer. For authors of stores.
    #[must_use]
    pub fn selects(&self, topic: &Topic, key: Option<&Key>, handled_at: Timestamp) -> bool {
        self.topic.as_ref().is_none_or(|wanted| wanted == topic)
            && self.key.as_ref().is_none_or(|wanted| Some(wanted) == key)
            && self.since.is_none_or(|since| since <= handled_at)
            && self.before.is_none_or(|before| handled_at < before)
    }
}
