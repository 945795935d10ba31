//! Rows: from columns to messages.
//!
//! Any program can write rows, so nothing in them is trusted. Reading strictly says what is wrong with a row that is not a message;
//! reading leniently makes something presentable of it, for the dead letter that it becomes.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;

use outbox_contract::fetch::{RowId, Stored, Waiting};
use outbox_contract::{
    Bytes, Headers, Key, Message, MessageId, NameError, Position, Stripe, StripeId, Timestamp, Topic,
};
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use uuid::Uuid;

/// A row that is not a message, and why.
#[derive(Debug)]
pub(crate) struct NotAMessage {
    /// The row, under names that can be names: control characters are replaced, long ones cut.
    pub(crate) waiting: Waiting,
    /// What is wrong with it.
    pub(crate) reason: String,
}

/// Where the columns of a message stand in every statement that reads any: names are looked up once for each column of each row, places
/// are not.
#[derive(Clone, Copy)]
pub(crate) enum Column {
    Position,
    Id,
    Stripe,
    Number,
    Topic,
    Key,
    EventType,
    SchemaVersion,
    ContentType,
    Headers,
    Payload,
    OccurredAt,
    AppendedAt,
}

impl Column {
    /// How many there are: what a statement adds of its own stands behind them.
    pub(crate) const COUNT: usize = Self::AppendedAt as usize + 1;

    const fn name(self) -> &'static str {
        match self {
            Self::Position => "position",
            Self::Id => "id",
            Self::Stripe => "stripe",
            Self::Number => "number",
            Self::Topic => "topic",
            Self::Key => "key",
            Self::EventType => "event_type",
            Self::SchemaVersion => "schema_version",
            Self::ContentType => "content_type",
            Self::Headers => "headers",
            Self::Payload => "payload",
            Self::OccurredAt => "occurred_at",
            Self::AppendedAt => "appended_at",
        }
    }
}

/// A row with the columns of a message, in their places, and content that may have come apart from it.
pub(crate) struct Raw<'r> {
    row: &'r MySqlRow,
    /// Headers and payload, where they are not columns of the row.
    content: Option<(&'r [u8], &'r [u8])>,
}

impl<'r> Raw<'r> {
    /// A row with all of its content.
    pub(crate) const fn new(row: &'r MySqlRow) -> Self {
        Self { row, content: None }
    }

    /// A row whose headers and payload were read apart.
    pub(crate) const fn with_content(row: &'r MySqlRow, headers: &'r [u8], payload: &'r [u8]) -> Self {
        Self { row, content: Some((headers, payload)) }
    }

    /// Bytes of a column of text or bytes; null is none.
    fn bytes(&self, column: Column) -> Option<&'r [u8]> {
        match (self.content, column) {
            (Some((headers, _)), Column::Headers) => Some(headers),
            (Some((_, payload)), Column::Payload) => Some(payload),
            _ => self.row.try_get_unchecked::<Option<&'r [u8]>, _>(column as usize).ok().flatten(),
        }
    }

    fn integer(&self, column: Column) -> i64 {
        self.row.try_get_unchecked(column as usize).unwrap_or_default()
    }

    /// Where the row stands.
    pub(crate) fn position(&self) -> Position {
        Position(self.integer(Column::Position))
    }

    /// Its place in its stripe, as stored.
    fn stripe(&self) -> Stripe {
        let stripe = u16::try_from(self.integer(Column::Stripe)).unwrap_or_default();
        Stripe { stripe: StripeId(stripe), number: self.integer(Column::Number) }
    }

    fn text(&self, column: Column) -> Result<&'r str, String> {
        let bytes = self.bytes(column).ok_or_else(|| format!("its {} is null", column.name()))?;
        std::str::from_utf8(bytes).map_err(|error| format!("its {} is not UTF-8: {error}", column.name()))
    }

    fn id(&self) -> Option<MessageId> {
        Uuid::from_slice(self.bytes(Column::Id)?).ok().map(MessageId::from_uuid)
    }

    /// The message; or why the row is none.
    pub(crate) fn message(&self) -> Result<Arc<Stored>, Box<NotAMessage>> {
        self.strict().map_err(|reason| Box::new(NotAMessage { waiting: self.waiting(), reason }))
    }

    fn strict(&self) -> Result<Arc<Stored>, String> {
        let id = self.id().ok_or("its id is not a UUID of 16 bytes")?;
        let topic = Topic::new(self.text(Column::Topic)?).map_err(shown)?;
        let mut message = Message::new(topic, self.text(Column::EventType)?).with_id(id);
        message.key = self
            .bytes(Column::Key)
            .map(|_| self.text(Column::Key))
            .transpose()?
            .map(named_key)
            .transpose()?;
        let content_type = self.text(Column::ContentType)?;
        if *message.content_type != *content_type {
            message.content_type = content_type.into();
        }
        let version = self.integer(Column::SchemaVersion);
        message.schema_version = u32::try_from(version)
            .map_err(|_| format!("its schema_version is {version}; versions count from 1"))?;
        message.headers = Headers::from_bytes(self.bytes(Column::Headers).unwrap_or_default())
            .map_err(|error| format!("its headers are not a JSON object of strings: {error}"))?;
        message.payload = Bytes::copy_from_slice(self.bytes(Column::Payload).unwrap_or_default());
        message.occurred_at = Timestamp::from_micros(self.integer(Column::OccurredAt));
        message.validate().map_err(shown)?;

        let stripe = self.stripe();
        let right = StripeId::of(message.topic.as_str(), message.order_key().as_str());
        if stripe.stripe != right {
            return Err(format!(
                "its stripe is {}, but its topic and key give {}; compute the first ten bits of SHA-256 over topic, NUL and key",
                stripe.stripe.0, right.0
            ));
        }
        let appended_at = Timestamp::from_micros(self.integer(Column::AppendedAt));
        let mut stored = Stored::new(self.position(), appended_at, message);
        stored.stripe = Some(stripe);
        Ok(Arc::new(stored))
    }

    /// The row without its content, under names that can be names.
    pub(crate) fn waiting(&self) -> Waiting {
        let (message, stripe) = (self.names(), self.stripe());
        Waiting {
            at: RowId { position: self.position(), id: message.id },
            key: message.key_id(),
            bucket: stripe.stripe.bucket(),
            stripe: Some(stripe),
        }
    }

    /// What can be shown of a row, message or not.
    pub(crate) fn presentable(&self) -> Arc<Stored> {
        let mut message = self.names();
        message.content_type = self.presentable_text(Column::ContentType, Message::MOST_TYPE_BYTES).into();
        message.schema_version = u32::try_from(self.integer(Column::SchemaVersion)).unwrap_or(1);
        message.headers =
            Headers::from_bytes(self.bytes(Column::Headers).unwrap_or_default()).unwrap_or_default();
        message.payload = Bytes::copy_from_slice(self.bytes(Column::Payload).unwrap_or_default());
        message.occurred_at = Timestamp::from_micros(self.integer(Column::OccurredAt));
        let appended_at = Timestamp::from_micros(self.integer(Column::AppendedAt));
        let mut stored = Stored::new(self.position(), appended_at, message);
        let stripe = self.stripe();
        (stored.bucket, stored.stripe) = (stripe.stripe.bucket(), Some(stripe));
        Arc::new(stored)
    }

    fn names(&self) -> Message {
        let topic = named(self.presentable_text(Column::Topic, Topic::MOST_BYTES), Topic::new);
        let event_type = self.presentable_text(Column::EventType, Message::MOST_TYPE_BYTES);
        let mut message =
            Message::new(topic, event_type).with_id(self.id().unwrap_or(MessageId::from_uuid(Uuid::nil())));
        if self.bytes(Column::Key).is_some() {
            message.key = Some(named(self.presentable_text(Column::Key, Key::MOST_BYTES), Key::new));
        }
        message
    }

    fn presentable_text(&self, column: Column, most: usize) -> String {
        let text: Cow<'_, str> = String::from_utf8_lossy(self.bytes(column).unwrap_or_default());
        let mut text: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        if text.is_empty() {
            text.push('?');
        }
        let end = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
        text
    }
}

fn shown(error: impl Display) -> String {
    error.to_string()
}

fn named_key(key: &str) -> Result<Key, String> {
    Key::new(key).map_err(shown)
}

fn named<T>(text: String, new: impl Fn(String) -> Result<T, NameError>) -> T {
    new(text).unwrap_or_else(|_| unreachable!("not empty, cut to length, without control characters"))
}
