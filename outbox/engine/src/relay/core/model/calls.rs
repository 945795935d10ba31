//! Calls of the actors to store and broker, and what goes wrong with them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{
    BucketSet, KeyTransition, Lease, LowWater, Outcome, Position, RelayId, RowId, Step, Stored,
};
use outbox_contract::{Exhausted, Failure, Topic};

use super::super::{Answer, Event, Question};
use super::Sabotage;
use super::cast::{TOPICS, number_of, serial_of, slot_at, the_topic, topic_of};
use super::judge::{Judged, broken};
use super::leases::LEASE;
use super::relay::{Out, Source};
use super::world::{MS, STORE_TIMEOUT, World};

/// Fate of a call to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Fine,
    /// It fails and has done nothing.
    FailsBefore,
    /// It has done its work, and the answer is lost.
    FailsAfter,
    /// Nothing is heard of it until its time is over. It may do its work meanwhile, or later.
    Hangs,
}

/// A call of which its caller has heard nothing, and which is still on its way to the store.
#[derive(Clone, Debug)]
pub(super) enum Ghost {
    Transition(KeyTransition),
    Settle(Vec<RowId>),
    Lease { relay: RelayId, low_water: LowWater, yielding: BucketSet },
    GiveBack { relay: RelayId, leases: Vec<Lease>, low_water: LowWater, leaving: bool },
    Pause(Topic),
}

/// The next messages of one key that a batch is to carry.
pub(super) fn run_of(out: &Out) -> &[Arc<Stored>] {
    let Some(first) = (out.carried..out.cut.len()).find(|slot| !out.cut[*slot]) else { return &[] };
    let messages = &out.batch.messages;
    let of_key = |slot: &usize| !out.cut[*slot] && messages[*slot].message.key == messages[first].message.key;
    let count = (first..messages.len()).take_while(of_key).count();
    &messages[first..first + count]
}

impl World {
    pub(super) fn call(&mut self) -> Call {
        if self.failing_store == 0 || self.random.u32(0..1_000) >= self.failing_store {
            return Call::Fine;
        }
        let (call, name) = [
            (Call::FailsBefore, "store call that fails before its effect"),
            (Call::FailsAfter, "store call that fails after its effect"),
            (Call::Hangs, "store call that hangs"),
        ][self.random.usize(..3)];
        self.count(name);
        call
    }

    /// A call hangs. It may have its effect at some time, or never.
    pub(super) fn hang(&mut self, at: usize, ghost: Option<Ghost>) {
        let name = self.relays[at].name;
        self.say(|| {
            format!("relay {name}: a call hangs{}", if ghost.is_some() { ", and may end later" } else { "" })
        });
        self.relays[at].hangs_until = Some(self.now + STORE_TIMEOUT);
        if let Some(ghost) = ghost {
            self.haunt(ghost);
        }
    }

    /// A call that is no longer waited for may have its effect later.
    pub(super) fn haunt(&mut self, ghost: Ghost) {
        if self.weather.ghosts && self.random.bool() {
            let wait = MS * self.random.u32(0..6_000);
            self.ghosts.push((self.now + wait, ghost));
        }
    }

    /// Returns true if a call of this relay hangs. Once its time is over, the relay begins anew.
    fn waits(&mut self, at: usize) -> Result<bool, super::judge::Violation> {
        let Some(until) = self.relays[at].hangs_until else { return Ok(false) };
        if until <= self.now {
            self.relays[at].hangs_until = None;
            self.begin_anew(at)?;
        }
        Ok(true)
    }

    /// Calls that hung have their effect now.
    pub(super) fn end_ghosts(&mut self) -> Judged {
        while let Some(at) = self.ghosts.iter().position(|(at, _)| *at <= self.now) {
            let (_, ghost) = self.ghosts.swap_remove(at);
            self.count("store call that has its effect after its time");
            let now = self.database_now();
            match ghost {
                Ghost::Transition(transition) => {
                    let answer = self.store.transition(&transition, now);
                    self.say(|| {
                        format!(
                            "a transition that hung is made: {} {answer:?}",
                            super::describe::transition(&transition)
                        )
                    });
                }
                Ghost::Settle(rows) => {
                    self.say(|| format!("a removal that hung is made: {}", super::describe::rows(&rows)));
                    self.remove(&rows)?;
                }
                Ghost::Lease { relay, low_water, yielding } => {
                    self.store.lease(relay, &low_water, &yielding, now);
                }
                Ghost::Pause(topic) => self.pause(&topic),
                Ghost::GiveBack { relay, leases, low_water, leaving } => {
                    // Its relay may have begun anew under the same epochs, and hears of this with
                    // its next heartbeat.
                    self.given_back_until = self.now + LEASE;
                    self.store.give_back(relay, &leases, &low_water, (leaving, now));
                }
            }
            self.judge_marks()?;
        }
        Ok(())
    }

    /// The poller asks.
    pub(super) fn ask(&mut self, at: usize) -> Judged {
        if self.waits(at)? {
            return Ok(());
        }
        let now = self.database_now();
        if self.random.bool()
            && let Some((number, request)) = self.relays[at].below.take()
        {
            let fails = self.call() != Call::Fine;
            let answer = (!fails).then(|| {
                let marks = if self.sabotage == Some(Sabotage::BelowWithoutMarks) {
                    Vec::new()
                } else {
                    self.store.marks(&request.buckets)
                };
                (self.store.fetch(&request, now), marks)
            });
            self.relays[at].answer(Source::Below, Event::LookedBelow { number, took: MS, answer });
        }
        let Some((number, question)) = self.relays[at].question.take() else { return Ok(()) };
        match self.call() {
            Call::Fine => {}
            Call::Hangs => {
                self.hang(at, None);
                return Ok(());
            }
            Call::FailsBefore | Call::FailsAfter => return self.begin_anew(at),
        }
        let answer = match question {
            Question::Fetch(request) => {
                if self.sabotage == Some(Sabotage::MarksReadLast) {
                    let marks = self.store.marks(&request.buckets);
                    self.relays[at].core.sabotage_marks(marks);
                }
                Answer::Fetched(self.store.fetch(&request, now))
            }
            Question::Due(request) => {
                let due = self.store.due(&request, now);
                if let Some(held) = due.keys.iter().find(|key| self.store.is_held(number_of(&key.key))) {
                    let of = number_of(&held.key);
                    return Err(broken(
                        "held",
                        of,
                        format!("k{of} is held, and the store says that it is due"),
                    ));
                }
                Answer::Due(due)
            }
            Question::Writers => return self.ask_for_writers(at, number),
            Question::Marks(buckets) => {
                let mut marks = self.store.marks(&buckets);
                if self.sabotage == Some(Sabotage::LastAppendOnly) {
                    let seen: BTreeMap<_, _> =
                        self.relays[at].core.last_seen().map(|mark| (mark.last.stripe, mark)).collect();
                    for mark in &mut marks {
                        let Some(seen) = seen.get(&mark.last.stripe) else { continue };
                        (mark.first_number, mark.previous_position) = (seen.last.number + 1, seen.position);
                    }
                }
                Answer::Marks(marks)
            }
        };
        self.relays[at].answer(Source::Poller, Event::Answered { number, answer });
        Ok(())
    }

    /// First the last position is read, then who is writing, and others write in between.
    fn ask_for_writers(&mut self, at: usize, number: u64) -> Judged {
        let Some(last) = self.relays[at].last_read.take() else {
            self.relays[at].last_read = Some(self.store.last());
            self.relays[at].open_read = self.store.writers(false, Position::START);
            self.relays[at].question = Some((number, Question::Writers));
            return Ok(());
        };
        let mut writers = self.store.writers(self.random.bool(), last);
        if self.sabotage == Some(Sabotage::LastReadLast) {
            writers = std::mem::take(&mut self.relays[at].open_read);
            writers.last = self.store.last();
        }
        self.relays[at].answer(Source::Poller, Event::Answered { number, answer: Answer::Writers(writers) });
        Ok(())
    }

    /// Transitions are made one after the other. One whose answer is lost ends the incarnation.
    pub(super) fn transit(&mut self, at: usize) -> Judged {
        if self.waits(at)? {
            return Ok(());
        }
        if self.now < self.relays[at].slow_until {
            return Ok(());
        }
        if let Some((number, topic)) = self.relays[at].pauses.pop_front() {
            return self.pause_topic(at, number, topic);
        }
        let Some((number, transition)) = self.relays[at].transitions.pop_front() else { return Ok(()) };
        self.judge(&transition)?;
        let call = self.call();
        match call {
            Call::FailsBefore => return self.begin_anew(at),
            Call::Hangs => {
                self.hang(at, Some(Ghost::Transition(transition)));
                return Ok(());
            }
            Call::Fine | Call::FailsAfter => {}
        }
        let answer = self.store.transition(&transition, self.database_now());
        let name = self.relays[at].name;
        self.say(|| {
            format!("store: {} of relay {name}: {answer:?}", super::describe::transition(&transition))
        });
        if call == Call::FailsAfter {
            return self.begin_anew(at);
        }
        self.relays[at].answer(Source::Transitions, Event::Transitioned { number, answer });
        Ok(())
    }

    /// The policy pauses a topic.
    fn pause_topic(&mut self, at: usize, number: u64, topic: Topic) -> Judged {
        match self.call() {
            Call::FailsBefore => return self.begin_anew(at),
            Call::Hangs => {
                self.hang(at, Some(Ghost::Pause(topic)));
                return Ok(());
            }
            Call::FailsAfter => {
                self.pause(&topic);
                return self.begin_anew(at);
            }
            Call::Fine => self.pause(&topic),
        }
        self.relays[at].answer(Source::Transitions, Event::TopicPaused { number });
        Ok(())
    }

    fn pause(&mut self, topic: &Topic) {
        self.count("topic that the policy pauses");
        self.say(|| format!("store: {topic} is paused"));
        let paused = (0..TOPICS).filter(|at| the_topic(*at) == topic);
        paused.for_each(|at| self.paused[at] = true);
    }

    /// Looks at a transition before it is made.
    fn judge(&self, transition: &KeyTransition) -> Judged {
        let of = number_of(&transition.key);
        match &transition.step {
            Step::Resume { delivered } => {
                let is_lost = |row: &&RowId| {
                    let fate = self.store.ledger.fate(row.id);
                    // One that came again stands elsewhere, and arrives from there.
                    !fate.arrived && !fate.requeued
                };
                let Some(lost) = delivered.iter().find(is_lost) else { return Ok(()) };
                Err(broken(
                    "lost",
                    of,
                    format!("m{} of k{of} is to be removed and never arrived", serial_of(lost.id)),
                ))
            }
            Step::Fail { row, attempts, last, .. } | Step::Bury { row, attempts, last, .. } => {
                let fate = self.store.ledger.fate(row.id);
                let failures = fate.failures;
                if *attempts > failures && last.class != "breaks" && last.class != "malformed" {
                    let serial = serial_of(row.id);
                    let words =
                        format!("{attempts} attempts of m{serial} of k{of}, which failed {failures} times");
                    return Err(broken("counted", of, words));
                }
                let discards = matches!(transition.step, Step::Bury { discard: true, .. });
                if discards && (self.policy.exhausted != Exhausted::Discard || topic_of(of) != 0) {
                    return Err(broken("lost", of, format!("m{} of k{of} is discarded", serial_of(row.id))));
                }
                Ok(())
            }
            Step::Park { .. } => Ok(()),
        }
    }

    pub(super) fn settle(&mut self, at: usize) -> Judged {
        let Some(removal) = self.relays[at].removals.pop_front() else { return Ok(()) };
        let call = self.call();
        match call {
            Call::Fine | Call::FailsAfter => self.remove(&removal.rows)?,
            Call::FailsBefore => {}
            Call::Hangs if self.random.bool() => self.remove(&removal.rows)?,
            Call::Hangs if self.weather.ghosts => {
                let wait = MS * self.random.u32(0..6_000);
                self.ghosts.push((self.now + wait, Ghost::Settle(removal.rows.clone())));
            }
            Call::Hangs => {}
        }
        if call != Call::Fine {
            // It is tried again, until it succeeds.
            self.relays[at].removals.push_front(removal);
            return self.begin_anew(at);
        }
        let relay = &mut self.relays[at];
        let event = if removal.incarnation == relay.incarnation {
            Event::Removed { number: removal.number }
        } else {
            relay.owed()
        };
        relay.answer(Source::Settler, event);
        Ok(())
    }

    fn remove(&mut self, rows: &[RowId]) -> Judged {
        let gone = self.store.settle(rows);
        for (asked, of, stored) in gone {
            let (id, serial) = (stored.message.id, serial_of(stored.message.id));
            self.say(|| format!("store: m{serial} of k{of} at {} is removed", stored.position));
            if id != asked {
                let words = format!("m{serial} of k{of} is removed in place of m{}", serial_of(asked));
                return Err(broken("removed", of, words));
            }
            let fate = self.store.ledger.fate(id);
            if !fate.arrived && !fate.out {
                return Err(broken("lost", of, format!("m{serial} of k{of} is removed and never arrived")));
            }
        }
        Ok(())
    }

    /// A publisher goes on with a batch: with the messages of one more key, or it ends.
    pub(super) fn publish(&mut self, at: usize) -> Judged {
        let now = self.now_of(at);
        let relay = &mut self.relays[at];
        if relay.batches.is_empty() {
            return Ok(());
        }
        let which = self.random.usize(..relay.batches.len());
        let (is_new, holds) = (relay.batches[which].carried == 0, now < relay.keeper.until);
        let out = &mut relay.batches[which];
        if is_new && !holds {
            // The relay slept before the publisher had it.
            for outcome in &mut out.outcomes {
                outcome.get_or_insert(Outcome::Blocked);
            }
            self.count("batch that finds the leases over");
            self.relays[at].end(which, false);
            return Ok(());
        }
        if now >= out.until {
            return self.end_or_wait(at, which);
        }
        if run_of(out).is_empty() {
            let is_waited_for = out.outcomes.iter().any(Option::is_none);
            if !is_waited_for {
                let broke = !self.healed && self.weather.broker && self.random.u32(0..20) == 0;
                if broke {
                    self.count("publisher that dies");
                }
                self.relays[at].end(which, broke);
            }
            return Ok(());
        }
        self.carry(at, which)
    }

    /// Its time is over. What can be seen to come to an end is waited for, while the leases last.
    fn end_or_wait(&mut self, at: usize, which: usize) -> Judged {
        let now = self.now_of(at);
        let relay = &mut self.relays[at];
        let epochs = &relay.batches[which].batch.epochs;
        let may_wait = now < relay.keeper.until
            && epochs.iter().all(|(bucket, epoch)| relay.holds(*bucket, *epoch))
            && relay.batches[which].outcomes.iter().any(Option::is_some)
            && !relay.core.wants_strict_timeout();
        if may_wait && self.random.u32(0..3) > 0 && !self.healed {
            relay.batches[which].until = now + Duration::from_millis(250);
            self.count("batch that is waited for beyond its time");
            return Ok(());
        }
        self.relays[at].end(which, false);
        Ok(())
    }

    fn carry(&mut self, at: usize, which: usize) -> Judged {
        let (now, name) = (self.now, self.relays[at].name);
        let out = &self.relays[at].batches[which];
        let run: Vec<Arc<Stored>> = run_of(out).to_vec();
        let Some(first) = run.first() else { return Ok(()) };
        let of = number_of(&first.message.key_id());
        let place =
            out.batch.messages.iter().position(|stored| Arc::ptr_eq(stored, first)).unwrap_or_default();
        self.judge_owner(at, which, first)?;
        let Self { broker, store, random, .. } = self;
        let outcomes = broker.carry(&run, of, &mut store.ledger, (now, random));
        let number = self.relays[at].batches[which].batch.number;
        self.say(|| {
            format!(
                "broker: relay {name}, batch {number}, {}",
                super::describe::carried(&run, outcomes.as_ref().ok())
            )
        });
        let outcomes = outcomes?;
        for outcome in &outcomes {
            self.count(match outcome {
                Some(Outcome::Delivered | Outcome::Blocked) => continue,
                Some(Outcome::Unknown(_)) => "publish of unknown outcome",
                Some(Outcome::Unavailable(..)) => "publish to what is not available",
                Some(Outcome::Postponed(..)) => "publish that is postponed",
                Some(_) => "publish that fails",
                None => "publish that hangs",
            });
        }
        let draw = self.random.u32(0..64);
        let (tells, stops) = (draw.is_multiple_of(4), draw == 1);
        let relay = &mut self.relays[at];
        let out = &mut relay.batches[which];
        out.carried = place + run.len();
        out.outcomes[place..place + run.len()].clone_from_slice(&outcomes);
        if tells {
            let delivered = out.outcomes.iter().map(|outcome| *outcome == Some(Outcome::Delivered)).collect();
            let rows = out.batch.messages.iter().zip(&out.outcomes);
            let rows = rows.filter(|(_, outcome)| **outcome == Some(Outcome::Delivered));
            let rows: Vec<RowId> = rows.map(|(stored, _)| stored.row()).collect();
            relay.confirm_rows(number, rows);
            relay.answer(Source::Publisher(number), Event::Heard { batch: number, delivered });
        }
        if stops {
            let reason = Failure::new("stopped", "as the model has it");
            relay.answer(Source::Publisher(number), Event::TransportStopped(reason));
        }
        Ok(())
    }

    /// Checks that the relay owns each message that it sends, by the clock of the database: no
    /// other relay sends it beside it.
    fn judge_owner(&self, at: usize, which: usize, stored: &Stored) -> Judged {
        let relay = &self.relays[at];
        let epoch = relay.batches[which].batch.epochs.get(&stored.bucket).copied();
        let slot = slot_at(stored.bucket);
        let is_owner = self.store.owns(relay.id, slot, self.database_now())
            && Some(self.store.leases[slot].epoch) == epoch;
        if is_owner || self.now < self.jumped_until.max(self.given_back_until) {
            return Ok(());
        }
        let (serial, of) = (serial_of(stored.message.id), number_of(&stored.message.key_id()));
        let lease = &self.store.leases[slot];
        let words = format!(
            "relay {} sends m{serial} of k{of} under {epoch:?}, and the bucket is {:?}'s under {:?}",
            relay.name,
            lease.owner.map(|owner| owner.as_uuid().as_u128()),
            lease.epoch
        );
        Err(broken("two owners", of, words))
    }
}
