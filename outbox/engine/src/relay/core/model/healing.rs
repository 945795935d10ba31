//! Healing: everything is well again, and all that was committed must come through before long.

use std::time::Duration;

use outbox_contract::backend::Ordering;

use super::cast::{KEYS, TOPICS, serial_of, topic_of};
use super::judge::{Judged, Violation, broken};
use super::world::{MS, World};

/// Virtual time within which everything is out after healing.
const HEALS_IN: Duration = Duration::from_secs(400);
/// The longest step of time while it heals.
const STRIDE: Duration = Duration::from_millis(500);

impl World {
    /// Everything is well again, and nothing new comes.
    pub(super) fn heal(&mut self) -> Judged {
        self.say(|| "all is well".to_owned());
        self.healed = true;
        self.broker.heal();
        self.failing_store = 0;
        (self.paused, self.route_paused) = ([false; TOPICS], false);
        let now = self.now;
        self.relays.iter_mut().for_each(|relay| relay.frozen_until = now);
        // Messages put below a horizon are found when it advances.
        if self.weather.lasting && !self.was_misplaced {
            self.let_things_last();
            self.drain(|world| world.is_drained(|of| topic_of(of) != 0))?;
            self.paused = [false; TOPICS];
        }
        while !self.store.open.is_empty() {
            self.commit(0);
        }
        self.drain(|world| world.is_drained(|_| true) && world.is_idle())?;
        (0..KEYS).try_for_each(|of| self.store.ledger.is_complete(of))
    }

    /// A writer stays that holds the horizon back, and the first topic is paused with more in it
    /// than a fetch brings.
    fn let_things_last(&mut self) {
        self.paused[0] = true;
        let ordering = self.store.ordering;
        while ordering == Ordering::Single && !self.store.open.is_empty() {
            self.commit(0);
        }
        while let Some(empty) = self.store.open.iter().position(|open| open.rows.is_empty()) {
            self.commit(empty);
        }
        if self.store.open.is_empty() && ordering != Ordering::Single {
            self.store.begin();
            self.store.append(0, KEYS - 1, 1);
        }
        self.store.begin();
        let last = self.store.open.len() - 1;
        for row in 0..40 {
            // Of the paused topic first, then of the other.
            self.store.append(last, if row < 30 { 2 * (row % 4) } else { 2 * (row % 4) + 1 }, 1);
        }
        self.commit(last);
        while self.store.open.len() > 1 {
            self.commit(1);
        }
        self.say(|| "one transaction stays open, and one topic paused".to_owned());
    }

    fn drain(&mut self, is_done: impl Fn(&Self) -> bool) -> Judged {
        let until = self.now + HEALS_IN;
        while self.now < until {
            self.mend_keys();
            for _ in 0..3 {
                let mut at = 0;
                while at < self.relays.len() {
                    self.act_on_all(at)?;
                    at += 1;
                }
            }
            self.arrive()?;
            if is_done(self) {
                return Ok(());
            }
            self.now = self.next_instant();
        }
        Err(self.stuck())
    }

    /// Operators let all keys go on that are held, and the topic that the policy has paused,
    /// without what fails in it.
    fn mend_keys(&mut self) {
        let now = self.database_now();
        let resumed = std::mem::take(&mut self.paused[1]);
        for of in 0..KEYS {
            if self.store.is_held(of) || (resumed && topic_of(of) == 1 && self.store.has_failed(of)) {
                self.store.skip(of, now);
            }
        }
    }

    /// Time of the next event.
    fn next_instant(&self) -> Duration {
        let mut next = self.now + STRIDE;
        for relay in &self.relays {
            let batches = relay.batches.iter().map(|out| out.until);
            let own = relay
                .core
                .next_tick()
                .into_iter()
                .chain(batches)
                .chain([relay.keeper.beat_at])
                .chain(relay.keeper.hangs_until)
                .min();
            let own = own.map(|at| at.saturating_sub(relay.ahead));
            next = own.into_iter().chain(relay.hangs_until).fold(next, Duration::min);
        }
        let ghosts = self.ghosts.iter().map(|(at, _)| *at);
        ghosts.chain(self.broker.next_late()).fold(next, Duration::min).max(self.now + MS)
    }

    fn is_drained(&self, is_asked: impl Fn(usize) -> bool) -> bool {
        let hot = self.store.tables.hot.values().any(|(of, _)| is_asked(*of));
        !hot && !self.store.tables.keys.keys().any(|of| is_asked(*of))
    }

    fn is_idle(&self) -> bool {
        self.ghosts.is_empty()
            && self.broker.late.is_empty()
            && self.relays.iter().all(|relay| relay.removals.is_empty() && relay.core.is_idle())
    }

    fn stuck(&mut self) -> Violation {
        for at in 0..self.relays.len() {
            let (name, core) = (self.relays[at].name, &self.relays[at].core);
            let known: Vec<String> =
                (0..KEYS).map(|of| format!("relay {name} knows of k{of}: {}", core.tell(of))).collect();
            known.into_iter().for_each(|line| self.say(|| line));
        }
        let tables = &self.store.tables;
        let hot = tables.hot.iter().map(|(at, (of, stored))| (*at, *of, serial_of(stored.message.id)));
        let hot: Vec<String> = hot.map(|(at, of, serial)| format!("m{serial} of k{of} at {at}")).collect();
        let parked: Vec<String> =
            tables.keys.iter().map(|(of, row)| format!("{} of k{of}", row.parked.len())).collect();
        let in_flight: Vec<usize> = self.relays.iter().map(|relay| relay.core.in_flight().0).collect();
        let first = tables.hot.values().map(|(of, _)| *of).chain(tables.keys.keys().copied()).next();
        let words = format!("in the table {hot:?}, parked {parked:?}, in flight {in_flight:?}");
        broken("stuck", first, words)
    }
}
