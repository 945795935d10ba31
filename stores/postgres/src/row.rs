//! Rows: from columns to messages.
//!
//! Any program can write rows, so nothing in them is trusted: see [`RawMessage`].

use std::sync::Arc;

use outbox_contract::admin::Edit;
use outbox_contract::fetch::{RowId, Stored, Waiting};
use outbox_contract::raw::RawMessage;
use outbox_contract::{Bucket, Message, Position, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

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
    /// How many there are: what a statement adds of its own stands behind them.
    pub(crate) const COUNT: usize = Self::AppendedAt as usize + 1;
}

/// A row with the columns of a message, in their places, and content that may have come apart from it.
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

    /// A row whose headers and payload were read apart.
    pub(crate) const fn with_content(row: &'r PgRow, headers: &'r [u8], payload: &'r [u8]) -> Self {
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

    /// The message; or why the row is none. Most rows are like the one `before`.
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

    /// The row without its content, under names that can be names.
    pub(crate) fn waiting(&self) -> Waiting {
        let message = self.raw().names();
        Waiting {
            at: RowId { position: self.position(), id: message.id },
            key: message.key_id(),
            bucket: self.bucket(),
            stripe: None,
        }
    }

    /// The message that the row becomes with corrections; or what is still wrong.
    pub(crate) fn edited(&self, edit: &Edit) -> Result<Message, String> {
        edit.of_row(self.raw())
    }

    /// What can be shown of a row, message or not.
    pub(crate) fn presentable(&self) -> Arc<Stored> {
        let appended_at = Timestamp::from_micros(self.integer(Column::AppendedAt));
        let mut stored = Stored::new(self.position(), appended_at, self.raw().presentable());
        stored.bucket = self.bucket();
        Arc::new(stored)
    }

    fn bucket(&self) -> Bucket {
        // As the statements that read rows by their bucket take one that is none. A CHECK constraint would be compiled for each statement.
        Bucket(u8::try_from(self.integer(Column::Bucket) & 255).unwrap_or_default())
    }
}
