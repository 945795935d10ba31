//! Lines: queues of keys that wait for a publisher or for the store.

use std::collections::{BTreeMap, VecDeque};

use super::table::KeyRef;

/// Queue of keys. A key is in one line at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Line {
    /// Keys that are not suspect.
    Ready,
    /// Keys whose first message failed with an answer: it is sent alone, and answered soon.
    Failed,
    /// Keys whose first message got no answer: each attempt may last until the publish timeout.
    Silent,
    /// Keys that need a transition before more of them can be sent. They wait for no publisher.
    Transition,
}

/// The lines, each in order of arrival, and the share of publishers that each may use.
///
/// A key leaves a line without a search in the queue: an entry counts only while its key's state
/// names that line.
#[derive(Debug)]
pub(super) struct Lines {
    ready: VecDeque<KeyRef>,
    failed: VecDeque<KeyRef>,
    silent: VecDeque<KeyRef>,
    transition: VecDeque<KeyRef>,
    publishers: usize,
    silent_publishers: usize,
    /// Unconfirmed batches and their lines.
    out: BTreeMap<u64, Line>,
    last_was_of_failed: bool,
}

impl Lines {
    pub(super) fn new(publishers: usize, silent_publishers: usize) -> Self {
        Self {
            ready: VecDeque::new(),
            failed: VecDeque::new(),
            silent: VecDeque::new(),
            transition: VecDeque::new(),
            publishers: publishers.max(1),
            silent_publishers: silent_publishers.max(1),
            out: BTreeMap::new(),
            last_was_of_failed: false,
        }
    }

    fn line(&mut self, line: Line) -> &mut VecDeque<KeyRef> {
        match line {
            Line::Ready => &mut self.ready,
            Line::Failed => &mut self.failed,
            Line::Silent => &mut self.silent,
            Line::Transition => &mut self.transition,
        }
    }

    pub(super) fn push(&mut self, line: Line, key: KeyRef) {
        self.line(line).push_back(key);
    }

    pub(super) fn push_front(&mut self, line: Line, key: KeyRef) {
        self.line(line).push_front(key);
    }

    pub(super) fn pop(&mut self, line: Line) -> Option<KeyRef> {
        self.line(line).pop_front()
    }

    /// Returns the line of the next batch, if a publisher is free for it. `may_go`: whether the
    /// circuit breaker lets a batch of this line through.
    ///
    /// Silent keys and keys that get answers have publishers of their own, so neither waits for the
    /// other. Ready and failed keys take turns, however many wait in either line. So no backlog
    /// delays the retry of a failing key, and no number of failing keys stops the others. Failed
    /// keys never use all publishers, because a key that got answers before may hang now. With a
    /// single publisher, they use it every second turn.
    pub(super) fn next(&self, may_go: impl Fn(Line) -> bool) -> Option<Line> {
        let out = |line| self.out.values().filter(|out| **out == line).count();
        if !self.silent.is_empty() && out(Line::Silent) < self.silent_publishers && may_go(Line::Silent) {
            return Some(Line::Silent);
        }
        let failed = out(Line::Failed);
        if failed + out(Line::Ready) >= self.publishers {
            return None;
        }
        let for_failed = self.publishers.saturating_sub(1).max(1);
        let ready = !self.ready.is_empty() && may_go(Line::Ready);
        let failed = !self.failed.is_empty() && failed < for_failed && may_go(Line::Failed);
        match (ready, failed) {
            (true, true) if self.last_was_of_failed => Some(Line::Ready),
            (_, true) => Some(Line::Failed),
            (true, false) => Some(Line::Ready),
            (false, false) => None,
        }
    }

    pub(super) fn began(&mut self, batch: u64, line: Line) {
        if line != Line::Silent {
            self.last_was_of_failed = line == Line::Failed;
        }
        self.out.insert(batch, line);
    }

    /// Records the end of a batch. Returns its line.
    pub(super) fn is_back(&mut self, batch: u64) -> Option<Line> {
        self.out.remove(&batch)
    }

    /// Returns the number of unconfirmed batches.
    #[cfg(any(test, feature = "_simulation"))]
    pub(super) fn out(&self) -> usize {
        self.out.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(publishers: usize) -> Lines {
        let mut lines = Lines::new(publishers, 2);
        for line in [Line::Ready, Line::Failed, Line::Silent] {
            (0..1_000).for_each(|slot| lines.push(line, KeyRef { slot, stay: 1 }));
        }
        lines
    }

    #[test]
    fn both_lines_of_what_is_answered_have_their_turns_while_both_have_something() {
        for publishers in 1..=8 {
            let mut lines = lines(publishers);
            let mut of_failed = 0;
            for batch in 0..100 {
                let line = lines.next(|line| line != Line::Silent).unwrap();
                of_failed += usize::from(line == Line::Failed);
                lines.began(batch, line);
                lines.is_back(batch);
            }
            assert_eq!(of_failed, 50, "with {publishers} publishers");
        }
    }

    #[test]
    fn what_is_silent_has_publishers_of_its_own_and_no_others() {
        let mut lines = lines(3);
        for batch in 0..2 {
            assert_eq!(lines.next(|_| true), Some(Line::Silent));
            lines.began(batch, Line::Silent);
        }
        for batch in 2..5 {
            let line = lines.next(|_| true).unwrap();
            assert_ne!(line, Line::Silent);
            lines.began(batch, line);
        }
        assert_eq!(lines.next(|_| true), None);
        lines.is_back(0);
        assert_eq!(lines.next(|_| true), Some(Line::Silent));
    }

    #[test]
    fn failed_keys_that_do_not_come_back_leave_one_publisher_to_the_others() {
        let mut lines = lines(3);
        let failed = |line| line == Line::Failed;
        lines.began(1, Line::Failed);
        assert_eq!(lines.next(failed), Some(Line::Failed));
        lines.began(2, Line::Failed);
        assert_eq!(lines.next(failed), None);
        assert_eq!(lines.next(|line| line != Line::Silent), Some(Line::Ready));
        assert_eq!(lines.is_back(1), Some(Line::Failed));
        assert_eq!(lines.next(failed), Some(Line::Failed));
    }
}
