//! A load: how many messages, and how many bytes of them. What bounds are expressed in.

/// Messages and their bytes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Load {
    /// The load of one message of this size.
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

    /// Whether one more message of this size stays within a bound. Alone, a message of any size does: else one that is
    /// larger than the bound would wait for ever.
    pub(crate) const fn has_room_for(&self, bytes: usize, bound: Self) -> bool {
        if self.messages == 0 {
            return bound.messages > 0;
        }
        self.messages < bound.messages && self.bytes.saturating_add(bytes) <= bound.bytes
    }
}
