//! The key mailboxes of an inbox: which key goes next, and what a verdict means for the rest of it. Pure.
//!
//! What it promises: one thing at a time for each key, its messages in the order in which they came; keys side by side, as far as their
//! handlers' bounds allow; behind a message that is not finished nothing of its key goes; no key waits for another one.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Paused, Tag, Unit};
use outbox_contract::{KeyId, Message};

use super::conflicts::MAX_CONFLICTS;
use super::credit::Hold;
use super::verdict::Verdict;

/// A delivery in memory, with its share of the credit.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) tag: Tag,
    pub(crate) message: Arc<Message>,
    pub(crate) key: KeyId,
    /// Whose bound it counts in.
    pub(crate) handler: Option<usize>,
    pub(crate) _hold: Hold,
}

/// Something for a worker.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) number: u64,
    pub(crate) what: What,
    /// The messages of one key stand together, in order.
    pub(crate) items: Vec<Item>,
    /// Which attempt the first one is at, from 1. One that was tried before goes alone.
    pub(crate) attempt: u32,
    /// Whether its one message was tried before, to be handled.
    pub(crate) is_suspect: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// To be handled.
    Handle,
    /// To be written to the store: the first message of its one key fails.
    Store,
}

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// The most messages of a job.
    pub(crate) batch: usize,
    /// How often a message is tried before it is stored.
    pub(crate) tries: u32,
    pub(crate) first_delay: Duration,
    pub(crate) max_delay: Duration,
    /// How many jobs of suspects may be out: their handlers may take all of their time, and the others go on meanwhile.
    pub(crate) suspects: usize,
    /// How many jobs may run each handler at once.
    pub(crate) by_handler: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Stands in the line of its first message's handler, at this place.
    InLine(u64),
    /// In a job.
    Busy,
    /// Its first message failed a moment ago.
    Resting,
    /// Would stand in line, but its topic is paused.
    Waiting,
}

#[derive(Debug)]
struct Mailbox {
    queue: VecDeque<Item>,
    state: State,
    /// How often the first message failed.
    failures: u32,
    /// How often others were in its way.
    conflicts: u32,
    /// The first message was tried often enough.
    to_store: bool,
}

impl Mailbox {
    fn is_suspect(&self) -> bool {
        self.failures > 0 || self.conflicts > 0
    }

    /// The first message is another one now.
    fn absolve(&mut self) {
        self.failures = 0;
        self.conflicts = 0;
        self.to_store = false;
    }
}

pub(crate) struct Dispatcher {
    limits: Limits,
    keys: HashMap<KeyId, Mailbox>,
    /// One line for each handler, the first for what has none, so that a handler at its bound costs the others no look; and behind these another one for
    /// the suspects of each handler.
    lines: Vec<VecDeque<(u64, KeyId)>>,
    next_place: u64,
    resting: BTreeSet<(Duration, KeyId)>,
    running: Vec<usize>,
    jobs: BTreeMap<u64, (BTreeSet<usize>, bool)>,
    suspects_out: usize,
    next_job: u64,
    /// The latest ownership of each unit that anything came of.
    seen: BTreeMap<Unit, u64>,
    /// Ownerships up to these are over.
    over: BTreeMap<Unit, u64>,
    paused: Paused,
    /// Keys of topics that are paused.
    waiting: BTreeSet<KeyId>,
    halted: bool,
}

impl Dispatcher {
    pub(crate) fn new(limits: Limits) -> Self {
        let handlers = limits.by_handler.len();
        Self {
            limits,
            keys: HashMap::new(),
            lines: (0..=2 * handlers).map(|_| VecDeque::new()).collect(),
            next_place: 0,
            resting: BTreeSet::new(),
            running: vec![0; handlers],
            jobs: BTreeMap::new(),
            suspects_out: 0,
            next_job: 0,
            seen: BTreeMap::new(),
            over: BTreeMap::new(),
            paused: Paused::default(),
            waiting: BTreeSet::new(),
            halted: false,
        }
    }

    /// Takes a delivery in, behind those of its key.
    pub(crate) fn push(&mut self, item: Item) {
        let seen = self.seen.entry(item.tag.unit.clone()).or_default();
        *seen = item.tag.incarnation.max(*seen);
        if let Some(mailbox) = self.keys.get_mut(&item.key) {
            mailbox.queue.push_back(item);
            return;
        }
        let key = item.key.clone();
        let mailbox = Mailbox {
            queue: VecDeque::from([item]),
            state: State::Busy,
            failures: 0,
            conflicts: 0,
            to_store: false,
        };
        self.keys.insert(key.clone(), mailbox);
        self.stand(&key);
    }

    /// The next job. None: nothing may go now.
    pub(crate) fn next(&mut self) -> Option<Job> {
        if self.paused.route || self.halted {
            return None;
        }
        let mut used = BTreeSet::new();
        let mut items = Vec::new();
        let mut attempt = 1;
        let (mut what, mut is_suspect) = (What::Handle, false);
        while items.len() < self.limits.batch {
            let Some(key) = self.first_in_line(&used, !items.is_empty()) else { break };
            let Some(mailbox) = self.keys.get_mut(&key) else { continue };
            mailbox.state = State::Busy;
            if mailbox.to_store {
                // Its followers too: what stays here would only be found to be behind it, one by one.
                what = What::Store;
                items.extend(mailbox.queue.drain(..));
                break;
            }
            is_suspect = mailbox.is_suspect();
            attempt = mailbox.failures.saturating_add(1);
            let most = if is_suspect { 1 } else { self.limits.batch - items.len() };
            for _ in 0..most {
                let Some(item) = mailbox.queue.front() else { break };
                if let Some(handler) = item.handler
                    && !used.contains(&handler)
                {
                    if self.running[handler] >= self.limits.by_handler[handler] {
                        break;
                    }
                    used.insert(handler);
                }
                items.extend(mailbox.queue.pop_front());
            }
            if is_suspect {
                break;
            }
        }
        if items.is_empty() {
            return None;
        }
        for handler in &used {
            self.running[*handler] += 1;
        }
        let number = self.next_job;
        self.next_job += 1;
        self.suspects_out += usize::from(is_suspect);
        self.jobs.insert(number, (used, is_suspect));
        Some(Job { number, what, items, attempt, is_suspect })
    }

    /// Takes what became of the messages of a job. `draw` is uniform from 0 to 1.
    pub(crate) fn finished(
        &mut self,
        number: u64,
        results: Vec<(Item, Verdict)>,
        now: Duration,
        mut draw: impl FnMut() -> f64,
    ) {
        let Some((used, is_suspect)) = self.jobs.remove(&number) else { return };
        self.suspects_out -= usize::from(is_suspect);
        for handler in used {
            self.running[handler] -= 1;
        }
        let mut results = results.into_iter().peekable();
        while let Some(first) = results.next() {
            let key = first.0.key.clone();
            let mut run = vec![first];
            while let Some(next) = results.next_if(|(item, _)| item.key == key) {
                run.push(next);
            }
            self.key_finished(&key, run, now, draw());
        }
    }

    fn key_finished(&mut self, key: &KeyId, run: Vec<(Item, Verdict)>, now: Duration, draw: f64) {
        let Some(mailbox) = self.keys.get_mut(key) else { return };
        let mut back: Vec<Item> = Vec::new();
        let mut verdict = None;
        let mut is_first = true;
        for (item, said) in run {
            if verdict.is_none() && matches!(said, Verdict::Done(_)) {
                mailbox.absolve();
                continue;
            }
            let lost = self.over.get(&item.tag.unit).is_some_and(|over| item.tag.incarnation <= *over);
            if verdict.is_none() && lost {
                // Its next owner has it.
                mailbox.absolve();
                is_first = false;
            }
            if verdict.is_none() {
                verdict = Some(if lost { Verdict::NotTried } else { said });
            }
            if !lost {
                back.push(item);
            }
        }
        back.into_iter().rev().for_each(|item| mailbox.queue.push_front(item));
        if mailbox.queue.is_empty() {
            self.keys.remove(key);
            return;
        }
        let rest = match verdict {
            Some(Verdict::Failed(_)) if is_first => {
                mailbox.failures += 1;
                mailbox.to_store = mailbox.failures >= self.limits.tries;
                (!mailbox.to_store).then_some(mailbox.failures)
            }
            Some(Verdict::Rejected(_)) if is_first => {
                mailbox.to_store = true;
                None
            }
            Some(Verdict::Again(_) | Verdict::Outdated(_) | Verdict::Environment(_)) if is_first => {
                mailbox.conflicts += 1;
                // What lasts so long must not fill the prefetch: the others could not come any more.
                mailbox.to_store |= mailbox.conflicts >= MAX_CONFLICTS;
                (!mailbox.to_store).then_some(mailbox.conflicts)
            }
            _ => None,
        };
        let Some(times) = rest else {
            self.stand(key);
            return;
        };
        let bound = self.limits.first_delay.saturating_mul(1 << (times - 1).min(16));
        let delay = bound.min(self.limits.max_delay).mul_f64(0.5 + draw.clamp(0.0, 1.0) / 2.0);
        mailbox.state = State::Resting;
        self.resting.insert((now + delay, key.clone()));
    }

    /// Lets keys stand in line again whose rest is over. Says when the next one's is.
    pub(crate) fn wake(&mut self, now: Duration) -> Option<Duration> {
        while let Some((until, _)) = self.resting.first()
            && *until <= now
        {
            let Some((_, key)) = self.resting.pop_first() else { break };
            if self.keys.get(&key).is_some_and(|mailbox| mailbox.state == State::Resting) {
                self.stand(&key);
            }
        }
        self.resting.first().map(|(until, _)| *until)
    }

    /// These units belong to this member no more: what waits of them is dropped, and what is being handled of them is not tried again.
    pub(crate) fn revoke(&mut self, units: &[Unit]) {
        for unit in units {
            let seen = self.seen.get(unit).copied().unwrap_or_default();
            self.over.insert(unit.clone(), seen);
        }
        let is_over = |item: &Item| units.contains(&item.tag.unit);
        let hit = self.keys.iter().filter(|(_, mailbox)| mailbox.queue.iter().any(is_over));
        let mut hit: Vec<KeyId> = hit.map(|(key, _)| key.clone()).collect();
        hit.sort_unstable();
        for key in hit {
            let Some(mailbox) = self.keys.get_mut(&key) else { continue };
            let first_is_over = mailbox.queue.front().is_some_and(is_over);
            mailbox.queue.retain(|item| !is_over(item));
            if mailbox.state == State::Busy {
                continue;
            }
            if mailbox.queue.is_empty() {
                self.keys.remove(&key);
            } else if first_is_over {
                mailbox.absolve();
                self.stand(&key);
            }
        }
    }

    /// Gives out no more jobs, or none of these topics, until it is told otherwise.
    pub(crate) fn pause(&mut self, paused: Paused) {
        if self.paused == paused {
            return;
        }
        self.paused = paused;
        for key in std::mem::take(&mut self.waiting) {
            // One that was taken away since, and came again, is elsewhere.
            if self.keys.get(&key).is_some_and(|mailbox| mailbox.state == State::Waiting) {
                self.stand(&key);
            }
        }
    }

    /// Gives out no more jobs, for good.
    pub(crate) fn halt(&mut self) {
        self.halted = true;
    }

    /// Whether no job is out.
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    fn stand(&mut self, key: &KeyId) {
        let Some(mailbox) = self.keys.get_mut(key) else { return };
        let handler = mailbox.queue.front().and_then(|item| item.handler);
        let suspects = if mailbox.is_suspect() { self.running.len() } else { 0 };
        // Storing runs no handler.
        let line = if mailbox.to_store { 0 } else { handler.map_or(0, |handler| handler + 1 + suspects) };
        mailbox.state = State::InLine(self.next_place);
        self.lines[line].push_back((self.next_place, key.clone()));
        self.next_place += 1;
    }

    /// Takes the key out of line that has stood there longest, of those whose handler has room. `with_others`: it would ride with others;
    /// one that has failed goes alone, and nothing passes it.
    fn first_in_line(&mut self, used: &BTreeSet<usize>, with_others: bool) -> Option<KeyId> {
        let mut best: Option<(u64, usize)> = None;
        for (number, line) in self.lines.iter_mut().enumerate() {
            while let Some((place, key)) = line.front() {
                let here = self.keys.get_mut(key).filter(|mailbox| mailbox.state == State::InLine(*place));
                if let Some(mailbox) = here {
                    if !self.paused.topics.contains(&key.topic) {
                        break;
                    }
                    mailbox.state = State::Waiting;
                    self.waiting.insert(key.clone());
                }
                // A place that was left: its key is gone, or stands elsewhere, or waits from here on.
                line.pop_front();
            }
            let has_room = number.checked_sub(1).is_none_or(|at| {
                let (handler, is_suspect) = (at % self.running.len(), at >= self.running.len());
                let is_free =
                    used.contains(&handler) || self.running[handler] < self.limits.by_handler[handler];
                is_free && (!is_suspect || self.suspects_out < self.limits.suspects)
            });
            if let Some((place, _)) = line.front()
                && has_room
                && best.is_none_or(|(first, _)| *place < first)
            {
                best = Some((*place, number));
            }
        }
        let (_, number) = best?;
        let (_, key) = self.lines[number].front()?;
        if with_others && self.keys.get(key).is_some_and(|mailbox| mailbox.to_store || mailbox.is_suspect()) {
            return None;
        }
        self.lines[number].pop_front().map(|(_, key)| key)
    }
}

#[cfg(test)]
#[path = "dispatcher_tests.rs"]
mod tests;
