//! Keys of which nothing is heard: what they may hold of the memory, and how long they may be waited for.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_contract::fetch::{DueKey, RowId};
use outbox_contract::{Failure, KeyId};

use super::super::effects::Effects;
use super::super::key::{Busy, Verdict, Work};
use super::{Failing, Keys, MOST_STRUCK};

/// The classes of failures that say that nothing was heard.
pub(super) const SILENT: &str = "silent";
pub(super) const BREAKS: &str = "breaks";

/// How far apart keys are due that were put off: so many would be written to the store again and again.
const APART: Duration = Duration::from_millis(20);

/// What is held against the first message of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Strikes {
    /// How often it broke things alone.
    pub(super) count: u32,
    /// How much the lane had delivered when nothing was heard of it the last time.
    pub(super) delivered: u64,
}

/// Whether it failed because nothing was heard of it, as far as its row says.
pub(super) fn is_silent(due: &DueKey) -> bool {
    let class = due.first_failure.as_ref().map(|first| first.class.as_ref());
    due.failing.is_some() && (due.attempts == 0 || matches!(class, Some(SILENT | BREAKS)))
}

impl Keys {
    /// Sets aside what nothing was heard of, though nothing else went through either: it has what others need to show that. What is behind it goes
    /// along, nothing is counted, and it is tried again before long.
    pub(crate) fn relieve(&mut self, effects: &mut Effects) {
        let is_idle = |key: &&KeyId| {
            self.keys.get(*key).is_some_and(|state| {
                state.unknown > 0
                    && state.busy == Busy::No
                    && state.parking.is_none()
                    && state.retry.is_none()
            })
        };
        let resting = self.waiting.iter().map(|(_, key)| key);
        let silent: BTreeSet<KeyId> = resting.chain(&self.lines.silent).filter(is_idle).cloned().collect();
        for key in silent {
            let Some(state) = self.keys.get_mut(&key) else { continue };
            let Some(Work::Message(held)) = state.queue.front() else { continue };
            let failing = Failing { row: held.stored.row(), parked: false };
            state.resting = false;
            let rest = self.rest(&key);
            let words = "nothing was heard of it, and others had no room; not counted";
            self.failed(&key, failing, Failure::new(SILENT, words), Verdict::Silent(rest), effects);
        }
    }

    /// Puts a failing key off that nothing was heard of: too many such wait already.
    pub(super) fn put_off(&mut self, key: &KeyId, row: RowId, now: Duration, effects: &mut Effects) {
        if let Some(retry) = self.keys.get_mut(key).and_then(|state| state.retry.as_mut()) {
            retry.parked.clear();
        }
        // One after the other, each when those in line had some time.
        self.put_off = (now + self.limits.most_delay).max(self.put_off + APART);
        let failure =
            Failure::new(SILENT, "nothing was heard of it, and many others are tried before it; not counted");
        let verdict = Verdict::Silent(self.put_off - now);
        self.failed(key, Failing { row, parked: true }, failure, verdict, effects);
    }

    /// Notes that nothing was heard of the first message of a key, and that it may be its own fault: it is tried alone from now on. `counts`: it was alone.
    /// Says how often that was counted.
    pub(super) fn strike(&mut self, key: &KeyId, counts: bool, delivered: u64) -> u32 {
        if self.strikes.len() >= MOST_STRUCK && !self.strikes.contains_key(key) {
            self.strikes.clear();
        }
        let strikes = self.strikes.entry(key.clone()).or_default();
        strikes.count += u32::from(counts);
        strikes.delivered = delivered;
        strikes.count
    }

    /// How long a key rests of which nothing was heard.
    pub(super) fn rest(&mut self, key: &KeyId) -> Duration {
        let unknown = self.keys.get(key).map_or(0, |state| state.unknown);
        let strikes = self.strikes.get(key).map_or(0, |strikes| strikes.count);
        let doublings = unknown.max(strikes).saturating_sub(1).min(16);
        let bound = self.limits.first_delay.saturating_mul(1 << doublings).min(self.limits.most_delay);
        bound.mul_f64(self.random.f64())
    }
}
