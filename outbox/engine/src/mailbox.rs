//! The mailbox: what waits of one key, in order. Relays and inboxes use the same.

use std::collections::VecDeque;

/// Queue of one key. What is taken out comes back to the head, in order, unless it is done: nothing
/// of a key passes what is not.
#[derive(Debug)]
pub(crate) struct Mailbox<M> {
    waiting: VecDeque<M>,
}

// Not derived: that would ask it of the messages.
impl<M> Default for Mailbox<M> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<M> Mailbox<M> {
    /// Puts a message at the end.
    pub(crate) fn push(&mut self, message: M) {
        self.waiting.push_back(message);
    }

    /// The next message, which stays.
    pub(crate) fn first(&self) -> Option<&M> {
        self.waiting.front()
    }

    /// Takes the next message.
    pub(crate) fn take(&mut self) -> Option<M> {
        self.waiting.pop_front()
    }

    /// Gives messages back that were taken last, in the order in which they were taken.
    pub(crate) fn give_back(&mut self, messages: impl IntoIterator<Item = M, IntoIter: DoubleEndedIterator>) {
        messages.into_iter().rev().for_each(|message| self.waiting.push_front(message));
    }

    /// Takes everything behind the first `kept` messages.
    pub(crate) fn split_off(&mut self, kept: usize) -> VecDeque<M> {
        self.waiting.split_off(kept.min(self.waiting.len()))
    }

    /// Drops the messages of which this is false.
    pub(crate) fn retain(&mut self, kept: impl FnMut(&M) -> bool) {
        self.waiting.retain(kept);
    }

    /// Messages in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &M> {
        self.waiting.iter()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_stands_before_what_came_meanwhile() {
        let mut mailbox = Mailbox::default();
        (1..=3).for_each(|number| mailbox.push(number));
        let taken = [mailbox.take().unwrap(), mailbox.take().unwrap()];
        mailbox.push(4);
        mailbox.give_back(taken);
        assert_eq!(mailbox.iter().copied().collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(mailbox.split_off(1), [2, 3, 4]);
        assert_eq!((mailbox.len(), mailbox.first()), (1, Some(&1)));
        mailbox.retain(|number| *number != 1);
        assert!(mailbox.is_empty());
    }
}
