//! Rows: from columns to messages.
//!
//! Any program can write rows, so nothing in them is trusted: see [`RawMessage`].

use std::sync::Arc;

use outbox_contract::admin::Edit;
use outbox_contract::backend::{Position, RawMessage, RowId, Stored, Stripe, StripeId, Waiting};
use outbox_contract::{Message, Timestamp};
use sqlx::Row;
use sqlx::mysql::MySqlRow;

/// A row that is not a message, with the reason.
#[derive(Debug)]
pub(crate) struct NotAMessage {
    /// The row, under names that can be names: control characters are replaced, long ones cut.
    pub(crate) waiting: Waiting,
    /// The error in it.
    pub(crate) reason: String,
}

/// Index of a message's columns in every statement that reads messages: names are looked up once for each column of each row, places
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
    /// Number of these columns: a statement's additional columns follow them.
    pub(crate) const COUNT: usize = Self::AppendedAt as usize + 1;
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

    /// Returns the position of the row.
    pub(crate) fn position(&self) -> Position {
        Position(self.integer(Column::Position))
    }

    /// Its place in its stripe, as stored.
    fn stripe(&self) -> Stripe {
        let stripe = u16::try_from(self.integer(Column::Stripe)).unwrap_or_default();
        Stripe { stripe: StripeId(stripe), number: self.integer(Column::Number) }
    }

    fn raw(&self) -> RawMessage<'r> {
        RawMessage {
            id: self.bytes(Column::Id),
            topic: self.bytes(Column::Topic),
            key: self.bytes(Column::Key),
            event_type: self.bytes(Column::EventType),
            schema_version: self.integer(Column::SchemaVersion),
            content_type: self.bytes(Column::ContentType),
            headers: self.bytes(Column::Headers),
            payload: self.bytes(Column::Payload),
            occurred_at: self.integer(Column::OccurredAt),
        }
    }

    /// The message; or why the row is none.
    pub(crate) fn message(&self) -> Result<Arc<Stored>, Box<NotAMessage>> {
        self.strict().map_err(|reason| Box::new(NotAMessage { waiting: self.waiting(), reason }))
    }

    fn strict(&self) -> Result<Arc<Stored>, String> {
        let message = self.raw().message()?;
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
        let (message, stripe) = (self.raw().names(), self.stripe());
        Waiting {
            at: RowId { position: self.position(), id: message.id },
            key: message.key_id(),
            bucket: stripe.stripe.bucket(),
            stripe: Some(stripe),
        }
    }

    /// The message that the row becomes with corrections; or what is still wrong.
    pub(crate) fn edited(&self, edit: &Edit) -> Result<Message, String> {
        edit.of_row(self.raw())
    }

    /// Returns the presentable part of a row, message or not.
    pub(crate) fn presentable(&self) -> Arc<Stored> {
        let appended_at = Timestamp::from_micros(self.integer(Column::AppendedAt));
        let mut stored = Stored::new(self.position(), appended_at, self.raw().presentable());
        let stripe = self.stripe();
        (stored.bucket, stored.stripe) = (stripe.stripe.bucket(), Some(stripe));
        Arc::new(stored)
    }
}
