//! The intake of stored mode: all that comes in is written to the store in its order, one
//! transaction after the other.

use super::event::{Item, Job, Task};
use super::{Core, Out, sabotaged};
use crate::inbox::verdict::Verdict;

impl Core {
    /// The next job of stored mode: all that has come since the last one. Pauses do not stop it,
    /// for they are of handlers.
    pub(super) fn next_intake(&mut self) -> Option<Job> {
        let is_out = !self.jobs.is_empty() && !sabotaged!(self, StoresAtOnce);
        if is_out || self.intake.is_empty() || self.intake_rests_until.is_some_and(|until| self.now < until) {
            return None;
        }
        self.intake_rests_until = None;
        let items: Vec<Item> = self.intake.split_off(0).into();
        Some(self.give_out(Out::new(Task::Store, items), 1))
    }

    /// Takes the verdicts on a job of stored mode: messages are stored, or come back to the head.
    pub(super) fn taken_in(&mut self, results: Vec<(Item, Verdict)>) {
        let mut back = Vec::new();
        for (item, verdict) in results {
            match verdict {
                Verdict::Done(_) => self.acknowledging.finished(item.tag),
                _ if self.ownership.is_over(&item.tag) => {}
                Verdict::NotTried => back.push(item),
                _ => {
                    self.intake_rests_until = Some(self.now + self.limits.max_delay);
                    back.push(item);
                }
            }
        }
        self.intake.give_back(back);
    }
}
