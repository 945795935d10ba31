//! Credit: the room for messages in memory, in messages and in bytes.

/// Minimum number of bytes that a message counts besides its content.
const FIXED_BYTES: usize = 256;

/// Messages and bytes in memory, and their limits (promise P6).
///
/// A plain counter: the code that drops a message gives its share back. The simulation compares the
/// counter with the table after each event.
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

    /// Takes the share of a message. Never refuses: the caller asks for [`room`](Self::room) before
    /// a fetch, and a message larger than the room must still be sent.
    pub(crate) fn take(&mut self, messages: usize, bytes: usize) {
        self.messages += messages;
        self.bytes += bytes;
    }

    pub(crate) fn give(&mut self, messages: usize, bytes: usize) {
        debug_assert!(self.messages >= messages && self.bytes >= bytes, "credit is given back twice");
        self.messages = self.messages.saturating_sub(messages);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Returns the free room in messages and bytes.
    pub(crate) fn room(&self) -> (usize, usize) {
        let messages = self.max_messages.saturating_sub(self.messages);
        let bytes = self.max_bytes.saturating_sub(self.bytes);
        if bytes == 0 { (0, 0) } else { (messages, bytes) }
    }

    /// Returns true if a fetch pays: many small fetches would cost more than they bring.
    pub(crate) fn is_half_free(&self) -> bool {
        self.room().0 >= self.max_messages.div_ceil(2)
    }

    /// Returns true if more than half of the credit is taken.
    pub(crate) fn is_short(&self) -> bool {
        self.messages > self.max_messages / 2 || self.bytes > self.max_bytes / 2
    }

    /// Returns the number of rows and bytes of content to fetch. A fetch counts content alone,
    /// without the fixed part of each message.
    pub(crate) fn room_for_content(&self) -> (usize, usize) {
        let (messages, bytes) = self.room();
        let messages = messages.min((bytes / 2 / FIXED_BYTES).max(1));
        (messages, bytes.saturating_sub(messages * FIXED_BYTES).max(1))
    }

    /// Returns the number of messages and bytes in memory.
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
        let message = outbox_contract::Message::new("t", "t").unwrap();
        assert!((FIXED_BYTES..FIXED_BYTES + 16).contains(&message.bytes()));
    }

    #[test]
    fn no_bytes_left_means_no_room_whatever_the_count() {
        let mut credit = Credit::new(10, 100);
        credit.take(1, 500);
        assert_eq!(credit.room(), (0, 0));
    }
}
