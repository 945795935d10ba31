//! Blocked keys: their messages went to the transport, which attempted none. That is no fault of
//! theirs, and may last, so they give up the room that others need.
//!
//! A handler of an inbox whose second database is away blocks all of its keys, for example. In
//! memory they would keep the messages of all other handlers in the store.

use std::time::Duration;

use outbox_contract::Failure;

use super::Core;
use super::key::{Doing, KeyState, Verdict};
use super::table::KeyRef;

/// Paces at which blocked keys make room, in the hot table and among the due ones. Each has its
/// own, so that neither waits for the other.
#[derive(Debug, Default)]
pub(super) struct BlockedKeys {
    hot: Pace,
    due: Pace,
}

/// Pace at which keys make room. If the cause is the same for all keys, it would only move the
/// whole backlog. So without deliveries in between, the pauses grow.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// Number of messages that the core had delivered when keys made room last.
    delivered: u64,
    /// Number of times that keys made room since then.
    times: u32,
    /// Instant before which no further ones do, unless messages are delivered.
    next: Duration,
}

impl Pace {
    fn allows(&self, delivered: u64, now: Duration) -> bool {
        delivered > self.delivered || now >= self.next
    }

    /// Returns the pace after keys made room now.
    fn after(self, delivered: u64, now: Duration, (first, max): (Duration, Duration)) -> Self {
        let times = if delivered > self.delivered { 0 } else { self.times.saturating_add(1) };
        let pause = first.saturating_mul(1 << times.min(16)).min(max);
        Self { delivered, times, next: now + pause }
    }
}

impl Core {
    /// Handles a key whose first message was not attempted: it rests, and nothing is counted.
    pub(super) fn blocked(&mut self, key: KeyRef) {
        let rest = self.limits.first_delay.mul_f64(self.draws.f64());
        self.rest(key, rest);
        // A batch that finds the leases over blocks all of its keys, and says nothing of them.
        let counts = self.limits.blocked_leave && self.leases.holds(self.now);
        let Some(state) = self.table.get_mut(key) else { return };
        state.blocked |= counts;
        let (holds_room, pace) = if state.retry.is_some() {
            (self.due.room().is_none(), self.blocked_keys.due)
        } else {
            (self.looking.starved, self.blocked_keys.hot)
        };
        if holds_room && counts && pace.allows(self.delivered, self.now) {
            self.look_soon();
        }
    }

    /// Frees credit: sets blocked keys aside, until others have enough room.
    pub(super) fn set_blocked_aside(&mut self) {
        let is_hot = |state: &KeyState| state.retry.is_none() && !state.mailbox.is_empty();
        let is_short = |core: &Self| core.table.credit.is_short();
        self.blocked_keys.hot = self.blocked_leave(self.blocked_keys.hot, is_hot, is_short);
    }

    /// Makes room for further due keys: blocked ones are retried later.
    pub(super) fn postpone_blocked(&mut self) {
        let is_due = |state: &KeyState| state.retry.as_ref().is_some_and(|retry| !retry.parked.is_empty());
        self.blocked_keys.due = self.blocked_leave(self.blocked_keys.due, is_due, |_| true);
    }

    /// Lets blocked keys make room while it is short. Returns the pace after that.
    fn blocked_leave(
        &mut self,
        pace: Pace,
        which: impl Fn(&KeyState) -> bool,
        is_short: impl Fn(&Self) -> bool,
    ) -> Pace {
        if !pace.allows(self.delivered, self.now) {
            return pace;
        }
        let is_blocked = |state: &KeyState| state.blocked && state.doing == Doing::Nothing;
        let mut any = false;
        for key in self.table.select(|state| is_blocked(state) && which(state)) {
            if !is_short(self) {
                break;
            }
            any |= self.blocked_leaves(key);
        }
        let bounds = (self.limits.first_delay, self.limits.max_delay);
        if any { pace.after(self.delivered, self.now, bounds) } else { pace }
    }

    /// Parks the messages of a key, or leaves them parked, without counting an attempt.
    fn blocked_leaves(&mut self, key: KeyRef) -> bool {
        let rest = self.limits.max_delay.mul_f64(self.draws.f64());
        let Some(state) = self.table.get_mut(key) else { return false };
        let parked = state.retry.is_some();
        let first = if let Some(retry) = &state.retry { retry.parked.first() } else { state.mailbox.first() };
        let Some(row) = first.map(|held| held.stored.row()) else { return false };
        state.blocked = false;
        let words = "could not be attempted yet, and other keys had no room; not counted as an attempt";
        self.failed(key, row, parked, Failure::new("blocked", words), Verdict::Postponed(rest));
        true
    }
}
