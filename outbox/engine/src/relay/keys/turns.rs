//! Whose turn it is at the publishers of a lane. Pure.

use std::collections::BTreeSet;

/// Which line the next chunk is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Keys that nothing is held against.
    Ready,
    /// Keys whose first message is suspected of something.
    Suspects,
}

/// The two lines take turns, whatever waits in either: so no backlog keeps a failing key from being tried when it is due, and no number of failing keys
/// stops the others.
#[derive(Debug, Default)]
pub(super) struct Turns {
    last_was_of_suspects: bool,
    /// Chunks of suspects that are not back.
    under_way: BTreeSet<u64>,
}

impl Turns {
    /// Whose turn it is, if anybody waits. Suspects never have all publishers: each may be waited for until its time is over, and the other keys
    /// go on meanwhile. Where there is one publisher, they have it at each second turn.
    pub(super) fn next(&self, ready: bool, suspects: bool, publishers: usize) -> Option<Turn> {
        let room = self.under_way.len() + 1 < publishers.max(2);
        match (ready, suspects && room) {
            (true, true) if self.last_was_of_suspects => Some(Turn::Ready),
            (_, true) => Some(Turn::Suspects),
            (true, false) => Some(Turn::Ready),
            (false, false) => None,
        }
    }

    /// A chunk was taken.
    pub(super) fn took(&mut self, chunk: u64, turn: Turn) {
        self.last_was_of_suspects = turn == Turn::Suspects;
        if turn == Turn::Suspects {
            self.under_way.insert(chunk);
        }
    }

    /// A chunk came back.
    pub(super) fn is_back(&mut self, chunk: u64) {
        self.under_way.remove(&chunk);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_lines_have_their_turns_while_both_have_something() {
        for publishers in 1..=4 {
            let mut turns = Turns::default();
            let mut of_suspects = 0;
            for chunk in 0..100 {
                let turn = turns.next(true, true, publishers).unwrap();
                turns.took(chunk, turn);
                turns.is_back(chunk);
                of_suspects += usize::from(turn == Turn::Suspects);
            }
            assert_eq!(of_suspects, 50, "with {publishers} publishers");
        }
    }

    #[test]
    fn suspects_that_do_not_come_back_leave_one_publisher_to_the_others() {
        let mut turns = Turns::default();
        turns.took(1, Turn::Suspects);
        assert_eq!(turns.next(false, true, 3), Some(Turn::Suspects));
        turns.took(2, Turn::Suspects);
        assert_eq!(turns.next(false, true, 3), None);
        assert_eq!(turns.next(true, true, 3), Some(Turn::Ready));
        turns.is_back(1);
        assert_eq!(turns.next(false, true, 3), Some(Turn::Suspects));
    }
}
