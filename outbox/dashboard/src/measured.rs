//! Figures of routes that were counted a moment ago.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox::Route;
use tokio::time::Instant;

/// A figure is shown again for so many times the time that counting took. A page that is
/// loaded again and again costs a database at most this part of one connection.
const TIMES: u32 = 10;

/// Maximum age of a figure that is shown again.
const OLDEST: Duration = Duration::from_secs(10);

/// The last figures of each route.
#[derive(Debug)]
pub(crate) struct Measured<T> {
    until: BTreeMap<Route, (Instant, T)>,
    cleared: Option<Instant>,
}

impl<T> Default for Measured<T> {
    fn default() -> Self {
        Self { until: BTreeMap::new(), cleared: None }
    }
}

impl<T: Clone> Measured<T> {
    /// Returns the figures of a route, if they are young enough.
    pub(crate) fn get(&self, route: &Route, now: Instant) -> Option<T> {
        let (until, figures) = self.until.get(route)?;
        (now < *until).then(|| figures.clone())
    }

    /// Keeps figures that were counted between two instants.
    pub(crate) fn put(&mut self, route: Route, began: Instant, ended: Instant, figures: T) {
        if self.cleared.is_some_and(|cleared| began <= cleared) {
            return;
        }
        let lasts = (ended.saturating_duration_since(began) * TIMES).min(OLDEST);
        self.until.insert(route, (ended + lasts, figures));
    }

    /// Forgets all, and what is being counted: an operation has changed something.
    pub(crate) fn clear(&mut self, now: Instant) {
        self.until.clear();
        self.cleared = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_long_is_shown_again_for_longer_and_nothing_for_ever() {
        let (route, began) = (Route::default(), Instant::now());
        let mut measured = Measured::default();
        let mut kept = |took: u64, later: u64| {
            let ended = began + Duration::from_millis(took);
            measured.put(route.clone(), began, ended, ());
            measured.get(&route, ended + Duration::from_millis(later)).is_some()
        };
        assert!(kept(2, 19) && !kept(2, 20));
        assert!(kept(400, 3_999) && !kept(400, 4_000));
        assert!(kept(60_000, 9_999) && !kept(60_000, 10_000));
    }

    #[test]
    fn what_an_operation_may_have_changed_is_not_shown_again() {
        let (route, began) = (Route::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut measured = Measured::default();
        measured.put(route.clone(), began, at(1), ());
        measured.clear(at(3));
        assert!(measured.get(&route, at(3)).is_none());
        measured.put(route.clone(), at(2), at(4), ());
        assert!(measured.get(&route, at(4)).is_none(), "it was measured meanwhile");
        measured.put(route.clone(), at(4), at(5), ());
        assert!(measured.get(&route, at(5)).is_some());
    }
}
