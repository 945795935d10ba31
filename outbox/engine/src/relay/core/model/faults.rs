//! One step: somebody writes, an operator does something, something breaks, time passes, or a relay
//! goes on.

use std::time::Duration;

use outbox_contract::backend::{Ordering, StripeMark, Wakeup};

use super::super::Event;
use super::calls::Ghost;
use super::cast::{KEYS, TOPICS};
use super::judge::Judged;
use super::leases::LEASE;
use super::relay::Source;
use super::world::{MS, World};
use super::{Plan, Sabotage};

/// Faults that may happen in this world. Each seed has its own: if everything breaks at once,
/// little is ever under way for long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    pub(super) store: bool,
    pub(super) broker: bool,
    pub(super) relays: bool,
    pub(super) clocks: bool,
    pub(super) operators: bool,
    pub(super) restores: bool,
    pub(super) puts_back: bool,
    /// The counters of sequence shards go back without the messages.
    counters: bool,
    /// The transport postpones messages of some keys, and does not attempt those of others.
    puts_off: bool,
    /// Relays give way to the others for a while.
    pub(super) gives_way: bool,
    /// Calls that hung have their effect later.
    pub(super) ghosts: bool,
    /// The first transaction mostly stays open.
    long_writers: bool,
    /// The database's clock is also set back, so that leases that were over are not any more; else
    /// only forward.
    clock_goes_back: bool,
    /// While it heals, one transaction stays open, and one topic paused.
    pub(super) lasting: bool,
}

impl Weather {
    pub(super) fn draw(plan: &Plan, random: &mut fastrand::Rng) -> Self {
        let mut often = || random.u32(0..4) > 0;
        let [store, broker, relays, operators] = [often(), often(), often(), often()];
        let mut seldom = || random.u32(0..5) == 0;
        let [clocks, restores, puts_back, ghosts, lasting] =
            [seldom(), seldom(), seldom(), seldom(), seldom()];
        let [long_writers, clock_goes_back] = [random.u32(0..3) == 0, random.bool()];
        // Draws of their own, which change no other.
        let counters = plan.random(u32::MAX).u32(0..5) == 0;
        let gives_way = plan.random(u32::MAX - 1).u32(0..4) == 0;
        let puts_off = plan.random(u32::MAX - 2).u32(0..3) == 0;
        let mut weather = Self {
            store,
            broker,
            relays,
            clocks,
            operators,
            restores,
            puts_back,
            counters,
            puts_off,
            gives_way,
            ghosts,
            lasting,
            long_writers,
            clock_goes_back,
        };
        if let Some(sabotage) = plan.sabotage {
            weather.turn_to(sabotage);
        }
        weather
    }

    /// Sets the weather that a fault needs to show.
    fn turn_to(&mut self, sabotage: Sabotage) {
        match sabotage {
            Sabotage::SettlesWithoutId | Sabotage::LifeIgnored => self.restores = true,
            Sabotage::OnlyMainWaits => self.counters = true,
            Sabotage::NeverLooksBelow => self.puts_back = true,
            Sabotage::LapseCounts => self.clocks = true,
            Sabotage::PassedForgotten => self.lasting = true,
            Sabotage::StaleIsDone | Sabotage::FailingKeyPassed => {
                (self.operators, self.store) = (true, true);
            }
            Sabotage::PostponedCounts => self.puts_off = true,
            Sabotage::MarkCoversAll => (self.relays, self.store) = (true, true),
            Sabotage::BaseNotConfirmed
            | Sabotage::BaseAtOnce
            | Sabotage::BaseOfCutFetch
            | Sabotage::GapAtBase => self.long_writers = true,
            _ => {}
        }
    }
}

impl World {
    /// One thing happens.
    pub(super) fn step(&mut self) -> Judged {
        match self.random.u32(0..100) {
            0..14 => self.write(),
            14 => self.operate(),
            15..17 => self.fault()?,
            17..32 => {
                let wait = if self.random.u32(0..40) == 0 { 6_000 } else { 60 };
                self.now += Duration::from_millis(self.random.u64(0..wait));
                return self.arrive();
            }
            _ => {
                let at = self.random.usize(..self.relays.len());
                return self.act(at);
            }
        }
        Ok(())
    }

    /// Lets messages arrive that were on their way long enough.
    pub(super) fn arrive(&mut self) -> Judged {
        if self.broker.next_late().is_some_and(|at| at <= self.now) {
            let late = self.broker.arrive_late(self.now, &mut self.store.ledger);
            for late in late? {
                self.count("messages that arrive after their time");
                self.say(|| format!("broker: what was on its way arrives: {}", super::describe::late(&late)));
            }
        }
        self.end_ghosts()
    }

    fn write(&mut self) {
        let open = self.store.open.len();
        // A transaction to end: mostly not the first one, where that is long.
        let is_long = self.weather.long_writers && self.store.ordering != Ordering::Single;
        let ends = if open > 1 && is_long && self.random.u32(0..30) > 0 {
            self.random.usize(1..open)
        } else {
            self.random.usize(..open.max(1))
        };
        match self.random.u32(0..10) {
            0..2 if open < 3 => self.store.begin(),
            0..6 if open > 0 => {
                let transaction = self.random.usize(..open);
                let (of, rows) = (self.random.usize(..KEYS), self.random.usize(1..4));
                self.store.append(transaction, of, rows);
            }
            6 if open > 0 && self.random.bool() => {
                self.count("transaction that is rolled back");
                self.store.roll_back(ends);
            }
            7.. if open > 0 => self.commit(ends),
            _ => {}
        }
    }

    pub(super) fn commit(&mut self, transaction: usize) {
        for id in self.store.commit(transaction) {
            let draw = self.random.u32(0..80);
            let fate = self.store.ledger.fate_mut(id);
            let of = fate.of;
            let what = match draw {
                0 => {
                    fate.malformed = true;
                    "row that is no message"
                }
                1 => {
                    fate.poison = Some(true);
                    "message that is rejected"
                }
                2 => {
                    fate.poison = Some(false);
                    "message that always fails"
                }
                3 => {
                    fate.refused = true;
                    "message that the transport refuses"
                }
                _ => "message",
            };
            self.count(what);
            self.say(|| format!("m{} of k{of} is committed, a {what}", super::cast::serial_of(id)));
        }
        self.wake();
    }

    /// Something was appended.
    fn wake(&mut self) {
        for relay in &mut self.relays {
            if self.random.bool() {
                let wakeup = if self.random.bool() { Wakeup::Now } else { Wakeup::Soon };
                relay.answer(Source::Below, Event::Woken(wakeup));
            }
        }
    }

    fn operate(&mut self) {
        if !self.weather.operators {
            return;
        }
        let of = self.random.usize(..KEYS);
        let resumes = self.route_paused && self.random.bool();
        let done = match self.random.u32(0..12) {
            _ if resumes => {
                self.route_paused = false;
                Some((of, "operator resumes the route"))
            }
            draw @ 0..8 => self.steer(of, draw),
            8 if self.random.bool() => {
                self.store.purge();
                Some((of, "operator purges dead letters"))
            }
            8..10 => {
                let topic = self.random.usize(..TOPICS);
                self.paused[topic] ^= true;
                let pauses = self.paused[topic];
                Some((of, if pauses { "operator pauses a topic" } else { "operator resumes a topic" }))
            }
            10 if self.random.bool() => {
                self.route_paused = true;
                Some((of, "operator pauses the route"))
            }
            _ => self.start_or_stop().map(|what| (of, what)),
        };
        let Some((of, what)) = done else { return };
        self.count(what);
        self.say(|| format!("{what}: k{of}"));
    }

    /// An operator does something to a key. Returns the key and what it was.
    fn steer(&mut self, mut of: usize, draw: u32) -> Option<(usize, &'static str)> {
        let now = self.database_now();
        let what = match draw {
            0 => {
                self.store.hold(of);
                "operator holds a key"
            }
            1..3 => {
                self.store.release(of, now);
                "operator releases a key"
            }
            3..5 => {
                self.store.skip(of, now);
                "operator skips a message"
            }
            5 => {
                self.store.discard(of);
                "operator discards a key"
            }
            _ => {
                let mends = self.random.bool();
                of = self.store.tables.dead.first().map_or(of, |(dead, _)| *dead);
                let ids = self.store.requeue(of);
                for id in &ids {
                    let fate = self.store.ledger.fate_mut(*id);
                    if mends {
                        (fate.poison, fate.refused) = (None, false);
                    }
                }
                if ids.is_empty() {
                    return None;
                }
                self.wake();
                "operator requeues dead letters"
            }
        };
        Some((of, what))
    }

    fn start_or_stop(&mut self) -> Option<&'static str> {
        if self.relays.len() < 4 {
            self.start();
            return Some("relay that is started");
        }
        let at = self.random.usize(..self.relays.len());
        if std::mem::replace(&mut self.relays[at].stopping, true) {
            return None;
        }
        self.relays[at].answer(Source::Below, Event::Drain);
        Some("relay that is stopped")
    }

    fn fault(&mut self) -> Judged {
        if self.weather.puts_off && self.random.u32(0..4) == 0 {
            self.put_off();
            return Ok(());
        }
        match self.random.u32(0..20) {
            0..8 if self.weather.broker => self.break_broker(),
            8 if self.weather.store && self.random.bool() => {
                let at = self.random.usize(..self.relays.len());
                self.relays[at].slow_until = self.now + MS * self.random.u32(0..5_000);
                self.count("transitions that are slow");
            }
            8..10 if self.weather.store => {
                self.failing_store = self.random.u32(0..30);
                self.count("store that begins to fail");
            }
            10..15 if self.weather.relays => return self.break_relay(),
            15 if self.weather.clocks => self.jump(),
            16..18 if self.weather.restores => return self.back_up_or_restore(),
            18 if self.weather.puts_back => {
                let back = self.random.usize(1..4);
                let rows = self.store.put_back(back);
                if !rows.is_empty() {
                    self.was_misplaced = true;
                    self.say(|| format!("rows are put back by hand: {rows:?}"));
                    self.count("rows put back by hand");
                }
            }
            19 if self.weather.counters => self.age_counters(),
            19 if self.weather.restores => self.age_marks(),
            _ => {}
        }
        Ok(())
    }

    fn break_broker(&mut self) {
        let broker = &mut self.broker;
        let what = match self.random.u32(0..11) {
            0 => {
                broker.is_away ^= true;
                "broker that is away, or back"
            }
            1 => {
                broker.is_silent = !broker.is_silent && self.random.bool();
                "broker that is silent, or not"
            }
            2 | 3 => {
                broker.broken_topics[self.random.usize(..TOPICS)] ^= true;
                "topic that breaks, or is mended"
            }
            4..7 => {
                broker.hanging_keys[self.random.usize(..KEYS)] ^= true;
                "key that hangs, or goes on"
            }
            7 => {
                broker.failing = self.random.u32(0..200);
                "broker that begins to refuse"
            }
            8 => {
                broker.losing = self.random.u32(0..100);
                "broker that begins to lose answers"
            }
            9 => {
                (broker.is_away, broker.is_silent) = (false, false);
                "broker that is well"
            }
            _ => {
                broker.hanging_keys = [false; KEYS];
                "keys that all go on"
            }
        };
        self.count(what);
        self.say(|| what.to_owned());
    }

    /// The transport begins to put off the messages of a key, or ends it.
    fn put_off(&mut self) {
        let (of, draw) = (self.random.usize(..KEYS), self.random.u32(0..5));
        let what = match draw {
            0 | 1 => {
                self.broker.postponed_keys[of] ^= true;
                "key that is postponed, or goes on"
            }
            2 | 3 => {
                self.broker.blocked_keys[of] ^= true;
                "key that is not attempted, or goes on"
            }
            _ => {
                (self.broker.postponed_keys, self.broker.blocked_keys) = ([false; KEYS], [false; KEYS]);
                "keys that are put off no more"
            }
        };
        self.count(what);
        self.say(|| format!("{what}: k{of}"));
    }

    fn break_relay(&mut self) -> Judged {
        let at = self.random.usize(..self.relays.len());
        let name = self.relays[at].name;
        match self.random.u32(0..5) {
            0..3 => {
                // Beyond the lease, more often than not.
                let freeze = Duration::from_millis(self.random.u64(0..25_000));
                let is_long = freeze > LEASE;
                self.count(if is_long {
                    "relay that stands still beyond its lease"
                } else {
                    "relay that stands still"
                });
                self.say(|| format!("relay {name} stands still for {freeze:?}"));
                self.relays[at].frozen_until = self.now + freeze;
            }
            3 => {
                self.count("relay that is killed");
                self.say(|| format!("relay {name} is killed"));
                self.leave_in_flight(at);
                self.relays.remove(at);
                self.start();
            }
            _ => {
                self.count("relay whose actors fail");
                return self.begin_anew(at);
            }
        }
        Ok(())
    }

    /// The clock of the database is set.
    fn jump(&mut self) {
        let millis = self.random.u32(0..20_000);
        let span = MS * millis;
        self.jumped_until = self.now + LEASE * 2;
        if !self.weather.clock_goes_back || millis.is_multiple_of(3) {
            self.database_ahead += span;
            self.count("database clock set forward");
        } else {
            self.database_ahead = self.database_ahead.saturating_sub(span);
            self.count("database clock set back");
        }
        self.say(|| format!("the database's clock is set by {span:?}"));
    }

    /// The database is restored from a backup: what was committed last is lost, and all connections
    /// are cut.
    fn back_up_or_restore(&mut self) -> Judged {
        if self.backup.is_none() || self.random.u32(0..3) == 0 {
            self.backup = Some(self.store.back_up());
            self.count("backup");
            return Ok(());
        }
        let Some(backup) = self.backup.clone() else { return Ok(()) };
        self.say(|| "the database is restored".to_owned());
        self.count("database restored from a backup");
        self.was_misplaced = true;
        self.store.restore(&backup);
        self.broker.late.clear();
        self.ghosts.clear();
        for at in (0..self.relays.len()).rev() {
            if self.random.bool() {
                self.send_late_heartbeat(at);
            }
            self.begin_anew(at)?;
        }
        self.broker.late.clear();
        Ok(())
    }

    /// A heartbeat was on its way, with a mark of before.
    fn send_late_heartbeat(&mut self, at: usize) {
        let relay = &self.relays[at];
        let (low_water, yielding) = (relay.keeper.low_water.clone(), relay.keeper.yielding);
        let ghost = Ghost::Lease { relay: relay.id, low_water, yielding };
        self.ghosts.push((self.now + MS * self.random.u32(0..2_000), ghost));
    }

    /// The saved marks alone come out of an older backup.
    fn age_marks(&mut self) {
        if let Some(backup) = &self.backup {
            for (lease, old) in self.store.leases.iter_mut().zip(backup.low_water) {
                lease.low_water = lease.low_water.min(old);
            }
            self.count("marks restored from a backup");
        }
    }

    /// The counters of sequence shards alone come out of an older backup, or are lost. Those stay
    /// that would go back to exactly what a relay saw last: what is committed next cannot be told
    /// from what followed it in the first place.
    fn age_counters(&mut self) {
        if self.store.ordering != Ordering::Stripes {
            return;
        }
        if self.backup.is_none() && self.random.bool() {
            self.backup = Some(self.store.back_up());
            self.count("backup");
            return;
        }
        let seen: Vec<StripeMark> = self.relays.iter().flat_map(|relay| relay.core.last_seen()).collect();
        self.store.age_counters(self.backup.as_ref(), &seen);
        self.was_misplaced = true;
        self.say(|| "the counters of all shards go back".to_owned());
        self.count("counters restored from a backup, or lost");
    }
}
