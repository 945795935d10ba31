//! Load: a number of messages and their bytes. Limits use it as their unit.

use crate::backend::Undecodable;
use crate::message::Message;

/// Messages and their bytes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of messages.
    pub messages: usize,
    /// Their bytes.
    pub bytes: usize,
}

impl Load {
    /// Returns the load of one message of this size.
    #[must_use]
    pub const fn one(bytes: usize) -> Self {
        Self { messages: 1, bytes }
    }

    /// Adds another load.
    pub fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    /// Removes a load that was added before.
    pub fn remove(&mut self, other: Self) {
        debug_assert!(self.messages >= other.messages, "more is taken away than was counted");
        self.messages = self.messages.saturating_sub(other.messages);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }

    /// Returns true if one more message of this size stays within a limit. A message of any size
    /// fits alone: otherwise one larger than the limit would wait forever.
    #[must_use]
    pub const fn has_room_for(&self, bytes: usize, limit: Self) -> bool {
        if self.messages == 0 {
            return limit.messages > 0;
        }
        self.messages < limit.messages && self.bytes.saturating_add(bytes) <= limit.bytes
    }
}

/// Returns the size of a received message in memory, in bytes.
#[must_use]
pub fn bytes_of(message: &Result<Message, Undecodable>) -> usize {
    const FIXED: usize = 256;
    match message {
        Ok(message) => message.bytes(),
        Err(Undecodable { payload, headers, key, .. }) => {
            let headers: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
            FIXED + payload.len() + headers + key.as_ref().map_or(0, |key| key.len())
        }
    }
}
