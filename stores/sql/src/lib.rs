#![doc = include_str!("../README.md")]

mod history;
pub mod key;
pub mod looks;
mod migrate;
mod row;
pub mod statements;

pub use history::History;
pub use migrate::{Migration, Migrations};
use outbox_contract::MessageId;
pub use row::{Column, MessageRow, NotAMessage, Raw};
use uuid::Uuid;

/// Returns the id of a column of bytes, if they are one: other programs can write too.
#[must_use]
pub fn message_id(bytes: &[u8]) -> Option<MessageId> {
    Uuid::from_slice(bytes).ok().map(MessageId::from_uuid)
}

/// Returns the name of a dead letter for people: its id, if the column has one.
#[must_use]
pub fn dead_letter_name(id: &[u8]) -> String {
    match message_id(id) {
        Some(id) => id.to_string(),
        None => format!("one with the id {:?}", id.escape_ascii().to_string()),
    }
}
