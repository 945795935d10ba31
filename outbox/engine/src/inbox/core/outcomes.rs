//! Verdicts on a job, and their meaning for its keys: messages are finished, come back to the head,
//! rest, or are to be stored.

use outbox_contract::{Failure, KeyId, Topic};

use super::conflicts::MAX_CONFLICTS;
use super::event::Item;
use super::key::{Doing, KeyState};
use super::{Core, Limits, sabotaged};
use crate::inbox::verdict::Verdict;

impl Core {
    /// A job is back. What has no verdict was not tried.
    pub(super) fn finished(&mut self, number: u64, mut verdicts: Vec<Verdict>) {
        // No longer waited for: its worker died, and this was under way.
        let Some(out) = self.jobs.remove(&number) else { return };
        if !sabotaged!(self, PermitsLeak) {
            self.running.end(&out.handlers, out.is_suspect);
        }
        verdicts.resize(out.items.len(), Verdict::NotTried);
        let results = out.items.into_iter().zip(verdicts);
        if self.limits.stores_all {
            return self.taken_in(results.collect());
        }
        let mut results = results.peekable();
        while let Some(first) = results.next() {
            let name = first.0.key.clone();
            let mut run = vec![first];
            while let Some(next) = results.next_if(|(item, _)| item.key == name) {
                run.push(next);
            }
            self.key_finished(&name, run);
        }
    }

    /// The worker of a job died: its transaction is rolled back, or committed, and then its
    /// messages are found to be duplicates. Each key goes on alone.
    pub(super) fn broke(&mut self, number: u64) {
        let Some(out) = self.jobs.get(&number) else { return };
        if sabotaged!(self, BrokenJobsStay) {
            return;
        }
        let failure = Failure::new("broke", "the worker ended");
        let verdicts = vec![Verdict::Environment(failure); out.items.len()];
        self.finished(number, verdicts);
    }

    fn key_finished(&mut self, name: &KeyId, run: Vec<(Item, Verdict)>) {
        let Some(key) = self.keys.get_mut(name) else { return };
        let mut back: Vec<Item> = Vec::new();
        // The verdict on the first message that is not finished.
        let mut stopped_by = None;
        for (item, verdict) in run {
            let is_over = self.ownership.is_over(&item.tag) && !sabotaged!(self, LostIsTriedAgain);
            if stopped_by.is_none() {
                if matches!(verdict, Verdict::Done(_)) || sabotaged!(self, UnfinishedIsTold) {
                    if !sabotaged!(self, FailuresStay) {
                        key.absolve();
                    }
                    self.acknowledging.finished(item.tag);
                    continue;
                }
                if is_over {
                    // Its next owner has it.
                    key.absolve();
                }
                stopped_by = Some(if is_over { Verdict::NotTried } else { verdict });
            }
            if !is_over {
                back.push(item);
            }
        }
        if sabotaged!(self, FollowersGoOn) {
            let count = back.len();
            back.rotate_left(1.min(count));
        }
        key.mailbox.give_back(back);
        if key.mailbox.is_empty() {
            self.keys.remove(name);
            return;
        }
        let rests = stopped_by.and_then(|verdict| rests_after(key, &name.topic, &verdict, &self.limits));
        let Some(times) = rests else { return self.stand(name) };
        let bound = self.limits.first_delay.saturating_mul(1 << (times - 1).min(16));
        let until = self.now + bound.min(self.limits.max_delay).mul_f64(0.5 + self.draws.f64() / 2.0);
        key.doing = Doing::Resting(until);
        if !sabotaged!(self, RestNeverEnds) {
            self.resting.insert((until, name.clone()));
        }
    }

    /// Lets keys stand in line again whose rest is over.
    pub(super) fn wake_keys(&mut self) {
        while self.resting.first().is_some_and(|(until, _)| *until <= self.now) {
            let Some((until, name)) = self.resting.pop_first() else { return };
            // One that was taken away since, and came again, does something else.
            if self.keys.get(&name).is_some_and(|key| key.doing == Doing::Resting(until)) {
                self.stand(&name);
            }
        }
    }
}

/// Counts a verdict on the first message of a key. Returns the number of times that it came to
/// nothing, if it rests now.
fn rests_after(key: &mut KeyState, topic: &Topic, verdict: &Verdict, limits: &Limits) -> Option<u32> {
    match verdict {
        Verdict::Failed(failure) => {
            key.failures += 1;
            let tries = limits.tries.min(limits.retry.attempts_of(topic, &failure.class));
            key.to_store = key.failures >= tries;
            (!key.to_store).then_some(key.failures)
        }
        Verdict::Rejected(_) | Verdict::TooNew(_) => {
            key.to_store = true;
            None
        }
        Verdict::Again(_) | Verdict::Outdated(_) | Verdict::Environment(_) => {
            key.conflicts += 1;
            // A conflict that lasts so long must not fill the prefetch: other messages could not
            // arrive any more. The key of a worker that dies while it stores rests, too.
            let rests = key.to_store || key.conflicts < MAX_CONFLICTS;
            key.to_store |= !rests;
            rests.then_some(key.conflicts)
        }
        Verdict::NotTried | Verdict::Done(_) => None,
    }
}
