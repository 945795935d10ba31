//! Recent events of one kind that belong to no message: reported in health and in the log, without
//! flooding it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A warning of each would fill the log during an outage: one at the first, then one in so long.
const WARN_EVERY: Duration = Duration::from_secs(60);
/// After so long without another one they are over. A delivery would be no better sign: on a topic
/// where nothing is sent, none comes.
const QUIET: Duration = Duration::from_secs(60);

/// Events of one kind. Shared by who meets them and who is asked for health.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    // Held for a few instructions.
    met: Mutex<Option<Met>>,
}

#[derive(Debug)]
struct Met {
    since: Instant,
    last_at: Instant,
    last: String,
    count: u64,
    warned_at: Instant,
    unsaid: u64,
}

impl Recent {
    fn lock(&self) -> MutexGuard<'_, Option<Met>> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One was met. Returns the number that a warning is due for: this one and those that were not
    /// warned of.
    pub(crate) fn met(&self, now: Instant, words: &str) -> Option<u64> {
        let mut guard = self.lock();
        let met = match guard.take() {
            Some(met) if now - met.last_at <= QUIET => met,
            _ => {
                let last = words.to_owned();
                *guard = Some(Met { since: now, last_at: now, last, count: 1, warned_at: now, unsaid: 0 });
                return Some(1);
            }
        };
        let met = guard.insert(Met {
            last_at: now,
            last: words.to_owned(),
            count: met.count.saturating_add(1),
            unsaid: met.unsaid.saturating_add(1),
            ..met
        });
        if now - met.warned_at < WARN_EVERY {
            return None;
        }
        met.warned_at = now;
        Some(std::mem::take(&mut met.unsaid))
    }

    /// Returns their number, since when, and the text of the last one. None: there was none lately.
    pub(crate) fn lately(&self, now: Instant) -> Option<(u64, Duration, String)> {
        let guard = self.lock();
        let met = guard.as_ref().filter(|met| now - met.last_at <= QUIET)?;
        Some((met.count, now - met.since, met.last.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_first_is_warned_of_and_then_one_a_minute_for_all() {
        let (recent, start) = (Recent::default(), Instant::now());
        let warned: Vec<(u64, u64)> = (0..150)
            .filter_map(|n| Some((n, recent.met(start + S * u32::try_from(n).unwrap(), "away")?)))
            .collect();
        assert_eq!(warned, [(0, 1), (60, 60), (120, 60)]);
    }

    #[test]
    fn they_are_over_after_a_quiet_minute() {
        let (recent, start) = (Recent::default(), Instant::now());
        assert_eq!(recent.lately(start), None);
        recent.met(start, "first");
        recent.met(start + S * 30, "second");
        assert_eq!(recent.lately(start + S * 90), Some((2, S * 90, "second".to_owned())));
        assert_eq!(recent.lately(start + S * 91), None);
        assert_eq!(recent.met(start + S * 91, "third"), Some(1), "it counts anew");
        assert_eq!(recent.lately(start + S * 92), Some((1, S, "third".to_owned())));
    }
}
