//! A load: a number of messages, and their bytes. Limits use it as their unit.

/// Messages and their bytes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Load {
    /// Returns the load of one message of this size.
    pub(crate) const fn one(bytes: usize) -> Self {
        Self { messages: 1, bytes }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    pub(crate) fn remove(&mut self, other: Self) {
        debug_assert!(self.messages >= other.messages, "more is taken away than was counted");
        self.messages = self.messages.saturating_sub(other.messages);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }

    /// Returns true if one more message of this size stays within a bound. A message of any size
    /// fits alone: otherwise one larger than the bound would wait forever.
    pub(crate) const fn has_room_for(&self, bytes: usize, bound: Self) -> bool {
        if self.messages == 0 {
            return bound.messages > 0;
        }
        self.messages < bound.messages && self.bytes.saturating_add(bytes) <= bound.bytes
    }
}
