//! Core of a route: everything in memory, and every decision about it. Pure: no await, no clock, no
//! task, no I/O.
//!
//! Its one entry, [`Core::on`], takes an [`Event`] and returns [`Command`]s, which the actors
//! around it carry out. Each command that has an answer has a number, and the answer carries it.
//! That is the only fence: an answer with an unknown number is dropped.
//!
//! ```text
//!   leases answered ──┐                                    ┌── get rows, due keys, writers, marks
//!   fetch answered  ──┤   leases   reading ── windows      ├── publish this batch
//!   batch is back   ──┼─>      table of keys ── mailboxes ─┼─> remove these rows
//!   transition done ──┤   lines    due keys   topics       ├── make these transitions
//!   rows removed    ──┘   breaker  credit     pace         └── give buckets back, save this mark
//! ```
//!
//! One operation runs on a key at a time: some of its messages are in one unconfirmed batch, or one
//! transition of it is being written to the store, or it waits in a line. So messages behind a
//! failure can't overtake it (promise P3), and the failure of one key delays no other (P5).
//!
//! A key is forgotten and read again in one step ([`Core::forget`]): its rows leave the index, and
//! a read window of its own begins before the first of them. No other part keeps a copy of this
//! state. So the messages behind a hanging or failing key can give up their room whenever other
//! keys need it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outbox_contract::backend::{Fetched, Ordering, Position, RelayId};
use outbox_contract::{KeyId, RetryPolicy, Route};

use batches::Batches;
use blocked::BlockedKeys;
use breaker::{Breaker, Evidence};
use credit::Credit;
use due::DueKeys;
pub(crate) use event::{Answer, Command, Counts, Event, PublishCommand, Question, Report};
use key::Held;
use leases::Leases;
pub(crate) use limits::Limits;
pub(crate) use lines::Line;
use lines::Lines;
use looking::Looking;
use malformed::MalformedRows;
use outcomes::Silence;
pub(crate) use reading::Cause;
use reading::{LookBelow, Plan, Reading};
use removals::Removals;
use table::{KeyRef, Table};
use topics::Topics;

mod batches;
mod blocked;
pub(crate) mod breaker;
mod credit;
mod due;
mod event;
mod forgetting;
mod key;
mod leases;
mod limits;
mod lines;
mod looking;
mod malformed;
mod outcomes;
mod pace;
mod reading;
mod removals;
mod table;
mod topics;
mod transitions;

#[cfg(any(test, feature = "_simulation"))]
pub mod model;

/// Evaluates an expression of the model where that is compiled, and the other one elsewhere.
macro_rules! in_model {
    ($of_model:expr) => {
        in_model!($of_model, ())
    };
    ($of_model:expr, $otherwise:expr) => {{
        #[cfg(any(test, feature = "_simulation"))]
        let value = $of_model;
        #[cfg(not(any(test, feature = "_simulation")))]
        let value = $otherwise;
        value
    }};
}
use in_model;

/// True if the model disables this part of the core, to show that a test notices.
macro_rules! sabotaged {
    ($core:expr, $part:ident) => {
        crate::relay::core::in_model!(
            $core.sabotage == Some(crate::relay::core::model::Sabotage::$part),
            false
        )
    };
}
use sabotaged;

/// In-memory state of one route of one relay.
#[derive(Debug)]
pub(crate) struct Core {
    route: Route,
    relay: RelayId,
    limits: Limits,
    policy: RetryPolicy,
    draws: fastrand::Rng,
    now: Duration,
    numbers: u64,
    commands: Vec<Command>,
    counts: Counts,
    table: Table,
    lines: Lines,
    timers: BTreeSet<(Duration, KeyRef)>,
    batches: Batches,
    removals: Removals,
    malformed: MalformedRows,
    reading: Reading,
    looking: Looking,
    below: LookBelow,
    due: DueKeys,
    blocked_keys: BlockedKeys,
    topics: Topics,
    breaker: Breaker,
    leases: Leases,
    /// Running query, and the purpose of its answer.
    asked: Option<Asked>,
    /// Keys that are kept until the running fetch returns, because it may not reflect their
    /// transitions.
    guarded: Vec<KeyRef>,
    /// Transitions that are being written to the store, by number.
    stepping: BTreeMap<u64, KeyRef>,
    /// Keys that got no answer while messages of other keys were delivered.
    silent: BTreeMap<KeyId, Silence>,
    /// Number of delivered messages.
    delivered: u64,
    /// Low-water mark to leave behind, while the core drains.
    draining: Option<Drain>,
    #[cfg(any(test, feature = "_simulation"))]
    sabotage: Option<model::Sabotage>,
}

/// Running query.
#[derive(Debug)]
struct Asked {
    number: u64,
    purpose: Purpose,
}

#[derive(Debug)]
enum Purpose {
    Fetch(Box<Plan>),
    /// Confirms a fetch that has returned.
    Confirm(Box<Plan>, Fetched),
    Writers,
    Marks,
    Due,
}

#[derive(Debug)]
struct Drain {
    low_water: outbox_contract::backend::LowWater,
    is_said: bool,
}

impl Core {
    /// Creates an empty core. It keeps what is known about the transport. `seed`: of the jitter.
    pub(crate) fn new(
        (route, relay): (Route, RelayId),
        ordering: Ordering,
        limits: Limits,
        policy: RetryPolicy,
        breaker: Breaker,
        seed: u64,
    ) -> Self {
        Self {
            route,
            relay,
            limits,
            policy,
            draws: fastrand::Rng::with_seed(seed),
            now: Duration::ZERO,
            numbers: 0,
            commands: Vec::new(),
            counts: Counts::default(),
            table: Table::new(Credit::new(
                (limits.narrow_in_flight, limits.max_in_flight),
                limits.max_in_flight_bytes,
            )),
            lines: Lines::new(limits.publishers, limits.silent_publishers),
            timers: BTreeSet::new(),
            batches: Batches::default(),
            removals: Removals::default(),
            malformed: MalformedRows::default(),
            reading: Reading::new(ordering),
            looking: Looking::new(limits.idle_poll),
            below: LookBelow::default(),
            due: DueKeys::of(&limits),
            blocked_keys: BlockedKeys::default(),
            topics: Topics::new(limits.first_delay, limits.max_delay, limits.publish_timeout),
            breaker,
            leases: Leases::default(),
            asked: None,
            guarded: Vec::new(),
            stepping: BTreeMap::new(),
            silent: BTreeMap::new(),
            delivered: 0,
            draining: None,
            #[cfg(any(test, feature = "_simulation"))]
            sabotage: None,
        }
    }

    /// Processes an event. Returns the commands to carry out.
    pub(crate) fn on(&mut self, event: Event, now: Duration) -> Vec<Command> {
        self.now = now;
        self.take(event);
        self.wake_keys();
        self.begin_transitions();
        self.begin_batches();
        self.begin_removal();
        self.has_room();
        self.look();
        self.finish_giving_back();
        if self.counts != Counts::default() {
            self.commands.push(Command::Count(std::mem::take(&mut self.counts)));
        }
        std::mem::take(&mut self.commands)
    }

    /// Returns when to send a [`Tick`](Event::Tick), unless another event comes first.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        if self.draining.is_some() {
            return None;
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let look = self.asked.is_none().then_some(self.looking.at());
        [timer, look, self.next_batch_at()].into_iter().flatten().min()
    }

    /// Returns the number of messages and bytes in memory.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        self.table.credit.in_flight()
    }

    /// Returns the circuit breaker.
    pub(crate) fn breaker(&self) -> Breaker {
        self.breaker
    }

    /// The committed marks that it saw last.
    #[cfg(any(test, feature = "_simulation"))]
    pub(crate) fn last_seen(&self) -> impl Iterator<Item = outbox_contract::backend::StripeMark> {
        self.reading.last_seen()
    }

    /// Returns true once it begins nothing any more.
    #[cfg(any(test, feature = "_simulation"))]
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Returns true while something waits until nothing is unconfirmed: a drain, or buckets that
    /// are being given up.
    pub(crate) fn wants_strict_timeout(&self) -> bool {
        self.draining.is_some() || self.leases.is_giving_back()
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Leased { leased, surplus, asked, until } => {
                self.leased(&leased, surplus, (asked, until));
            }
            Event::Answered { number, answer } => self.answered(number, answer),
            Event::LookedBelow { number, took, answer } => self.looked_below(number, took, answer),
            Event::Heard { batch, delivered } => self.heard(batch, &delivered),
            Event::Published { batch, outcomes, refused, broke } => {
                self.published(batch, outcomes, &refused, broke);
            }
            Event::Lapsed(epochs) => self.lapsed(&epochs),
            Event::Transitioned { number, answer } => self.transitioned(number, answer),
            Event::TopicPaused { number } => self.topics.stored(number, self.now),
            Event::Removed { number } => self.removed(number),
            Event::Owed { messages, bytes } => self.owed(messages, bytes),
            Event::Woken(wakeup) => {
                self.looking.woken(wakeup);
                self.reading.look();
                self.look_soon();
            }
            Event::TransportStopped(reason) => {
                self.heard_of_transport(Evidence::NoAnswer, Some(reason), None);
            }
            Event::TransportIsBack => {
                if self.breaker.heard() {
                    self.report(Report::TransportBack);
                }
            }
            Event::Tick => {}
            Event::Drain => self.drain(),
        }
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn report(&mut self, report: Report) {
        self.commands.push(Command::Report(report));
    }

    /// Puts keys whose delay is over back in their lines.
    fn wake_keys(&mut self) {
        while self.timers.first().is_some_and(|(until, _)| *until <= self.now)
            && !sabotaged!(self, RestForever)
        {
            let Some((_, key)) = self.timers.pop_first() else { return };
            if let Some(state) = self.table.get_mut(key) {
                state.resting = false;
                if state.retry.is_none() {
                    // The parked messages were not returned as due: an operator may hold the key.
                    state.recovering = false;
                }
                self.place(key);
            }
        }
    }

    /// Makes a key wait, outside of all lines.
    fn rest(&mut self, key: KeyRef, wait: Duration) {
        if let Some(state) = self.table.get_mut(key) {
            state.resting = true;
            self.timers.insert((self.now + wait, key));
        }
    }

    /// Puts a key into the right line after any change. The only place that knows all lines.
    fn place(&mut self, key: KeyRef) {
        let fetch = self.reading.under_way();
        let Some(state) = self.table.get_mut(key) else { return };
        if state.is_over(fetch) {
            self.table.remove(key);
            return;
        }
        let line = state.next_line(state.has_failed() && self.silent.contains_key(&state.name));
        if line != state.line {
            state.line = line;
            if let Some(line) = line {
                self.lines.push(line, key);
            }
        }
        if !state.in_line_to_be_read && state.may_be_read(self.limits.max_per_key) {
            state.in_line_to_be_read = true;
            self.reading.stand(key, state.is_failing);
            self.look_soon();
        }
    }

    /// Makes a key be read again from behind this position: through a window of its own, or through
    /// that of its topic while that is closed.
    fn read_again(&mut self, key: KeyRef, after: Position) {
        let Some(state) = self.table.get_mut(key) else { return };
        if sabotaged!(self, NotReadAgain) {
            return;
        }
        let forgets = sabotaged!(self, ClosedTopicForgets);
        if self.reading.lower_closed_topic(&state.name.topic, if forgets { Position::END } else { after }) {
            return;
        }
        let cursor = state.window.map_or(after, |window| window.cursor.min(after));
        state.window = Some(key::KeyWindow { cursor, as_of: self.reading.fetches() });
    }

    /// Drops a message, and returns its credit.
    fn drop_held(&mut self, held: &Held) {
        self.table.credit.give(1, held.bytes);
    }
}
