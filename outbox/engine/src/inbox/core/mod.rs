//! The core of an inbox: every delivery in memory, and every decision about it. Pure: no await, no
//! clock, no task, no call.
//!
//! One entry, [`Core::on`], takes an [`Event`] and gives [`Command`]s; the actors around it carry
//! them out and know nothing. Each command that is answered has a number, and its answer names it.
//! That is the only fence: whose number is not known any more is dropped where it arrives.
//!
//! ```text
//!   deliveries came ──┐                                       ┌── begin this job: handle these, or store them
//!   units revoked   ──┤                                       ├── recall that one, if it is not begun
//!   job is back     ──┼─>  keys ── mailboxes   lines ── jobs ─┼── tell the broker that these are finished
//!   broker was told ──┤    ownership   pauses   intake        └── drained
//!   paused, drain   ──┘    acknowledgements
//! ```
//!
//! A key does one thing at a time, and its messages go in the order in which they came; keys go
//! side by side, as far as the bounds of their handlers allow. Behind a message that is not
//! finished nothing of its key goes (promise P4), and no key waits for another one (P5). Whatever
//! is finished, and nothing else, is acknowledged.
//!
//! State of others is not here: the handle takes requests for pauses, which the health check reads
//! too, and the processor learns the size of batches, for messages of the store. Both are pure, and
//! live with their owners.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::KeyId;
use outbox_contract::backend::Paused;

use acknowledging::{Acknowledging, Draining};
pub(crate) use event::{Command, Event, Item, Job, Limits, Task};
use key::{Doing, KeyState};
use lines::{Lines, Running};
use ownership::Ownership;

use crate::mailbox::Mailbox;

mod acknowledging;
pub(crate) mod conflicts;
mod event;
mod intake;
mod key;
mod lines;
pub(crate) mod meetings;
mod outcomes;
mod ownership;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// True if the model leaves this part of the core out.
macro_rules! sabotaged {
    ($core:expr, $part:ident) => {{
        #[cfg(test)]
        let is_left_out = $core.sabotage == Some(crate::inbox::core::model::Sabotage::$part);
        #[cfg(not(test))]
        let is_left_out = false;
        is_left_out
    }};
}
use sabotaged;

/// All deliveries that one life of an inbox has in memory.
#[derive(Debug)]
pub(crate) struct Core {
    limits: Limits,
    draws: fastrand::Rng,
    now: Duration,
    numbers: u64,
    commands: Vec<Command>,
    keys: HashMap<KeyId, KeyState>,
    lines: Lines,
    resting: BTreeSet<(Duration, KeyId)>,
    /// Keys of topics that are paused.
    waiting: BTreeSet<KeyId>,
    /// Deliveries that wait to be stored, in stored mode.
    intake: Mailbox<Item>,
    /// The worker died over it, so that it is not stored again before then.
    intake_rests_until: Option<Duration>,
    jobs: BTreeMap<u64, Out>,
    running: Running,
    ownership: Ownership,
    paused: Paused,
    acknowledging: Acknowledging,
    draining: Option<Draining>,
    #[cfg(test)]
    sabotage: Option<model::Sabotage>,
}

/// A job that is out.
#[derive(Debug)]
struct Out {
    task: Task,
    items: Vec<Item>,
    /// Handlers that it runs.
    handlers: BTreeSet<usize>,
    is_suspect: bool,
    is_recalled: bool,
}

impl Out {
    fn new(task: Task, items: Vec<Item>) -> Self {
        Self { task, items, handlers: BTreeSet::new(), is_suspect: false, is_recalled: false }
    }
}

impl Core {
    /// A core of a new subscription. `delay`: how long a finished delivery waits for others, to be
    /// acknowledged together. `seed`: of the draws for waits.
    pub(crate) fn new(limits: Limits, delay: Duration, seed: u64) -> Self {
        let handlers = limits.by_handler.len();
        Self {
            limits,
            draws: fastrand::Rng::with_seed(seed),
            now: Duration::ZERO,
            numbers: 0,
            commands: Vec::new(),
            keys: HashMap::new(),
            lines: Lines::new(handlers),
            resting: BTreeSet::new(),
            waiting: BTreeSet::new(),
            intake: Mailbox::default(),
            intake_rests_until: None,
            jobs: BTreeMap::new(),
            running: Running::new(handlers),
            ownership: Ownership::default(),
            paused: Paused::default(),
            acknowledging: Acknowledging::new(delay),
            draining: None,
            #[cfg(test)]
            sabotage: None,
        }
    }

    /// Takes an event; says what is to be done.
    pub(crate) fn on(&mut self, event: Event, now: Duration) -> Vec<Command> {
        self.now = now;
        let is_tick = matches!(event, Event::Tick);
        self.take(event);
        self.wake_keys();
        self.begin_jobs();
        self.acknowledge(is_tick);
        self.go_on_draining();
        std::mem::take(&mut self.commands)
    }

    /// Returns the time of the next [`Tick`](Event::Tick), if nothing else happens before.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        let rest = self.resting.first().map(|(until, _)| *until);
        [rest, self.intake_rests_until, self.acknowledging.at()].into_iter().flatten().min()
    }

    /// The consumer, or topics of it, that are not handled now.
    pub(crate) fn paused(&self) -> &Paused {
        &self.paused
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Delivered(items) => items.into_iter().for_each(|item| self.deliver(item)),
            Event::Revoked(units) => self.revoke(&units),
            Event::Finished { number, verdicts } => self.finished(number, verdicts),
            Event::Broke { number } => self.broke(number),
            Event::Acknowledged { number, told } => self.acknowledged(number, told),
            Event::Paused(paused) => self.pause(paused),
            Event::Tick => {
                self.intake_rests_until = self.intake_rests_until.filter(|until| self.now < *until)
            }
            Event::Drain => self.drain(),
        }
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Takes a delivery in, behind those of its key.
    fn deliver(&mut self, item: Item) {
        self.ownership.see(&item.tag);
        if self.limits.stores_all {
            return self.intake.push(item);
        }
        if let Some(key) = self.keys.get_mut(&item.key) {
            let name = item.key.clone();
            key.mailbox.push(item);
            if key.doing == Doing::Busy && sabotaged!(self, BusyKeysStand) {
                self.stand(&name);
            }
            return;
        }
        let (name, mut key) = (item.key.clone(), KeyState::default());
        key.mailbox.push(item);
        self.keys.insert(name.clone(), key);
        self.stand(&name);
    }

    /// Begins no more jobs, or none of these topics, until it is told otherwise.
    fn pause(&mut self, paused: Paused) {
        if self.paused == paused {
            return;
        }
        self.paused = paused;
        if !sabotaged!(self, WaitsForEver) {
            for name in std::mem::take(&mut self.waiting) {
                // One that was taken away since, and came again, is elsewhere.
                if self.keys.get(&name).is_some_and(|key| key.doing == Doing::Waiting) {
                    self.stand(&name);
                }
            }
        }
        if !self.limits.stores_all {
            let paused = self.paused.clone();
            self.recall(|item| paused.covers(&item.key.topic));
        }
    }

    fn drain(&mut self) {
        if self.draining.is_none() {
            self.draining = Some(Draining::Waits);
            self.recall(|_| true);
        }
    }

    fn begin_jobs(&mut self) {
        while self.jobs.len() < self.limits.workers
            && (self.draining.is_none() || sabotaged!(self, BeginsWhileDraining))
        {
            let job = if self.limits.stores_all { self.next_intake() } else { self.next_job() };
            let Some(job) = job else { return };
            self.commands.push(Command::Begin(job));
        }
    }

    /// The next job of keys. None: nothing may go now.
    fn next_job(&mut self) -> Option<Job> {
        if self.paused.route {
            return None;
        }
        let (mut out, mut attempt) = (Out::new(Task::Handle, Vec::new()), 1);
        while out.items.len() < self.limits.batch {
            let Some(name) = self.first_in_line(&out.handlers, !out.items.is_empty()) else { break };
            let Some(key) = self.keys.get_mut(&name) else { continue };
            key.doing = Doing::Busy;
            if key.to_store {
                // Its followers too: what stays here would only be found to be behind it, one by
                // one.
                out.task = Task::Store;
                out.items.extend(key.mailbox.split_off(0));
                break;
            }
            out.is_suspect = key.is_suspect();
            attempt = key.failures.saturating_add(1);
            let room = if out.is_suspect { 1 } else { self.limits.batch - out.items.len() };
            for _ in 0..room {
                let Some(item) = key.mailbox.first() else { break };
                if let Some(handler) = item.handler
                    && !out.handlers.contains(&handler)
                {
                    if !self.running.may_run(handler, &self.limits) {
                        break;
                    }
                    out.handlers.insert(handler);
                }
                out.items.extend(key.mailbox.take());
            }
            if out.is_suspect {
                break;
            }
        }
        (!out.items.is_empty()).then(|| self.give_out(out, attempt))
    }

    fn give_out(&mut self, out: Out, attempt: u32) -> Job {
        self.running.begin(&out.handlers, out.is_suspect);
        let number = self.next_number();
        let messages = out.items.iter().map(|item| Arc::clone(&item.message)).collect();
        let job = Job { number, task: out.task, messages, attempt, is_suspect: out.is_suspect };
        self.jobs.insert(number, out);
        job
    }
}
