//! The message: written with the transaction, relayed, and handled once.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;

use crate::backend::{Bucket, cloudevents};
use crate::clock::Timestamp;
use crate::codec::CodecError;
use crate::failure::Rejection;
use crate::headers::Headers;
use crate::id::MessageId;
use crate::name::{self, Key, KeyId, NameError, Route, Topic};

/// One message: an event in its stored and sent form.
///
/// Cheap to clone: clones share texts and payload.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::Message;
///
/// let message = Message::new("orders", "order.placed")?
///     .with_key("order-1")?
///     .with_payload(r#"{"total_cents":4200}"#)
///     .with_header("tenant", "acme")?;
/// message.validate()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Permanent identifier.
    pub id: MessageId,
    /// Subject of the message, and the name under which consumers find it.
    pub topic: Topic,
    /// Ordering key. `None`: the message is unordered.
    pub key: Option<Key>,
    /// Stable wire name of the event's type, such as `order.placed`; never a Rust path.
    pub event_type: Arc<str>,
    /// Version of the payload's schema, from 1.
    pub schema_version: u32,
    /// Media type of the payload, such as `application/json`.
    pub content_type: Arc<str>,
    /// Named text values. They include the W3C trace context, under `traceparent`.
    pub headers: Headers,
    /// The event, encoded.
    pub payload: Bytes,
    /// Time at which the reported fact happened, by the clock of the reporting program.
    pub occurred_at: Timestamp,
}

impl Message {
    /// Maximum size of a payload, in bytes: 16 MiB, the document size of MongoDB, less a margin.
    /// Brokers accept less by default (Kafka 1 MiB).
    pub const MAX_PAYLOAD_BYTES: usize = 15 * 1024 * 1024;
    /// Maximum size of an event type's name, in bytes.
    pub const MAX_TYPE_BYTES: usize = 255;

    /// Creates a message without key, headers and payload: occurred now, schema version 1,
    /// `application/json`. The topic is text or a [`Topic`].
    ///
    /// # Errors
    ///
    /// Describes an invalid topic. The event type is checked by [`validate`](Self::validate).
    pub fn new(
        topic: impl TryInto<Topic, Error: Into<NameError>>,
        event_type: impl Into<Arc<str>>,
    ) -> Result<Self, NameError> {
        let topic = name::parse(topic)?;
        Ok(Self { occurred_at: Timestamp::now(), ..Self::of(MessageId::new(), topic, event_type) })
    }

    /// Recreates a message with its identifier: like [`new`](Self::new), but generates neither id
    /// nor time. It occurred at the epoch until that is set. For authors of stores and transports.
    pub fn of(id: MessageId, topic: Topic, event_type: impl Into<Arc<str>>) -> Self {
        static JSON: LazyLock<Arc<str>> = LazyLock::new(|| "application/json".into());
        Self {
            id,
            topic,
            key: None,
            event_type: event_type.into(),
            schema_version: 1,
            content_type: Arc::clone(&JSON),
            headers: Headers::new(),
            payload: Bytes::new(),
            occurred_at: Timestamp::default(),
        }
    }

    /// Sets the key.
    ///
    /// # Errors
    ///
    /// Describes a key that is empty, too long, or has control characters.
    pub fn with_key(mut self, key: impl AsRef<str>) -> Result<Self, NameError> {
        self.key = Some(Key::new(key)?);
        Ok(self)
    }

    /// Sets the payload.
    #[must_use]
    pub fn with_payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Sets the identifier.
    #[must_use]
    pub fn with_id(mut self, id: MessageId) -> Self {
        self.id = id;
        self
    }

    /// Sets the media type of the payload.
    #[must_use]
    pub fn with_content_type(mut self, content_type: impl Into<Arc<str>>) -> Self {
        self.content_type = content_type.into();
        self
    }

    /// Sets the version of the payload's schema.
    #[must_use]
    pub fn with_schema_version(mut self, version: u32) -> Self {
        self.schema_version = version;
        self
    }

    /// Sets the time of occurrence.
    #[must_use]
    pub fn with_occurred_at(mut self, at: Timestamp) -> Self {
        self.occurred_at = at;
        self
    }

    /// Sets one header.
    ///
    /// # Errors
    ///
    /// Describes an invalid name or value, or a name that the wire format reserves (see
    /// [`Headers`]):
    ///
    /// ```
    /// # extern crate outbox_contract as outbox;
    /// use outbox::Message;
    ///
    /// let message = Message::new("orders", "order.placed")?;
    /// assert!(message.clone().with_header("ce_id", "1").is_err());
    /// assert!(message.with_header("Content-Type", "text/plain").is_err(), "that is with_content_type");
    /// # Ok::<(), outbox::NameError>(())
    /// ```
    pub fn with_header(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, NameError> {
        let name = name.into();
        if cloudevents::is_reserved(&name) {
            return Err(name::reserved("header name", &name));
        }
        self.headers.insert(name, value)?;
        Ok(self)
    }

    /// Returns the unit of ordering: topic and key, or the message's own identifier if it has no
    /// key.
    #[must_use]
    pub fn key_id(&self) -> KeyId {
        KeyId { topic: self.topic.clone(), key: self.order_key() }
    }

    /// Returns the key, or the identifier of a message without one. `bucket` is computed from it.
    #[must_use]
    pub fn order_key(&self) -> Key {
        self.key.clone().unwrap_or_else(|| {
            let mut text = uuid::Uuid::encode_buffer();
            let text: &str = self.id.as_uuid().as_hyphenated().encode_lower(&mut text);
            Key::new(text).unwrap_or_else(|_| unreachable!("a hyphenated UUID is a valid key"))
        })
    }

    /// Returns the bucket of this message.
    #[must_use]
    pub fn bucket(&self) -> Bucket {
        Bucket::of(self.topic.as_str(), self.order_key().as_str())
    }

    /// Returns the approximate memory use of this message, in bytes. The limit on bytes in flight
    /// counts these.
    #[must_use]
    pub fn bytes(&self) -> usize {
        const FIXED: usize = 256;
        let key = self.key.as_ref().map_or(0, |key| key.as_str().len());
        FIXED
            + self.topic.as_str().len()
            + key
            + self.event_type.len()
            + self.headers.bytes()
            + self.payload.len()
    }

    /// Checks the rules that the types do not enforce: names of types and media, headers, size.
    /// Every store's `append` calls it.
    ///
    /// # Errors
    ///
    /// The first fault, with its value and the remedy.
    pub fn validate(&self) -> Result<(), MessageError> {
        name::check("event type", &self.event_type, Self::MAX_TYPE_BYTES)?;
        name::check("content type", &self.content_type, Self::MAX_TYPE_BYTES)?;
        self.headers.validate()?;
        if self.schema_version == 0 {
            return Err(MessageError::SchemaVersion);
        }
        if !self.occurred_at.is_printable() {
            return Err(MessageError::OccurredAt(self.occurred_at));
        }
        if self.payload.len() > Self::MAX_PAYLOAD_BYTES {
            return Err(MessageError::TooLarge { bytes: self.payload.len(), most: Self::MAX_PAYLOAD_BYTES });
        }
        Ok(())
    }
}

/// Shows everything except the payload and the values of headers: they are the user's, and may be
/// secret.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &format_args!("{}", self.id))
            .field("topic", &self.topic.as_str())
            .field("key", &self.key.as_ref().map(Key::as_str))
            .field("event_type", &self.event_type)
            .field("schema_version", &self.schema_version)
            .field("content_type", &self.content_type)
            .field("headers", &self.headers)
            .field("payload", &format_args!("{} bytes", self.payload.len()))
            .field("occurred_at", &format_args!("{}", self.occurred_at))
            .finish()
    }
}

/// A message to append: with its route and its due time.
///
/// To send a message by two routes, append it twice, with one `Outgoing` each.
///
/// ```
/// # mod outbox { pub use outbox_contract::*; pub mod message { pub use outbox_contract::*; } }
/// use std::time::Duration;
/// use outbox::Message;
/// use outbox::message::Outgoing;
///
/// let reminder = Message::new("invoices", "reminder.due")?.with_key("i-1")?;
/// let outgoing = Outgoing::from(reminder).after(Duration::from_secs(14 * 86_400));
/// # Ok::<(), outbox::NameError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outgoing {
    /// The message.
    pub message: Message,
    /// The route that delivers it.
    pub route: Route,
    /// Time at which it joins its key. `None`: immediately, in commit order. The store appends a
    /// scheduled message when it is due, behind everything committed before.
    pub due: Option<DueTime>,
}

/// Time at which a scheduled message is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DueTime {
    /// At this instant, which the database compares with its own clock.
    At(Timestamp),
    /// This long after the append. The store adds it to the **database's** clock, so the sender's
    /// clock does not matter.
    After(Duration),
}

impl DueTime {
    /// Returns the instant, given the database's clock at the append. For authors of stores.
    #[must_use]
    pub fn at(self, database_now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::After(delay) => database_now.plus(delay),
        }
    }

    /// Returns this due time as a number and true if the database's clock has to be added to it.
    /// Both in microseconds; the sum fits. For stores whose database adds.
    #[must_use]
    pub fn as_micros(self) -> (i64, bool) {
        match self {
            Self::At(at) => (at.as_micros(), false),
            Self::After(delay) => {
                (i64::try_from(delay.as_micros()).unwrap_or(i64::MAX).min(MAX_DELAY_MICROS), true)
            }
        }
    }
}

/// Longest delay that a database adds to its clock: more than 100,000 years.
const MAX_DELAY_MICROS: i64 = i64::MAX / 2;

impl Outgoing {
    /// Sends the message by a route other than `default`.
    #[must_use]
    pub fn by(mut self, route: Route) -> Self {
        self.route = route;
        self
    }

    /// Sends the message no earlier than this time. Replaces another due time.
    #[must_use]
    pub fn due_at(mut self, due_at: Timestamp) -> Self {
        self.due = Some(DueTime::At(due_at));
        self
    }

    /// Sends the message no earlier than this long after its append, by the database's clock.
    /// Replaces another due time.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.due = Some(DueTime::After(delay));
        self
    }
}

impl From<Message> for Outgoing {
    fn from(message: Message) -> Self {
        Self { message, route: Route::default(), due: None }
    }
}

/// Reason why a message is invalid.
#[derive(Debug)]
#[non_exhaustive]
pub enum MessageError {
    /// An invalid topic, key, type or header.
    Name(NameError),
    /// The payload exceeds the library's limit; a broker's limit may be lower.
    TooLarge {
        /// Actual size.
        bytes: usize,
        /// Maximum size.
        most: usize,
    },
    /// The schema version is 0.
    SchemaVersion,
    /// The message occurred outside the years 0 to 9999, so no consumer could parse the time on the
    /// wire.
    OccurredAt(Timestamp),
    /// The options name an instant and a delay.
    TwoDueTimes {
        /// The instant.
        due_at: Timestamp,
        /// The delay.
        after: Duration,
    },
    /// The event did not encode.
    Codec(CodecError),
    /// The transport can never carry it.
    Rejected(Rejection),
    /// The event has no topic: it is only for the handlers of a unit of work.
    Local {
        /// Name of its type.
        event_type: &'static str,
    },
}

impl MessageError {
    /// Returns the stable code of this error, as the book's page on errors lists it.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Name(error) => error.code(),
            Self::TooLarge { .. } => "OBX-MESSAGE-TOO-LARGE",
            Self::SchemaVersion => "OBX-MESSAGE-SCHEMA-VERSION",
            Self::OccurredAt(_) => "OBX-MESSAGE-TIME",
            Self::TwoDueTimes { .. } => "OBX-MESSAGE-DUE",
            Self::Codec(_) => "OBX-MESSAGE-CODEC",
            Self::Rejected(_) => "OBX-MESSAGE-REJECTED",
            Self::Local { .. } => "OBX-MESSAGE-LOCAL",
        }
    }
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => error.fmt(f),
            Self::TooLarge { bytes, most } => write!(
                f,
                "the payload has {bytes} bytes, over the limit of {most}; store the data elsewhere and send a reference"
            ),
            Self::SchemaVersion => f.write_str("the schema version is 0; versions count from 1"),
            Self::OccurredAt(at) => write!(
                f,
                "the time of occurrence is {} microseconds after 1970, outside the years 0 to 9999; check its unit",
                at.as_micros()
            ),
            Self::TwoDueTimes { due_at, after } => write!(
                f,
                "the message is due at {due_at} and {after:?} after its append; set either due_at or after, not both"
            ),
            Self::Codec(error) => error.fmt(f),
            Self::Rejected(error) => error.fmt(f),
            Self::Local { event_type } => write!(
                f,
                "the event {event_type} is local and can't be sent; give its type a topic, or publish it in a unit of work"
            ),
        }
    }
}

impl std::error::Error for MessageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Name(error) => Some(error),
            Self::Codec(error) => Some(error),
            Self::Rejected(error) => Some(error),
            Self::TooLarge { .. }
            | Self::SchemaVersion
            | Self::OccurredAt(_)
            | Self::TwoDueTimes { .. }
            | Self::Local { .. } => None,
        }
    }
}

impl From<NameError> for MessageError {
    fn from(error: NameError) -> Self {
        Self::Name(error)
    }
}

impl From<CodecError> for MessageError {
    fn from(error: CodecError) -> Self {
        Self::Codec(error)
    }
}
