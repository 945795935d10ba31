//! Rows: from columns to messages.
//!
//! Any program can write rows, so their content is not trusted: see [`RawMessage`].

use std::sync::Arc;

use outbox_contract::admin::Edit;
use outbox_contract::backend::{Bucket, Position, RawMessage, RowId, Stored, Waiting};
use outbox_contract::{Message, Timestamp};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

/// A row that is not a message, with the reason.
#[derive(Debug)]
pub(crate) struct NotAMessage {
    /// The row, under valid names: control characters are replaced, long ones cut.
    pub(crate) waiting: Waiting,
    /// The error in it.
    pub(crate) reason: String,
}

/// A row with the columns of a message, by name, and content that may have been read separately.
pub(crate) struct Raw<'r> {
    row: &'r SqliteRow,
    /// Headers and payload, where they are not columns of the row.
    content: Option<(Vec<u8>, Vec<u8>)>,
}

impl<'r> Raw<'r> {
    /// A row with all of its content.
    pub(crate) const fn new(row: &'r SqliteRow) -> Self {
        Self { row, content: None }
    }

    /// A row whose headers and payload were read separately.
    pub(crate) const fn with_content(row: &'r SqliteRow, headers: Vec<u8>, payload: Vec<u8>) -> Self {
        Self { row, content: Some((headers, payload)) }
    }

    /// Returns the bytes of a text or blob column; None for null.
    fn bytes(&self, column: &'static str) -> Option<&[u8]> {
        match (&self.content, column) {
            (Some((headers, _)), "headers") => Some(headers),
            (Some((_, payload)), "payload") => Some(payload),
            _ => self.row.try_get_unchecked::<Option<&[u8]>, _>(column).ok().flatten(),
        }
    }

    fn integer(&self, column: &'static str) -> i64 {
        self.row.try_get_unchecked(column).unwrap_or_default()
    }

    /// Returns the position of the row.
    pub(crate) fn position(&self) -> Position {
        Position(self.integer("position"))
    }

    fn raw(&self) -> RawMessage<'_> {
        RawMessage {
            id: self.bytes("id"),
            topic: self.bytes("topic"),
            key: self.bytes("key"),
            event_type: self.bytes("event_type"),
            schema_version: self.integer("schema_version"),
            content_type: self.bytes("content_type"),
            headers: self.bytes("headers"),
            payload: self.bytes("payload"),
            occurred_at: self.integer("occurred_at"),
        }
    }

    /// Returns the message; or the reason why the row is none.
    pub(crate) fn message(&self) -> Result<Arc<Stored>, Box<NotAMessage>> {
        self.strict().map_err(|reason| Box::new(NotAMessage { waiting: self.waiting(), reason }))
    }

    fn strict(&self) -> Result<Arc<Stored>, String> {
        let message = self.raw().message()?;
        let appended_at = Timestamp::from_micros(self.integer("appended_at"));
        let stored = Stored::new(self.position(), appended_at, message);
        let bucket = self.integer("bucket");
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
        let appended_at = Timestamp::from_micros(self.integer("appended_at"));
        let mut stored = Stored::new(self.position(), appended_at, self.raw().presentable());
        stored.bucket = self.bucket();
        Arc::new(stored)
    }

    fn bucket(&self) -> Bucket {
        Bucket(u8::try_from(self.integer("bucket")).unwrap_or_default())
    }
}
