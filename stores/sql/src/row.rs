//! Rows: from columns to messages.
//!
//! Any program can write rows, so their content is not trusted: see [`RawMessage`].

use std::sync::Arc;

use outbox_contract::admin::Edit;
use outbox_contract::backend::{Bucket, Position, RawMessage, RowId, Stored, Stripe, StripeId, Waiting};
use outbox_contract::{Message, Timestamp};

/// A row that is not a message, with the reason.
#[derive(Debug)]
pub struct NotAMessage {
    /// The row, under valid names: control characters are replaced, long ones cut.
    pub waiting: Waiting,
    /// The error in it.
    pub reason: String,
}

/// The columns of a message, in the order of statements that read messages by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the column of that name")]
pub enum Column {
    Position,
    Id,
    Bucket,
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
    pub const COUNT: usize = Self::AppendedAt as usize + 1;

    /// Returns the name of the column.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Position => "position",
            Self::Id => "id",
            Self::Bucket => "bucket",
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

/// A driver's row with the columns of a message.
pub trait MessageRow<'r>: Copy {
    /// Returns the bytes of a text or binary column; `None` for null.
    fn bytes(self, column: Column) -> Option<&'r [u8]>;

    /// Returns an integer; 0 for null.
    fn integer(self, column: Column) -> i64;

    /// Returns the row's place in its stripe, if the store has stripes.
    #[must_use]
    fn stripe(self) -> Option<Stripe> {
        None
    }
}

/// A row with the columns of a message, and content that may have been read separately.
#[derive(Debug)]
pub struct Raw<'r, R> {
    row: R,
    /// Headers and payload, where they are not columns of the row.
    content: Option<(&'r [u8], &'r [u8])>,
}

impl<'r, R: MessageRow<'r>> Raw<'r, R> {
    /// A row with all of its content.
    #[must_use]
    pub const fn new(row: R) -> Self {
        Self { row, content: None }
    }

    /// A row whose headers and payload were read separately.
    #[must_use]
    pub const fn with_content(row: R, headers: &'r [u8], payload: &'r [u8]) -> Self {
        Self { row, content: Some((headers, payload)) }
    }

    /// Returns the position of the row.
    #[must_use]
    pub fn position(&self) -> Position {
        Position(self.row.integer(Column::Position))
    }

    fn bytes(&self, column: Column) -> Option<&'r [u8]> {
        match (self.content, column) {
            (Some((headers, _)), Column::Headers) => Some(headers),
            (Some((_, payload)), Column::Payload) => Some(payload),
            _ => self.row.bytes(column),
        }
    }

    fn raw(&self) -> RawMessage<'r> {
        let mut row = RawMessage::default();
        row.id = self.bytes(Column::Id);
        row.topic = self.bytes(Column::Topic);
        row.key = self.bytes(Column::Key);
        row.event_type = self.bytes(Column::EventType);
        row.schema_version = self.row.integer(Column::SchemaVersion);
        row.content_type = self.bytes(Column::ContentType);
        row.headers = self.bytes(Column::Headers);
        row.payload = self.bytes(Column::Payload);
        row.occurred_at = self.row.integer(Column::OccurredAt);
        row
    }

    /// Returns the message; or the reason why the row is none. Most rows resemble the one `before`.
    ///
    /// # Errors
    ///
    /// If the row is no message.
    pub fn message(&self, before: Option<&Stored>) -> Result<Arc<Stored>, Box<NotAMessage>> {
        self.strict(before).map_err(|reason| Box::new(NotAMessage { waiting: self.waiting(), reason }))
    }

    fn strict(&self, before: Option<&Stored>) -> Result<Arc<Stored>, String> {
        let message = self.raw().message_like(before.map(|before| &before.message))?;
        let mut stored = self.stored(message);
        stored.stripe = self.row.stripe();
        match stored.stripe {
            Some(stripe) => right_stripe(stripe.stripe, &stored.message)?,
            None => right_bucket(self.row.integer(Column::Bucket), stored.bucket)?,
        }
        Ok(Arc::new(stored))
    }

    fn stored(&self, message: Message) -> Stored {
        let appended_at = Timestamp::from_micros(self.row.integer(Column::AppendedAt));
        Stored::new(self.position(), appended_at, message)
    }

    /// Returns the row without its content, under valid names.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        let message = self.raw().names();
        Waiting::new(
            RowId { position: self.position(), id: message.id },
            message.key_id(),
            self.bucket(),
            self.row.stripe(),
        )
    }

    /// Returns the message that the row becomes with corrections; or the remaining error.
    ///
    /// # Errors
    ///
    /// If it is still no message.
    pub fn edited(&self, edit: &Edit) -> Result<Message, String> {
        edit.of_row(self.raw())
    }

    /// Returns the presentable part of a row, message or not.
    #[must_use]
    pub fn presentable(&self) -> Arc<Stored> {
        let mut stored = self.stored(self.raw().presentable());
        (stored.bucket, stored.stripe) = (self.bucket(), self.row.stripe());
        Arc::new(stored)
    }

    fn bucket(&self) -> Bucket {
        // Same conversion of an invalid bucket as in the statements that read rows by their bucket.
        // A CHECK constraint would be compiled for each statement.
        let stored = || Bucket(u8::try_from(self.row.integer(Column::Bucket) & 255).unwrap_or_default());
        self.row.stripe().map_or_else(stored, |stripe| stripe.stripe.bucket())
    }
}

fn right_bucket(bucket: i64, right: Bucket) -> Result<(), String> {
    if bucket == i64::from(right.0) {
        return Ok(());
    }
    Err(format!(
        "its bucket is {bucket}, but its topic and key give {right}; leave bucket out, or compute the first byte of SHA-256 over topic, \
         NUL and key"
    ))
}

fn right_stripe(stripe: StripeId, message: &Message) -> Result<(), String> {
    let right = StripeId::of(message.topic.as_str(), message.order_key().as_str());
    if stripe == right {
        return Ok(());
    }
    Err(format!(
        "its stripe is {}, but its topic and key give {}; compute the first ten bits of SHA-256 over topic, NUL and key",
        stripe.0, right.0
    ))
}
