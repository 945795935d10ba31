//! The bound on records that are no messages: a topic that others fill with them must not fill the store.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a count of dead letters is gone by, those that were added meanwhile included.
const FRESH: Duration = Duration::from_secs(10);

/// How many dead letters a consumer has, about, and how many it may have for another one of a record that is no message.
#[derive(Debug)]
pub(crate) struct Undecodables {
    most: u64,
    // Held for a few instructions.
    counted: Mutex<Option<(Instant, u64)>>,
}

impl Undecodables {
    pub(crate) fn new(most: u64) -> Self {
        Self { most, counted: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, u64)>> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the dead letters have to be counted before it can be said whether there is room.
    pub(crate) fn is_stale(&self, now: Instant) -> bool {
        self.lock().is_none_or(|(at, _)| now.saturating_duration_since(at) >= FRESH)
    }

    /// The dead letters were counted.
    pub(crate) fn count(&self, now: Instant, dead: u64) {
        *self.lock() = Some((now, dead));
    }

    /// Records were stored, to become dead letters.
    pub(crate) fn add(&self, records: usize) {
        if let Some((_, dead)) = &mut *self.lock() {
            *dead = dead.saturating_add(records as u64);
        }
    }

    /// The number of dead letters, if another one is too many.
    pub(crate) fn full(&self) -> Option<u64> {
        self.lock().map(|(_, dead)| dead).filter(|dead| *dead >= self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_until_as_many_are_counted_or_were_added_since() {
        let (bound, now) = (Undecodables::new(5), Instant::now());
        assert!(bound.is_stale(now));
        bound.count(now, 3);
        assert!(!bound.is_stale(now) && bound.is_stale(now + FRESH));
        bound.add(1);
        assert_eq!(bound.full(), None);
        bound.add(1);
        assert_eq!(bound.full(), Some(5));
        bound.count(now + FRESH, 0);
        assert_eq!(bound.full(), None, "somebody has purged them");
    }
}
