//! The world of the model: a store, a broker, relays, and a scheduler that lets one thing happen after the other.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Ordering, RelayId, Wakeup};
use outbox_contract::{Exhausted, RetryPolicy, Route};

use super::super::breaker::Breaker;
use super::super::{Answer, Core, Event, Limits, Question};
use super::broker::Broker;
use super::cast::{Judged, KEYS, TOPICS, the_topic};
use super::relay::{PUBLISH_TIMEOUT, Relay, Source};
use super::store::Store;
use super::{Case, Sabotage};
use crate::relay::policies::Policies;

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const HEARTBEAT: Duration = Duration::from_secs(4);

pub(super) struct World {
    pub(super) case: Case,
    pub(super) random: fastrand::Rng,
    pub(super) loud: bool,
    pub(super) healed: bool,
    pub(super) now: Duration,
    pub(super) store: Store,
    pub(super) broker: Broker,
    pub(super) relays: Vec<Relay>,
    pub(super) paused: [bool; TOPICS],
    pub(super) route_paused: bool,
    pub(super) failing_store: u32,
    limits: Limits,
    policies: Arc<Policies>,
    ids: u128,
}

impl World {
    pub(super) fn new(case: Case, seed: u64, loud: bool) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let limits = Limits {
            fetch_rows: random.usize(1..8),
            fetch_bytes: usize::MAX >> 2,
            max_in_flight: random.usize(8..24),
            max_in_flight_bytes: usize::MAX >> 2,
            max_per_key: random.usize(1..6),
            batch: random.usize(1..8),
            batch_bytes: usize::MAX >> 2,
            shares: 2,
            publishers: random.usize(1..6),
            silent_publishers: random.usize(1..3),
            walk: random.i64(0..12),
            first_delay: MS * 100,
            max_delay: MS * 800,
            publish_timeout: PUBLISH_TIMEOUT,
            idle_poll: MS * 500,
            due_poll: MS * 1_000,
            heartbeat: HEARTBEAT,
        };
        let policy = RetryPolicy {
            max_attempts: 3,
            first_delay: MS * 50,
            max_delay: MS * 800,
            ..RetryPolicy::default()
        };
        let hold = RetryPolicy { exhausted: Exhausted::Hold, ..policy.clone() };
        let policies =
            Policies { default: policy, by_topic: [(the_topic(1).clone(), hold)].into_iter().collect() };
        let ordering = case
            .ordering
            .unwrap_or_else(|| [Ordering::Single, Ordering::Writers, Ordering::Stripes][random.usize(..3)]);
        let mut store = Store::new(ordering, &mut random);
        store.settles_without_id = case.sabotage == Some(Sabotage::SettlesWithoutId);
        let mut world = Self {
            case,
            loud,
            healed: false,
            now: Duration::ZERO,
            store,
            broker: Broker::default(),
            relays: Vec::new(),
            paused: [false; TOPICS],
            route_paused: false,
            failing_store: 0,
            limits,
            policies: Arc::new(policies),
            ids: 0,
            random,
        };
        for _ in 0..world.random.usize(1..3) {
            world.start();
        }
        world
    }

    pub(super) fn start(&mut self) {
        self.ids += 1;
        let id = RelayId::from_uuid(uuid::Uuid::from_u128(self.ids));
        let core = self.core(id);
        self.relays.push(Relay::new(id, core));
    }

    fn core(&mut self, id: RelayId) -> Core {
        let policies = Arc::clone(&self.policies);
        let seed = self.random.u64(..);
        let breaker = Breaker::new(self.limits.first_delay, self.limits.max_delay);
        let mut core =
            Core::new((Route::default(), id), self.store.ordering, self.limits, policies, breaker, seed);
        core.sabotage = self.case.sabotage;
        core
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if self.loud {
            println!("{:>9.3} {}", self.now.as_secs_f64(), what());
        }
    }

    /// Lets a core take an event, and looks at it and at what it wants.
    pub(super) fn feed(&mut self, at: usize, event: Event) -> Judged {
        self.say(|| format!("relay {at}: {event:?}"));
        let now = self.now;
        let relay = &mut self.relays[at];
        let commands = relay.core.on(event, now);
        if self.loud {
            for command in &commands {
                println!("{:>9.3} relay {at}:   -> {command:?}", now.as_secs_f64());
            }
        }
        relay.carry_out(commands, now)?;
        relay.core.audit()?;
        match self.store.passed_by_a_mark() {
            Some((of, row, mark)) => Err(format!("mark {mark} of key {of} passes {row}")),
            None => Ok(()),
        }
    }

    /// One relay does something.
    pub(super) fn act(&mut self, at: usize) -> Judged {
        if self.now < self.relays[at].frozen_until {
            return Ok(());
        }
        match self.random.u32(0..20) {
            0..7 => self.hear(at),
            7..9 => self.tick(at),
            9..12 => self.ask(at),
            12..14 => self.transit(at),
            14..16 => self.settle(at),
            16..19 => self.publish(at),
            _ => self.keep(at),
        }
    }

    /// Does everything that there is to do.
    pub(super) fn act_on_all(&mut self, at: usize) -> Judged {
        let id = self.relays[at].id;
        let parts = [Self::keep, Self::ask, Self::transit, Self::settle, Self::publish];
        for part in parts {
            part(self, at)?;
            if self.relays.get(at).is_none_or(|relay| relay.id != id) {
                // It left.
                return Ok(());
            }
        }
        while let Some(event) = self.relays[at].next_answer(&mut self.random) {
            self.feed(at, event)?;
        }
        self.tick(at)
    }

    fn hear(&mut self, at: usize) -> Judged {
        match self.relays[at].next_answer(&mut self.random) {
            Some(event) => self.feed(at, event),
            None => Ok(()),
        }
    }

    fn tick(&mut self, at: usize) -> Judged {
        if self.relays[at].core.next_tick().is_some_and(|due| due <= self.now) {
            return self.feed(at, Event::Tick);
        }
        Ok(())
    }

    pub(super) fn store_fails(&mut self) -> bool {
        self.random.u32(0..1_000) < self.failing_store
    }

    /// The poller asks.
    fn ask(&mut self, at: usize) -> Judged {
        if self.random.bool()
            && let Some((number, request)) = self.relays[at].below.take()
        {
            let fails = self.store_fails();
            let answer =
                (!fails).then(|| (self.store.fetch(&request, self.now), self.store.marks(&request.buckets)));
            let event = Event::LookedBelow { number, took: MS, answer };
            self.relays[at].answer(Source::Below, event);
        }
        let Some((number, question)) = self.relays[at].question.take() else { return Ok(()) };
        if self.store_fails() {
            self.begin_anew(at);
            return Ok(());
        }
        let answer = match question {
            Question::Fetch(request) => Answer::Fetched(self.store.fetch(&request, self.now)),
            Question::Due(request) => Answer::Due(self.store.due(&request, self.now)),
            Question::Writers => Answer::Writers(self.store.writers(self.random.bool())),
            Question::Marks(buckets) => Answer::Marks(self.store.marks(&buckets)),
        };
        self.relays[at].answer(Source::Poller, Event::Answered { number, answer });
        Ok(())
    }

    /// Transitions are made one after the other. One whose answer is lost ends the incarnation.
    fn transit(&mut self, at: usize) -> Judged {
        let Some((number, transition)) = self.relays[at].transitions.pop_front() else { return Ok(()) };
        self.judge(&transition)?;
        let fails = self.store_fails();
        if fails && self.random.bool() {
            self.begin_anew(at);
            return Ok(());
        }
        let answer = self.store.transition(&transition, self.now);
        if fails {
            self.begin_anew(at);
            return Ok(());
        }
        self.relays[at].answer(Source::Transitions, Event::Transitioned { number, answer });
        Ok(())
    }

    pub(super) fn settle(&mut self, at: usize) -> Judged {
        let fails = self.store_fails();
        let relay = &mut self.relays[at];
        let Some(removal) = relay.removals.pop_front() else { return Ok(()) };
        for id in self.store.settle(&removal.rows) {
            if !self.broker.log.contains(&id) && !self.store.out.contains(&id) {
                return Err(format!("lost: {id} was removed and never arrived"));
            }
        }
        if fails {
            // It is tried again, until it succeeds.
            relay.removals.push_front(removal);
            self.begin_anew(at);
            return Ok(());
        }
        let event = if removal.incarnation == relay.incarnation {
            Event::Removed { number: removal.number }
        } else {
            relay.owed()
        };
        relay.answer(Source::Settler, event);
        Ok(())
    }

    /// A publisher goes on with a batch: with the messages of one more key, or it ends.
    fn publish(&mut self, at: usize) -> Judged {
        let relay = &mut self.relays[at];
        if relay.batches.is_empty() {
            return Ok(());
        }
        let which = self.random.usize(..relay.batches.len());
        let out = &mut relay.batches[which];
        if out.carried < out.outcomes.len() {
            let first = out.carried;
            let key = out.batch.messages[first].message.key_id();
            let run = out.batch.messages[first..].iter().take_while(|stored| stored.message.key_id() == key);
            let ids: Vec<_> = run.map(|stored| stored.message.id).collect();
            let of = super::cast::number_of(&key);
            let outcomes = self.broker.carry(&ids, of, &self.store, &mut self.random)?;
            if self.loud {
                println!("{:>9.3} broker: {ids:?} of key {of}: {outcomes:?}", self.now.as_secs_f64());
            }
            out.carried += ids.len();
            out.outcomes[first..first + ids.len()].clone_from_slice(&outcomes);
            if self.random.u32(0..4) == 0 {
                let delivered = out
                    .outcomes
                    .iter()
                    .map(|outcome| *outcome == Some(outbox_contract::backend::Outcome::Delivered));
                let event = Event::Heard { batch: out.batch.number, delivered: delivered.collect() };
                let source = Source::Publisher(out.batch.number);
                relay.answer(source, event);
            }
            return Ok(());
        }
        let is_waited_for = out.outcomes.iter().any(Option::is_none) && self.now < out.until;
        if !is_waited_for {
            let broke = self.random.u32(0..20) == 0 && !self.healed;
            relay.end(which, broke);
        }
        Ok(())
    }

    /// The store can't be relied on: what is known is dropped. Batches that are out are waited for, and what they delivered is removed.
    pub(super) fn begin_anew(&mut self, at: usize) {
        self.say(|| format!("relay {at} begins anew"));
        let id = self.relays[at].id;
        let core = self.core(id);
        let now = self.now;
        let stopping = self.relays[at].stopping;
        if stopping {
            // It is ended as by a kill.
            self.relays.remove(at);
            return self.start();
        }
        self.relays[at].retire(now);
        self.relays[at].begin_anew(core, now);
    }

    /// The database is restored: what was committed last is lost, and all connections are cut.
    pub(super) fn restore(&mut self) {
        self.say(|| "the database is restored".to_owned());
        self.store.restore(self.random.i64(0..6));
        for at in (0..self.relays.len()).rev() {
            self.begin_anew(at);
        }
    }

    /// Something was appended.
    pub(super) fn wake(&mut self) {
        for relay in &mut self.relays {
            if self.random.bool() {
                relay.answer(Source::Below, Event::Woken(Wakeup::Now));
            }
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.store.hot.is_empty() && self.store.keys.is_empty()
    }

    pub(super) fn keys(&self) -> std::ops::Range<usize> {
        0..KEYS
    }
}
