//! Credit: the room for messages in memory, in messages and in bytes.

/// Minimum number of bytes that a message counts besides its content.
const FIXED_BYTES: usize = 256;

/// Messages and bytes in memory, and their limits (promise P6).
///
/// A plain counter: the code that drops a message gives its share back. The simulation compares the
/// counter with the table after each event.
///
/// It begins narrow, with fewer messages than are allowed. A broker that answers fast gets all of
/// them, so that batches of a backlog are full; one that is slow or away has less to repeat.
#[derive(Debug)]
pub(crate) struct Credit {
    messages: usize,
    bytes: usize,
    /// Maximum number of messages now.
    max_messages: usize,
    /// The same when it is narrow, and when it is wide.
    bounds: (usize, usize),
    max_bytes: usize,
}

impl Credit {
    /// Creates it with a maximum number of messages when it is narrow, and when it is wide.
    pub(crate) fn new(bounds: (usize, usize), max_bytes: usize) -> Self {
        Self { messages: 0, bytes: 0, max_messages: bounds.0, bounds, max_bytes }
    }

    /// Allows as many messages as ever.
    pub(crate) fn widen(&mut self) {
        self.max_messages = self.bounds.1;
    }

    /// Returns true if as many messages are allowed as ever.
    pub(crate) fn is_wide(&self) -> bool {
        self.max_messages == self.bounds.1
    }

    /// Allows fewer from now on. Messages in memory stay there.
    pub(crate) fn narrow(&mut self) {
        self.max_messages = self.bounds.0;
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
    fn fewer_messages_are_allowed_until_it_is_wide() {
        let mut credit = Credit::new((5, 9), 1_000);
        assert_eq!(credit.room(), (5, 1_000));
        assert!(!credit.is_wide());
        credit.widen();
        assert_eq!((credit.room(), credit.is_wide()), ((9, 1_000), true));
        credit.take(8, 8);
        credit.narrow();
        assert_eq!((credit.room().0, credit.is_half_free(), credit.is_short()), (0, false, true));
        credit.give(6, 6);
        assert_eq!((credit.room().0, credit.is_half_free()), (3, true));
    }

    #[test]
    fn what_is_given_back_makes_room() {
        let mut credit = Credit::new((2, 2), 1_000);
        credit.take(1, 400);
        credit.take(1, 700);
        assert_eq!((credit.room(), credit.is_half_free()), ((0, 0), false));
        assert!(credit.is_short());
        credit.give(1, 400);
        assert_eq!((credit.room(), credit.is_half_free()), ((1, 300), true));
    }

    #[test]
    fn small_messages_are_asked_for_within_the_bytes_too() {
        let mut credit = Credit::new((1_000, 1_000), 10_240);
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
        let mut credit = Credit::new((10, 10), 100);
        credit.take(1, 500);
        assert_eq!(credit.room(), (0, 0));
    }
}
