//! The world of the model: a store, a broker, relays, and what they do to each other, one thing
//! after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_contract::backend::{Ordering, RelayId};
use outbox_contract::{Exhausted, RetryPolicy, RetryRule, Route};

use super::super::breaker::Breaker;
use super::super::event::Report;
use super::super::{Command, Core, Event, Limits};
use super::broker::Broker;
use super::calls::Ghost;
use super::cast::{TOPICS, serial_of, the_topic};
use super::describe;
use super::faults::Weather;
use super::judge::{Judged, broken};
use super::relay::{PUBLISH_TIMEOUT, Relay, Source};
use super::store::{Store, Tables};
use super::{Plan, Sabotage};

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const HEARTBEAT: Duration = Duration::from_secs(4);
/// Time after which a call to the store counts as failed.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) struct World {
    pub(super) sabotage: Option<Sabotage>,
    pub(super) random: fastrand::Rng,
    pub(super) weather: Weather,
    pub(super) healed: bool,
    pub(super) now: Duration,
    /// Time by which the database's clock is ahead.
    pub(super) database_ahead: Duration,
    /// Until when leases that were counted on may have ended early, since the database's clock was
    /// set.
    pub(super) jumped_until: Duration,
    /// The same, since a call that gave buckets back had its effect late.
    pub(super) given_back_until: Duration,
    pub(super) store: Store,
    pub(super) backup: Option<Tables>,
    pub(super) broker: Broker,
    pub(super) relays: Vec<Relay>,
    pub(super) ghosts: Vec<(Duration, Ghost)>,
    pub(super) paused: [bool; TOPICS],
    pub(super) route_paused: bool,
    /// Part of a thousand of calls to the store that fail.
    pub(super) failing_store: u32,
    /// True if anything was put where it should not stand.
    pub(super) was_misplaced: bool,
    pub(super) counts: BTreeMap<&'static str, u64>,
    /// Number of events that cores took.
    pub(super) events: u64,
    story: Option<Vec<String>>,
    limits: Limits,
    pub(super) policy: RetryPolicy,
    names: usize,
}

impl World {
    pub(super) fn new(plan: &Plan, tells: bool) -> Self {
        let mut random = plan.random(0);
        let limits = limits(&mut random);
        let policy = policy(&mut plan.random(u32::MAX));
        let any = [Ordering::Single, Ordering::Writers, Ordering::Stripes][random.usize(..3)];
        let ordering = plan.ordering.unwrap_or(any);
        let store = Store::new(ordering, plan.sabotage, &mut random);
        let weather = Weather::draw(plan, &mut random);
        let mut world = Self {
            sabotage: plan.sabotage,
            weather,
            healed: false,
            now: Duration::ZERO,
            database_ahead: Duration::from_secs(100),
            jumped_until: Duration::ZERO,
            given_back_until: Duration::ZERO,
            store,
            backup: None,
            broker: Broker::default(),
            relays: Vec::new(),
            ghosts: Vec::new(),
            paused: [false; TOPICS],
            route_paused: false,
            failing_store: 0,
            was_misplaced: false,
            counts: BTreeMap::new(),
            events: 0,
            story: tells.then(Vec::new),
            limits,
            policy,
            names: 0,
            random,
        };
        let relays = world.random.usize(1..4);
        for _ in 0..plan.relays.unwrap_or(relays) {
            world.start();
        }
        world
    }

    pub(super) fn start(&mut self) {
        self.names += 1;
        let id = RelayId::from_uuid(uuid::Uuid::from_u128(self.names as u128));
        let core = self.core(id);
        let ahead = MS * self.random.u32(0..5_000_000);
        let mut relay = Relay::new(id, self.names, core, ahead);
        relay.keeper.beat_at = self.now + ahead;
        self.say(|| format!("relay {} starts", relay.name));
        self.relays.push(relay);
    }

    pub(super) fn core(&mut self, id: RelayId) -> Core {
        let seed = self.random.u64(..);
        let breaker = Breaker::new(self.limits.first_delay, self.limits.max_delay);
        let is_plain = matches!(
            (self.sabotage, self.store.ordering),
            (Some(Sabotage::PlainCursorOfWriters), Ordering::Writers)
                | (Some(Sabotage::PlainCursorOfShards), Ordering::Stripes)
        );
        let ordering = if is_plain { Ordering::Single } else { self.store.ordering };
        let mut core =
            Core::new((Route::default(), id), ordering, self.limits, self.policy.clone(), breaker, seed);
        core.sabotage = self.sabotage;
        core
    }

    pub(super) fn say(&mut self, what: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(format!("{:>9.3} {}", self.now.as_secs_f64(), what()));
        }
    }

    pub(super) fn take_story(&mut self) -> Vec<String> {
        self.story.take().unwrap_or_default()
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// The time by the clock of the database.
    pub(super) fn database_now(&self) -> Duration {
        self.now + self.database_ahead
    }

    /// The time by the clock of a relay.
    pub(super) fn now_of(&self, at: usize) -> Duration {
        self.now + self.relays[at].ahead
    }

    /// Lets a core take an event, and looks at it and at what it wants.
    pub(super) fn feed(&mut self, at: usize, event: Event) -> Judged {
        self.events += 1;
        let now = self.now_of(at);
        let name = self.relays[at].name;
        self.say(|| format!("relay {name} takes {}", describe::event(&event)));
        if let Event::Leased { leased, .. } = &event {
            self.relays[at].paused = leased.paused.clone();
        }
        let commands = self.relays[at].core.on(event, now);
        let index = at;
        for command in &commands {
            if let Some(words) = describe::command(command) {
                self.say(|| format!("relay {name}   wants {words}"));
            }
            if let Command::Report(Report::BelowMark { at, .. }) = command
                && !self.was_misplaced
                // It may not have heard yet that its leases were over in between.
                && !self.relays[index].answers.contains_key(&Source::Keeper)
            {
                return Err(broken(
                    "false alarm",
                    None,
                    format!("the row at {at} is taken for one that is out of place"),
                ));
            }
        }
        let (store, sabotage) = (&mut self.store, self.sabotage);
        let refused = |batch: &super::super::PublishCommand, slot: usize| {
            let fate = store.ledger.fate_mut(batch.messages[slot].message.id);
            fate.failures += u32::from(fate.refused);
            fate.refused
        };
        let relay = &mut self.relays[at];
        let is_drained = relay.core.is_draining();
        relay.carry_out(commands, now, sabotage, refused)?;
        if !is_drained {
            relay.core.audit()?;
        }
        self.judge_marks()
    }

    pub(super) fn judge_marks(&self) -> Judged {
        match self.store.passed_by_a_mark() {
            Some((of, row, mark)) => {
                let hot = self.store.tables.hot.get(&row);
                let what = hot.map_or("a row that may be committed".to_owned(), |(_, stored)| {
                    format!("m{}", serial_of(stored.message.id))
                });
                Err(broken("passed", of, format!("the mark {mark} passes {what} of k{of} at {row}")))
            }
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
        let now = self.now_of(at);
        if self.relays[at].core.next_tick().is_some_and(|due| due <= now) {
            return self.feed(at, Event::Tick);
        }
        Ok(())
    }

    /// The store can't be relied on: what is known is dropped. Batches that are out are waited for,
    /// and what they delivered is removed.
    pub(super) fn begin_anew(&mut self, at: usize) -> Judged {
        let name = self.relays[at].name;
        self.say(|| format!("relay {name} begins anew"));
        let id = self.relays[at].id;
        self.leave_in_flight(at);
        if self.relays[at].stopping {
            // It is ended as by a kill.
            self.relays.remove(at);
            self.start();
            return Ok(());
        }
        let core = self.core(id);
        let now = self.now_of(at);
        self.relays[at].retire(now)?;
        self.relays[at].begin_anew(core, now);
        Ok(())
    }

    /// Leaves messages in flight that a relay has sent: they may arrive, though it no longer waits
    /// for them.
    pub(super) fn leave_in_flight(&mut self, at: usize) {
        let Self { relays, broker, random, now, .. } = self;
        for out in &relays[at].batches {
            let run = super::calls::run_of(out);
            if let Some(first) = run.first()
                && random.u32(0..3) == 0
            {
                let of = super::cast::number_of(&first.message.key_id());
                broker.send_late(run, of, *now, random);
            }
        }
    }
}

/// A policy with one action for each topic: one that takes the message away, and one that keeps it.
fn policy(random: &mut fastrand::Rng) -> RetryPolicy {
    let (discards, pauses) = (random.u8(0..4) == 0, random.u8(0..4) == 0);
    let of_other = RetryRule {
        topic: Some(the_topic(1).to_string()),
        exhausted: Some(if pauses { Exhausted::PauseTopic } else { Exhausted::Hold }),
        ..RetryRule::default()
    };
    RetryPolicy {
        max_attempts: 3,
        first_delay: MS * 50,
        max_delay: MS * 800,
        exhausted: if discards { Exhausted::Discard } else { Exhausted::DeadLetter },
        rules: vec![of_other],
        ..RetryPolicy::default()
    }
}

fn limits(random: &mut fastrand::Rng) -> Limits {
    let max_in_flight = random.usize(4..24);
    Limits {
        blocked_leave: true,
        fetch_rows: random.usize(1..8),
        fetch_bytes: usize::MAX >> 2,
        max_in_flight,
        narrow_in_flight: if max_in_flight % 4 == 3 { max_in_flight.div_ceil(2) } else { max_in_flight },
        max_in_flight_bytes: if random.u32(0..4) == 0 { random.usize(3_000..8_000) } else { usize::MAX >> 2 },
        max_per_key: random.usize(1..6),
        batch: random.usize(1..8),
        batch_bytes: if random.u32(0..4) == 0 { random.usize(300..3_000) } else { usize::MAX >> 2 },
        shares: 2,
        publishers: random.usize(1..6),
        silent_publishers: random.usize(1..3),
        walk: random.i64(0..12),
        rows_per_transition: 3,
        first_delay: MS * 100,
        max_delay: MS * 800,
        publish_timeout: PUBLISH_TIMEOUT,
        idle_poll: MS * 500,
        due_poll: MS * 1_000,
        heartbeat: HEARTBEAT,
    }
}
