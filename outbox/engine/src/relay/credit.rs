//! Credit: how much a relay may have in memory, in messages and in bytes.
//!
//! Each message in memory owns its share ([`Hold`]) and gives it back when it is dropped: delivered, parked, forgotten or lost with a
//! crashed actor. So the bound (promise P6) needs no bookkeeping that a crash could break.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// What every message counts besides its content, at least.
const FIXED_BYTES: usize = 256;

/// What is left, of what there is. Shared by the poller, which asks for room, and by every message in memory.
#[derive(Debug)]
pub(crate) struct Credit {
    messages: AtomicUsize,
    bytes: AtomicUsize,
    most_messages: usize,
    most_bytes: usize,
    // Rung when enough is free for a fetch to be worth it, or when nothing is out: the poller waits for it.
    freed: Notify,
}

impl Credit {
    pub(crate) fn new(most_messages: usize, most_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            messages: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            most_messages,
            most_bytes,
            freed: Notify::new(),
        })
    }

    /// Takes a share for a message of this size. Never refuses: the poller asks for [`room`](Self::room) before it fetches, and a
    /// message that is larger than what is left must still be sent some time.
    pub(crate) fn take(self: &Arc<Self>, bytes: usize) -> Hold {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Hold { credit: Arc::clone(self), bytes }
    }

    /// How many messages and bytes there is room for. Zero messages: wait for [`freed`](Self::freed).
    pub(crate) fn room(&self) -> (usize, usize) {
        let messages = self.most_messages.saturating_sub(self.messages.load(Ordering::Relaxed));
        let bytes = self.most_bytes.saturating_sub(self.bytes.load(Ordering::Relaxed));
        if bytes == 0 { (0, 0) } else { (messages, bytes) }
    }

    /// How many rows, and how many bytes of content, may be asked for: a fetch does not count what every message has besides.
    pub(crate) fn room_for_content(&self) -> (usize, usize) {
        let (messages, bytes) = self.room();
        let messages = messages.min((bytes / 2 / FIXED_BYTES).max(1));
        (messages, bytes.saturating_sub(messages * FIXED_BYTES).max(1))
    }

    /// Whether so much is out that nothing is fetched before some of it is back.
    pub(crate) fn is_short(&self) -> bool {
        let (messages, bytes) = self.out();
        messages > self.most_messages / 2 || bytes > self.most_bytes / 2
    }

    /// Messages and bytes that are out.
    pub(crate) fn out(&self) -> (usize, usize) {
        (self.messages.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Waits until a good part of the credit is free.
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }

    fn give_back(&self, bytes: usize) {
        let messages = self.messages.fetch_sub(1, Ordering::Relaxed) - 1;
        let bytes = self.bytes.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        let (half, half_bytes) = (self.most_messages / 2, self.most_bytes / 2);
        if messages == 0 || (messages <= half && bytes <= half_bytes) {
            self.freed.notify_one();
        }
    }
}

/// A message's share of the credit; dropping it gives the share back.
#[derive(Debug)]
pub(crate) struct Hold {
    credit: Arc<Credit>,
    bytes: usize,
}

impl Hold {
    /// A share for the row alone, when its content is dropped.
    pub(crate) fn of_row(&self) -> Self {
        self.credit.take(0)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.credit.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_dropped_gives_its_credit_back_and_wakes_the_poller() {
        let credit = Credit::new(2, 1_000);
        let (first, second) = (credit.take(400), credit.take(700));
        assert_eq!(credit.room(), (0, 0));
        assert!(credit.is_short());
        drop(first);
        assert_eq!(credit.room(), (1, 300));
        drop(second);
        credit.freed().await;
        assert!(!credit.is_short());
        assert_eq!(credit.out(), (0, 0));
    }

    #[test]
    fn small_messages_are_asked_for_within_the_bytes_too() {
        let credit = Credit::new(1_000, 10_240);
        let (messages, bytes) = credit.room_for_content();
        assert_eq!((messages, messages * FIXED_BYTES + bytes), (20, 10_240));
        let _almost_all = credit.take(10_239);
        assert_eq!(credit.room_for_content(), (1, 1));
    }

    #[test]
    fn a_message_without_content_counts_its_fixed_part() {
        let message = outbox_contract::Message::new("t".parse().unwrap(), "t");
        assert!((FIXED_BYTES..FIXED_BYTES + 16).contains(&message.bytes()));
    }

    #[test]
    fn no_bytes_left_means_no_room_whatever_the_count() {
        let credit = Credit::new(10, 100);
        let _large = credit.take(500);
        assert_eq!(credit.room(), (0, 0));
    }
}
