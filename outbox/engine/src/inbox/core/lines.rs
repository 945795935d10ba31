//! The lines in which keys stand, one for each handler, and the jobs that run each handler now.

use std::collections::{BTreeSet, VecDeque};

use outbox_contract::KeyId;

use super::event::Limits;
use super::key::{Doing, KeyState};
use super::{Core, sabotaged};

/// Keys that may go now. The first line is for what runs no handler; then there is one for each
/// handler, so that a handler at its bound costs the others no look; and behind these another one
/// for the suspects of each handler.
#[derive(Debug)]
pub(super) struct Lines {
    lines: Vec<VecDeque<(u64, KeyId)>>,
    next_place: u64,
}

impl Lines {
    pub(super) fn new(handlers: usize) -> Self {
        Self { lines: (0..=2 * handlers).map(|_| VecDeque::new()).collect(), next_place: 0 }
    }

    /// Puts a key at the end of its line.
    fn push(&mut self, name: &KeyId, key: &mut KeyState) {
        let handlers = self.lines.len() / 2;
        let handler = key.mailbox.first().and_then(|item| item.handler);
        let suspects = if key.is_suspect() { handlers } else { 0 };
        // Storing runs no handler.
        let line = if key.to_store { 0 } else { handler.map_or(0, |handler| handler + 1 + suspects) };
        key.doing = Doing::InLine(self.next_place);
        self.lines[line].push_back((self.next_place, name.clone()));
        self.next_place += 1;
    }
}

/// Jobs that are out, by the handlers that they run.
#[derive(Debug)]
pub(super) struct Running {
    by_handler: Vec<usize>,
    suspects: usize,
}

impl Running {
    pub(super) fn new(handlers: usize) -> Self {
        Self { by_handler: vec![0; handlers], suspects: 0 }
    }

    pub(super) fn begin(&mut self, handlers: &BTreeSet<usize>, is_suspect: bool) {
        handlers.iter().for_each(|handler| self.by_handler[*handler] += 1);
        self.suspects += usize::from(is_suspect);
    }

    pub(super) fn end(&mut self, handlers: &BTreeSet<usize>, is_suspect: bool) {
        handlers.iter().for_each(|handler| self.by_handler[*handler] -= 1);
        self.suspects -= usize::from(is_suspect);
    }

    /// Returns true if another job may run a handler.
    pub(super) fn may_run(&self, handler: usize, limits: &Limits) -> bool {
        self.by_handler[handler] < limits.by_handler[handler]
    }

    /// Returns true if a line may be taken from, for a job that runs these handlers already.
    fn has_room(&self, line: usize, used: &BTreeSet<usize>, limits: &Limits) -> bool {
        let Some(at) = line.checked_sub(1) else { return true };
        let (handler, is_suspect) = (at % self.by_handler.len(), at >= self.by_handler.len());
        let is_free = used.contains(&handler) || self.may_run(handler, limits);
        is_free && (!is_suspect || self.suspects < limits.suspects)
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.suspects == 0 && self.by_handler.iter().all(|running| *running == 0)
    }
}

impl Core {
    /// Has a key stand in line, as its first message is now.
    pub(super) fn stand(&mut self, name: &KeyId) {
        if let Some(key) = self.keys.get_mut(name) {
            self.lines.push(name, key);
        }
    }

    /// Takes the key out of line that has stood there longest, of those whose handler has room.
    /// `with_others`: it would ride with others; one that has failed goes alone, and nothing passes
    /// it.
    pub(super) fn first_in_line(&mut self, used: &BTreeSet<usize>, with_others: bool) -> Option<KeyId> {
        let mut best: Option<(u64, usize)> = None;
        for line in 0..self.lines.lines.len() {
            let Some(place) = self.first_place(line) else { continue };
            let has_room = self.running.has_room(line, used, &self.limits) || sabotaged!(self, Unbounded);
            if has_room && best.is_none_or(|(first, _)| place < first) {
                best = Some((place, line));
            }
        }
        let (_, line) = best?;
        let (_, name) = self.lines.lines[line].front()?;
        let goes_alone = self.keys.get(name).is_some_and(|key| key.to_store || key.is_suspect());
        if with_others && goes_alone && !sabotaged!(self, SuspectsRideAlong) {
            return None;
        }
        self.lines.lines[line].pop_front().map(|(_, name)| name)
    }

    /// The place of the first key of a line that is still there. Keys of paused topics leave it,
    /// and wait.
    fn first_place(&mut self, line: usize) -> Option<u64> {
        while let Some((place, name)) = self.lines.lines[line].front() {
            let here = self.keys.get_mut(name).filter(|key| key.doing == Doing::InLine(*place));
            if let Some(key) = here {
                if !self.paused.topics.contains(&name.topic) || sabotaged!(self, PausedTopicsGoOn) {
                    return Some(*place);
                }
                key.doing = Doing::Waiting;
                self.waiting.insert(name.clone());
            }
            // A place that was left: its key is gone, or stands elsewhere, or waits from here on.
            self.lines.lines[line].pop_front();
        }
        None
    }
}
