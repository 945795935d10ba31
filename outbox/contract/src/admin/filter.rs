//! A selection of messages or keys.

#[cfg(doc)]
use super::{Admin, AdminExt};
use crate::clock::Timestamp;
use crate::id::MessageId;
use crate::name::{self, Key, NameError, Route, Topic};

/// Selection of messages or keys, of one route or, if said so, of all routes.
///
/// The routes of a store include those of its inboxes (`inbox/…`), with messages that wait or died
/// there. An operation on many messages therefore names its route:
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::admin::Filter;
///
/// let sent = Filter::route("default")?.with_topic("invoices")?;
/// # Ok::<(), outbox::NameError>(())
/// ```
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::admin::{Filter, MAX_PER_CALL};
///
/// // An empty list selects no message; a missing list selects every message.
/// let none = Filter { ids: Some(Vec::new()), ..Filter::all_routes() };
/// assert_eq!((none.limit(), Filter::all_routes().limit()), (0, MAX_PER_CALL));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Only this route. `None`: all routes, inboxes included.
    pub route: Option<Route>,
    /// Only of this topic.
    pub topic: Option<Topic>,
    /// Only of this key. That of a message without one is its id.
    pub key: Option<Key>,
    /// Only messages of this [type](crate::Message::event_type). Keys and records of the audit have
    /// none: [`failing_keys`](Admin::failing_keys) and [`audit`](Admin::audit) ignore it.
    pub event_type: Option<String>,
    /// Only these messages. An empty list selects none. `None`: all.
    pub ids: Option<Vec<MessageId>>,
    /// Only messages that were set aside, delivered, (if they wait) appended, or (if scheduled) are
    /// due, at or after this instant.
    pub since: Option<Timestamp>,
    /// Only messages that were set aside, delivered, (if they wait) appended, or (if scheduled) are
    /// due, before this instant.
    pub before: Option<Timestamp>,
    /// Maximum number of results, oldest first; 0 selects none. `None` or a larger value:
    /// [`MAX_PER_CALL`].
    pub limit: Option<usize>,
    /// Number of results to skip, for [`replay`](AdminExt::replay) and for paging. Page until a page
    /// is empty: a page with fewer than `limit` results may have reached its size limit,
    /// [`MAX_BYTES_PER_CALL`]. `requeue` and `purge` remove what they find, so they ignore
    /// `offset` and begin with the oldest that remains.
    pub offset: usize,
    /// True: a list begins at its end, mostly with the newest. What changes something begins with
    /// the oldest whatever this is.
    pub newest: bool,
}

/// Maximum number of items that one call reads or changes.
pub const MAX_PER_CALL: usize = 1_000;

/// Number of message bytes after which a page ends, whatever its limit. A call therefore takes at
/// most this much memory plus one message. A page always contains its first message.
pub const MAX_BYTES_PER_CALL: usize = 64 * 1_024 * 1_024;

impl Filter {
    /// Selects everything of one route: `default` for what relays send,
    /// [`inbox_route`](crate::inbox_route) for what waits or died in an inbox.
    ///
    /// # Errors
    ///
    /// Describes an invalid route.
    pub fn route(route: impl TryInto<Route, Error: Into<NameError>>) -> Result<Self, NameError> {
        let route = name::parse(route)?;
        Ok(Self { route: Some(route), ..Self::all_routes() })
    }

    /// Selects everything of every route, **inboxes included**.
    #[must_use]
    pub const fn all_routes() -> Self {
        Self {
            route: None,
            topic: None,
            key: None,
            event_type: None,
            ids: None,
            since: None,
            before: None,
            limit: None,
            offset: 0,
            newest: false,
        }
    }

    /// Selects only messages of this topic.
    ///
    /// # Errors
    ///
    /// Describes an invalid topic.
    pub fn with_topic(
        mut self,
        topic: impl TryInto<Topic, Error: Into<NameError>>,
    ) -> Result<Self, NameError> {
        self.topic = Some(name::parse(topic)?);
        Ok(self)
    }

    /// Selects only messages of this type.
    #[must_use]
    pub fn with_event_type(mut self, event_type: impl Into<String>) -> Self {
        self.event_type = Some(event_type.into());
        self
    }

    /// Selects only messages that were set aside, delivered, or are due before this instant.
    #[must_use]
    pub const fn with_before(mut self, before: Timestamp) -> Self {
        self.before = Some(before);
        self
    }

    /// Lists from the end: the newest first.
    #[must_use]
    pub const fn with_newest(mut self) -> Self {
        self.newest = true;
        self
    }

    /// The same filter, limited to the first match from the beginning. For authors of stores.
    #[must_use]
    pub fn first(&self) -> Self {
        Self { limit: Some(self.limit().min(1)), offset: 0, ..self.clone() }
    }

    /// Returns the number of waiting messages that a store looks at for this filter. For authors of
    /// stores.
    #[must_use]
    pub fn looked_at(&self) -> usize {
        const LOOKED_AT: usize = 10_000;
        self.offset.saturating_add(self.limit()).max(LOOKED_AT)
    }

    /// Returns the limit in force: at most [`MAX_PER_CALL`], and 0 if the filter selects no
    /// message.
    #[must_use]
    pub fn limit(&self) -> usize {
        let most = if self.ids.as_ref().is_some_and(Vec::is_empty) { 0 } else { MAX_PER_CALL };
        self.limit.unwrap_or(most).min(most)
    }
}
