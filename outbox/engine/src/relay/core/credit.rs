//! Credit: how much a core has in memory, in messages and in bytes.

/// Bytes that every message counts besides its content, at least.
const FIXED_BYTES: usize = 256;

/// Messages and bytes in memory, and their bounds (promise P6). A plain count: whoever drops a message gives its share back, and the
/// simulation compares this with what the table holds after each event.
#[derive(Debug)]
pub(crate) struct Credit {
    messages: usize,
    bytes: usize,
    max_messages: usize,
    max_bytes: usize,
}

impl Credit {
    pub(crate) fn new(max_messages: usize, max_bytes: usize) -> Self {
        Self { messages: 0, bytes: 0, max_messages, max_bytes }
    }

    /// Takes a share for a message of this size. Never refuses: whoever fetches asks for [`room`](Self::room) before, and a message that is larger
    /// than what is left must still be sent some time.
    pub(crate) fn take(&mut self, messages: usize, bytes: usize) {
        self.messages += messages;
        self.bytes += bytes;
    }

    pub(crate) fn give(&mut self, messages: usize, bytes: usize) {
        debug_assert!(self.messages >= messages && self.bytes >= bytes, "credit is given back twice");
        self.messages = self.messages.saturating_sub(messages);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Messages and bytes that there is room for.
    pub(crate) fn room(&self) -> (usize, usize) {
        let messages = self.max_messages.saturating_sub(self.messages);
        let bytes = self.max_bytes.saturating_sub(self.bytes);
        if bytes == 0 { (0, 0) } else { (messages, bytes) }
    }

    /// Whether a fetch is worth it: a trickle of small ones would cost more than it brings.
    pub(crate) fn is_half_free(&self) -> bool {
        self.room().0 >= self.max_messages.div_ceil(2)
    }

    /// Whether more than half of it is taken.
    pub(crate) fn is_short(&self) -> bool {
        self.messages > self.max_messages / 2 || self.bytes > self.max_bytes / 2
    }

    /// Rows and bytes of content that may be asked for: a fetch does not count what every message has besides.
    pub(crate) fn room_for_content(&self) -> (usize, usize) {
        let (messages, bytes) = self.room();
        let messages = messages.min((bytes / 2 / FIXED_BYTES).max(1));
        (messages, bytes.saturating_sub(messages * FIXED_BYTES).max(1))
    }

    /// Messages and bytes in memory.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        (self.messages, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_makes_room() {
        let mut credit = Credit::new(2, 1_000);
        credit.take(1, 400);
        credit.take(1, 700);
        assert_eq!((credit.room(), credit.is_half_free()), ((0, 0), false));
        assert!(credit.is_short());
        credit.give(1, 400);
        assert_eq!((credit.room(), credit.is_half_free()), ((1, 300), true));
    }

    #[test]
    fn small_messages_are_asked_for_within_the_bytes_too() {
        let mut credit = Credit::new(1_000, 10_240);
        let (messages, bytes) = credit.room_for_content();
        assert_eq!((messages, messages * FIXED_BYTES + bytes), (20, 10_240));
        credit.take(1, 10_239);
        assert_eq!(credit.room_for_content(), (1, 1));
    }

    #[test]
    fn a_message_without_content_counts_its_fixed_part() {
        let message = outbox_contract::Message::new("t".parse().unwrap(), "t");
        assert!((FIXED_BYTES..FIXED_BYTES + 16).contains(&message.bytes()));
    }

    #[test]
    fn no_bytes_left_means_no_room_whatever_the_count() {
        let mut credit = Credit::new(10, 100);
        credit.take(1, 500);
        assert_eq!(credit.room(), (0, 0));
    }
}
