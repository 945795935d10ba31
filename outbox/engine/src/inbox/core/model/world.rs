//! The world of the model: a broker, a store, members, and a scheduler that lets one thing happen
//! after the other.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::Paused;
use outbox_contract::backend::Received;
use outbox_contract::{Failure, KeyId, RetryPolicy};

use super::super::{Command, Core, Event, Item, Limits, Task};
use super::member::{JobOut, Member};
use super::tables::{Broker, KEYS, Nature, Sent, Store, TOPICS, topic};
use super::{Case, Judged};
use crate::inbox::undecodable::message_of;
use crate::inbox::verdict::{Done, Verdict};

pub(super) const MS: Duration = Duration::from_millis(1);
/// Virtual time within which everything is finished after healing.
const HEALS_IN: Duration = Duration::from_secs(120);

pub(super) struct World {
    case: Case,
    pub(super) random: fastrand::Rng,
    is_loud: bool,
    is_healed: bool,
    pub(super) now: Duration,
    pub(super) limits: Limits,
    pub(super) broker: Broker,
    pub(super) store: Store,
    pub(super) members: Vec<Member>,
    paused: Paused,
    ids: u64,
    sent: u128,
}

impl World {
    pub(super) fn new(case: Case, seed: u64, is_loud: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let limits = Limits {
            workers: random.usize(1..6),
            stores_all: case.stores_all,
            batch: random.usize(1..5),
            tries: random.u32(1..4),
            retry: RetryPolicy::default(),
            first_delay: MS * 50,
            max_delay: MS * 400,
            suspects: random.usize(1..3),
            by_handler: vec![random.usize(1..3), usize::MAX],
            told_at_once: random.usize(0..9),
            outage_delays: (MS * 100, MS * 800),
        };
        let mut world = Self {
            case,
            is_loud,
            is_healed: false,
            now: Duration::ZERO,
            limits,
            broker: Broker::default(),
            store: Store::default(),
            members: Vec::new(),
            paused: Paused::default(),
            ids: 0,
            sent: 0,
            random,
        };
        (0..world.random.usize(1..3)).for_each(|_| world.start());
        world
    }

    fn start(&mut self) {
        self.ids += 1;
        let delay = if self.random.bool() { Duration::ZERO } else { MS * 20 };
        let mut core = Core::new(self.limits.clone(), delay, self.random.u64(..));
        core.sabotage = self.case.sabotage;
        self.members.push(Member::new(self.ids, core));
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.is_loud {
            println!("{:>9.3} {}", self.now.as_secs_f64(), what());
        }
    }

    pub(super) fn handler(key: &KeyId) -> usize {
        usize::from(key.key.as_str().ends_with(['1', '3', '5']))
    }

    pub(super) fn send(&mut self) {
        self.sent += 1;
        let sent = Sent { key: self.random.usize(..KEYS), id: self.sent };
        let times = self.random.u32(1..8);
        let nature = match self.random.u32(0..30) {
            0..2 => Some(Nature::Fails(times)),
            2 => Some(Nature::Conflicts(times)),
            3 => Some(Nature::Interrupted(times)),
            4 if times.is_multiple_of(2) => Some(Nature::TooNew),
            4 => Some(Nature::Rejected),
            _ => None,
        };
        if let Some(nature) = nature {
            self.store.natures.insert(sent.id, nature);
        }
        self.store.sent.entry(sent.key).or_default().push(sent);
        self.broker.send(sent);
    }

    pub(super) fn drain_store(&mut self) {
        let key = self.random.usize(..KEYS);
        self.store.drain(key);
    }

    pub(super) fn pause_topic(&mut self) {
        let topic = topic(self.random.usize(..TOPICS));
        if self.paused.topics.contains(topic) {
            self.paused.topics.retain(|other| other != topic);
        } else {
            self.paused.topics.push(topic.clone());
        }
    }

    pub(super) fn pause_route(&mut self) {
        self.paused.route ^= true;
    }

    /// A process dies, and another one begins.
    pub(super) fn kill(&mut self, at: usize) {
        let member = self.members.remove(at);
        self.say(|| format!("member {} is killed", member.id));
        self.broker.leave(member.id);
        self.start();
    }

    /// A worker or the acknowledger dies. What it has said already may still be under way, behind
    /// the news of its death.
    pub(super) fn kill_part(&mut self, at: usize) {
        let (is_late, applied) = (self.random.bool(), self.random.bool());
        let member = &mut self.members[at];
        if let Some(number) = self.random.choice(member.jobs.keys().copied().collect::<Vec<_>>()) {
            let known = |event: &Event| matches!(event, Event::Finished { number: of, .. } if *of == number);
            let late = member.answers.iter().position(known).map(|at| member.answers.remove(at));
            member.answers.insert(0, Event::Broke { number });
            member.answers.extend(late.filter(|_| is_late));
        }
        if self.random.bool()
            && let Some((number, tags)) = member.asked.clone()
            && !member.answers.iter().any(|event| matches!(event, Event::Acknowledged { .. }))
        {
            if applied && !self.broker.is_away {
                self.broker.acknowledge(member.id, &tags);
            }
            member.answers.push(Event::Acknowledged { number, told: false });
            if is_late {
                member.answers.push(Event::Acknowledged { number, told: true });
            }
        }
    }

    pub(super) fn begin_drain(&mut self, at: usize) -> Judged {
        if self.members[at].is_draining {
            return Ok(());
        }
        self.feed(at, Event::Drain)
    }

    /// One thing happens at a member.
    pub(super) fn act(&mut self, at: usize) -> Judged {
        let member = &mut self.members[at];
        if member.is_drained {
            let id = member.id;
            self.members.remove(at);
            self.broker.leave(id);
            self.start();
            return Ok(());
        }
        if member.paused != self.paused {
            let paused = self.paused.clone();
            return self.feed(at, Event::Paused(paused));
        }
        match self.random.u32(0..10) {
            0..2 if !self.members[at].is_draining => self.receive(at),
            2..4 => {
                let received = self.members[at].received.pop_front();
                return received.map_or(Ok(()), |event| self.feed(at, event));
            }
            4..6 => return self.answer(at),
            6 => return self.tell(at),
            7 => {
                if self.members[at].core.next_tick().is_some_and(|next| next <= self.now) {
                    return self.feed(at, Event::Tick);
                }
            }
            _ => return self.work(at),
        }
        Ok(())
    }

    fn receive(&mut self, at: usize) {
        let most = self.random.usize(1..12);
        let member = &mut self.members[at];
        let event = match self.broker.next(member.id, most) {
            Some(Received::Deliveries(deliveries)) => {
                let items = deliveries.into_iter().map(|delivery| {
                    let (tag, message) = message_of(delivery, None);
                    let (key, _hold) = (message.key_id(), member.credit.take(1));
                    Item { tag, handler: Some(Self::handler(&key)), key, _hold, message: Arc::new(message) }
                });
                Event::Delivered(items.collect())
            }
            Some(Received::Revoked(units)) => Event::Revoked(units),
            _ => return,
        };
        member.received.push_back(event);
    }

    fn answer(&mut self, at: usize) -> Judged {
        let member = &mut self.members[at];
        if member.answers.is_empty() {
            return Ok(());
        }
        // Those of one actor come in order: the first of each is as good as any.
        let which = self.random.usize(..member.answers.len());
        let number = number_of(&member.answers[which]);
        let which = member.answers.iter().position(|event| number_of(event) == number).unwrap_or(which);
        let event = member.answers.remove(which);
        self.feed(at, event)
    }

    /// The acknowledger does its work.
    fn tell(&mut self, at: usize) -> Judged {
        let member = &mut self.members[at];
        let Some((number, tags)) = member.asked.clone() else { return Ok(()) };
        if member.answers.iter().any(|event| matches!(event, Event::Acknowledged { .. })) {
            return Ok(());
        }
        let told = !self.broker.is_away && (self.is_healed || self.random.u32(0..10) > 0);
        if told || (!self.broker.is_away && self.random.bool()) {
            self.broker.acknowledge(member.id, &tags);
        }
        member.answers.push(Event::Acknowledged { number, told });
        Ok(())
    }

    /// A worker does a part of its job.
    fn work(&mut self, at: usize) -> Judged {
        let Self { members, store, random, is_healed, .. } = self;
        let member = &mut members[at];
        let said = |number: &u64| !member.answers.iter().any(|event| number_of(event) == Some(*number));
        let numbers: Vec<u64> = member.jobs.keys().copied().filter(said).collect();
        let Some(number) = random.choice(numbers) else { return Ok(()) };
        let Some(running) = member.jobs.get_mut(&number) else { return Ok(()) };
        let count = running.tags.len();
        if !running.is_begun && running.is_recalled {
            running.verdicts = vec![Verdict::NotTried; count];
        }
        running.is_begun = true;
        if running.verdicts.len() < count {
            let tag = &running.tags[running.verdicts.len()];
            let sent = self.broker.sent(tag);
            let verdict = match running.job.task {
                Task::Store => {
                    store.keep(sent)?;
                    Verdict::Done(Done::Stored)
                }
                Task::Handle if stopped(&running.verdicts, &running.job, running.verdicts.len()) => {
                    Verdict::NotTried
                }
                Task::Handle => handle(store, sent, *is_healed)?,
            };
            running.verdicts.push(verdict);
        }
        if running.verdicts.len() == count {
            let verdicts = running.verdicts.clone();
            member.answers.push(Event::Finished { number, verdicts });
        }
        Ok(())
    }

    /// Lets a core take an event, and looks at what it wants.
    fn feed(&mut self, at: usize, event: Event) -> Judged {
        self.say(|| format!("member {at}: {event:?}"));
        self.members[at].note(&event);
        let commands = self.members[at].core.on(event, self.now);
        for command in commands {
            self.say(|| format!("    {command:?}"));
            let member = &self.members[at];
            match command {
                Command::Begin(job) => {
                    let items = &member.core.jobs[&job.number].items;
                    let tags: Vec<_> = items.iter().map(|item| item.tag.clone()).collect();
                    self.judge_job(member, &job, &tags)?;
                    let running =
                        JobOut { tags, is_recalled: false, is_begun: false, verdicts: Vec::new(), job };
                    self.members[at].jobs.insert(running.job.number, running);
                }
                Command::Recall(number) => {
                    if let Some(running) = self.members[at].jobs.get_mut(&number) {
                        running.is_recalled = true;
                    }
                }
                Command::Acknowledge { number, tags } => {
                    self.judge_acknowledgement(member, &tags)?;
                    self.members[at].told.extend(tags.iter().cloned());
                    self.members[at].asked = Some((number, tags));
                }
                Command::Drained { .. } => {
                    self.judge_drained(member)?;
                    self.members[at].is_drained = true;
                }
            }
        }
        self.judge_memory(&self.members[at])
    }

    /// Everything is well again, and nothing new comes.
    pub(super) fn heal(&mut self) -> Judged {
        self.say(|| "all is well".to_owned());
        self.is_healed = true;
        self.broker.is_away = false;
        self.paused = Paused::default();
        let until = self.now + HEALS_IN;
        while self.now < until {
            for _ in 0..60 {
                let at = self.random.usize(..self.members.len());
                self.act(at)?;
            }
            (0..KEYS).for_each(|key| self.store.drain(key));
            if self.broker.unacknowledged() == 0
                && self.store.is_drained()
                && self.members.iter().all(Member::is_idle)
            {
                return self.is_whole();
            }
            self.now += MS * 20;
        }
        Err(format!("stuck: {} deliveries are not acknowledged", self.broker.unacknowledged()))
    }

    fn is_whole(&self) -> Judged {
        if let Some(sent) = self.store.unfinished() {
            return Err(format!("lost: {sent:?}"));
        }
        for member in &self.members {
            if member.is_draining && !member.is_drained {
                return Err(format!("stuck: the drain of member {} is not over", member.id));
            }
            let core = &member.core;
            if !core.running.is_idle() || !core.keys.is_empty() || member.credit.out() != (0, 0) {
                return Err(format!("leaked: member {}, {:?}", member.id, core.running));
            }
        }
        Ok(())
    }
}

/// The job or acknowledgement that an event answers.
fn number_of(event: &Event) -> Option<u64> {
    match event {
        Event::Finished { number, .. } | Event::Broke { number } | Event::Acknowledged { number, .. } => {
            Some(*number)
        }
        _ => None,
    }
}

/// Returns true if an earlier message of its key is not finished.
fn stopped(verdicts: &[Verdict], job: &super::super::Job, at: usize) -> bool {
    let earlier = job.messages.iter().zip(verdicts);
    let mut of_key = earlier.filter(|(message, _)| message.key_id() == job.messages[at].key_id());
    of_key.any(|(_, verdict)| !matches!(verdict, Verdict::Done(_)))
}

/// One message through its handler, in a transaction.
fn handle(store: &mut Store, sent: Sent, is_healed: bool) -> Result<Verdict, String> {
    if store.is_finished(sent) {
        return Ok(Verdict::Done(Done::Duplicate));
    }
    if store.is_behind(sent) {
        store.keep(sent)?;
        return Ok(Verdict::Done(Done::Stored));
    }
    let failure = || Failure::new("tested", "tested");
    let left = |times: u32| times.checked_sub(1).filter(|left| *left > 0 && !is_healed);
    let (verdict, later) = match store.natures.remove(&sent.id) {
        None => {
            store.finish(sent)?;
            return Ok(Verdict::Done(Done::Handled));
        }
        Some(Nature::Fails(times)) => (Verdict::Failed(failure()), left(times).map(Nature::Fails)),
        Some(Nature::Conflicts(times)) => (Verdict::Again(failure()), left(times).map(Nature::Conflicts)),
        Some(Nature::Interrupted(times)) => {
            (Verdict::Environment(failure()), left(times).map(Nature::Interrupted))
        }
        Some(Nature::Rejected) => (Verdict::Rejected(failure()), Some(Nature::Rejected)),
        Some(Nature::TooNew) => (Verdict::TooNew(failure()), Some(Nature::TooNew)),
    };
    if let Some(later) = later {
        store.natures.insert(sent.id, later);
    }
    Ok(verdict)
}
