//! Mailbox: the waiting messages of one key, in order.

use std::collections::VecDeque;

/// Queue of one key. Messages that were taken and not finished return to its head, in order, so no
/// message overtakes an earlier one.
#[derive(Debug)]
pub(crate) struct Mailbox<M> {
    waiting: VecDeque<M>,
}

// Not derived, because that would require it of the messages.
impl<M> Default for Mailbox<M> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<M> Mailbox<M> {
    /// Appends a message.
    pub(crate) fn push(&mut self, message: M) {
        self.waiting.push_back(message);
    }

    /// Returns the next message without taking it.
    pub(crate) fn first(&self) -> Option<&M> {
        self.waiting.front()
    }

    /// Takes the next message.
    pub(crate) fn take(&mut self) -> Option<M> {
        self.waiting.pop_front()
    }

    /// Returns messages to the head: those taken last, in the order in which they were taken.
    pub(crate) fn give_back(&mut self, messages: impl IntoIterator<Item = M, IntoIter: DoubleEndedIterator>) {
        messages.into_iter().rev().for_each(|message| self.waiting.push_front(message));
    }

    /// Removes and returns everything behind the first `kept` messages.
    pub(crate) fn split_off(&mut self, kept: usize) -> VecDeque<M> {
        self.waiting.split_off(kept.min(self.waiting.len()))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &M> {
        self.waiting.iter()
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
    }
}
