//! Rows: from columns to messages.
//!
//! Any program can write rows, so their content is not trusted: see [`RawMessage`].

use std::sync::Arc;

use outbox_contract::admin::Edit;
use outbox_contract::backend::{Bucket, Position, RawMessage, RowId, Stored, Waiting};
use outbox_contract::{Message, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

/// A row that is not a message, with the reason.
#[derive(Debug)]
pub(crate) struct NotAMessage {
    /// The row, under valid names: control characters are replaced, long ones cut.
    pub(crate) waiting: Waiting,
    /// The error in it.
    pub(crate) reason: String,
}

/// Index of a message's columns in every statement that reads messages: a look-up by name would
/// cost one for each column of each row.
#[derive(Clone, Copy)]
pub(crate) enum Column {
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
    pub(crate) const COUNT: usize = Self::AppendedAt as usize + 1;
}

/// A row with the columns of a message, in their places, and content that may have been read
/// separately.
pub(crate) struct Raw<'r> {
    row: &'r PgRow,
    /// Headers and payload, where they are not columns of the row.
    content: Option<(&'r [u8], &'r [u8])>,
}

impl<'r> Raw<'r> {
    /// A row with all of its content.
    pub(crate) const fn new(row: &'r PgRow) -> Self {
        Self { row, content: None }
    }

    /// A row whose headers and payload were read separately.
    pub(crate) const fn with_content(row: &'r PgRow, headers: &'r [u8], payload: &'r [u8]) -> Self {
        Self { row, content: Some((headers, payload)) }
    }

    /// Returns the bytes of a column of text or bytes; None for null.
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

    /// Returns the message; or the reason why the row is none. Most rows resemble the one `before`.
    pub(crate) fn message(&self, before: Option<&Stored>) -> Result<Arc<Stored>, Box<NotAMessage>> {
        self.strict(before).map_err(|reason| Box::new(NotAMessage { waiting: self.waiting(), reason }))
    }

    fn strict(&self, before: Option<&Stored>) -> Result<Arc<Stored>, String> {
        let message = self.raw().message_like(before.map(|before| &before.message))?;
        let appended_at = Timestamp::from_micros(self.integer(Column::AppendedAt));
        let stored = Stored::new(self.position(), appended_at, message);
        let bucket = self.integer(Column::Bucket);
        if bucket != i64::from(stored.bucket.0) {
            return Err(format!(
                "its bucket is {bucket}, but its topic and key give {}; leave bucket out, or compute the first byte of SHA-256 over topic, \
                 NUL and key",
                stored.bucket
            ));
        }
        Ok(Arc::new(stored))
    }

    /// Returns the row without its content, under valid names.
    pub(crate) fn waiting(&self) -> Waiting {
        let message = self.raw().names();
        Waiting {
            at: RowId { position: self.position(), id: message.id },
            key: message.key_id(),
            bucket: self.bucket(),
            stripe: None,
        }
    }

    /// Returns the message that the row becomes with corrections; or the remaining error.
    pub(crate) fn edited(&self, edit: &Edit) -> Result<Message, String> {
        edit.of_row(self.raw())
    }

    /// Returns the presentable part of a row, message or not.
    pub(crate) fn presentable(&self) -> Arc<Stored> {
        let appended_at = Timestamp::from_micros(self.integer(Column::AppendedAt));
        let mut stored = Stored::new(self.position(), appended_at, self.raw().presentable());
        stored.bucket = self.bucket();
        Arc::new(stored)
    }

    fn bucket(&self) -> Bucket {
        // Same conversion of an invalid bucket as in the statements that read rows by their bucket.
        // A CHECK constraint would be compiled for each statement.
        Bucket(u8::try_from(self.integer(Column::Bucket) & 255).unwrap_or_default())
    }
}
