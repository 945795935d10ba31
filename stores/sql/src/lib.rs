#![doc = include_str!("../README.md")]

mod history;
pub mod looks;
mod migrate;
mod row;
pub mod statements;

pub use history::History;
pub use migrate::{Migration, Migrations};
use outbox_contract::MessageId;
pub use row::{Column, MessageRow, NotAMessage, Raw};
use uuid::Uuid;

/// Returns the name of a dead letter for people: its id, if the column has one.
#[must_use]
pub fn dead_letter_name(id: &[u8]) -> String {
    match Uuid::from_slice(id) {
        Ok(id) => MessageId::from_uuid(id).to_string(),
        Err(_) => format!("one with the id {:?}", id.escape_ascii().to_string()),
    }
}
