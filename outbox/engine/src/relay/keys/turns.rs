//! Whose turn it is at the publishers of a lane. Pure.

use std::collections::BTreeSet;

/// Which line the next chunk is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Turn {
    /// Keys that nothing is held against.
    Ready,
    /// Keys whose first message failed.
    Failed,
    /// Keys of whose first message nothing was heard.
    Silent,
}

/// Which publishers of a lane have nothing to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Desks {
    /// How many publishers there are for what is answered.
    pub(crate) count: usize,
    /// Whether one of them is free.
    pub(crate) is_free: bool,
    /// Whether the one is free that is there for what is not: each chunk of that may be waited for until its time is over.
    pub(crate) is_silent_free: bool,
}

/// What was answered and what was not never wait for each other. Of what was answered, the two lines take turns, whatever waits in either: so no backlog
/// keeps a failing key from being tried when it is due, and no number of failing keys stops the others.
#[derive(Debug, Default)]
pub(super) struct Turns {
    last_was_of_failed: bool,
    /// Chunks of failed keys that are not back.
    under_way: BTreeSet<u64>,
}

impl Turns {
    /// Whose turn it is, if anybody waits: `waits` says of which line. Failed keys never have all publishers: what was answered before may hang now, and
    /// the other keys go on meanwhile. Where there is one publisher, they have it at each second turn.
    pub(super) fn next(&self, waits: impl Fn(Turn) -> bool, desks: Desks) -> Option<Turn> {
        if desks.is_silent_free && waits(Turn::Silent) {
            return Some(Turn::Silent);
        }
        let room = self.under_way.len() + 1 < desks.count.max(2);
        match (waits(Turn::Ready), waits(Turn::Failed) && room) {
            _ if !desks.is_free => None,
            (true, true) if self.last_was_of_failed => Some(Turn::Ready),
            (_, true) => Some(Turn::Failed),
            (true, false) => Some(Turn::Ready),
            (false, false) => None,
        }
    }

    /// A chunk was taken.
    pub(super) fn took(&mut self, chunk: u64, turn: Turn) {
        if turn != Turn::Silent {
            self.last_was_of_failed = turn == Turn::Failed;
        }
        if turn == Turn::Failed {
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

    fn desks(count: usize) -> Desks {
        Desks { count, is_free: true, is_silent_free: false }
    }

    #[test]
    fn both_lines_have_their_turns_while_both_have_something() {
        for publishers in 1..=4 {
            let mut turns = Turns::default();
            let mut of_failed = 0;
            for chunk in 0..100 {
                let turn = turns.next(|_| true, desks(publishers)).unwrap();
                turns.took(chunk, turn);
                turns.is_back(chunk);
                of_failed += usize::from(turn == Turn::Failed);
            }
            assert_eq!(of_failed, 50, "with {publishers} publishers");
        }
    }

    #[test]
    fn failed_keys_that_do_not_come_back_leave_one_publisher_to_the_others() {
        let mut turns = Turns::default();
        let failed = |turn| turn == Turn::Failed;
        turns.took(1, Turn::Failed);
        assert_eq!(turns.next(failed, desks(3)), Some(Turn::Failed));
        turns.took(2, Turn::Failed);
        assert_eq!(turns.next(failed, desks(3)), None);
        assert_eq!(turns.next(|_| true, desks(3)), Some(Turn::Ready));
        turns.is_back(1);
        assert_eq!(turns.next(failed, desks(3)), Some(Turn::Failed));
    }

    #[test]
    fn what_is_silent_has_a_publisher_of_its_own_and_no_other() {
        let turns = Turns::default();
        let silent = |turn| turn == Turn::Silent;
        assert_eq!(turns.next(silent, desks(3)), None);
        let only = Desks { count: 3, is_free: false, is_silent_free: true };
        assert_eq!(turns.next(|_| true, only), Some(Turn::Silent));
        assert_eq!(turns.next(|turn| !silent(turn), only), None);
    }
}
