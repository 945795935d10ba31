//! Backlogs that were measured a moment ago.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outbox::Route;
use outbox::backend::Backlog;

/// A backlog is shown again for so many times the time that its measurement took. Pages that are
/// loaded again and again cost a database at most this part of one connection.
const TIMES: u32 = 10;

/// Maximum age of a backlog that is shown again.
const OLDEST: Duration = Duration::from_secs(10);

/// The last backlog of each route.
#[derive(Debug, Default)]
pub(crate) struct Measured(BTreeMap<Route, (Instant, Backlog)>);

impl Measured {
    /// Returns the backlog of a route, if it is young enough.
    pub(crate) fn get(&self, route: &Route, now: Instant) -> Option<Backlog> {
        let (until, backlog) = self.0.get(route)?;
        (now < *until).then(|| backlog.clone())
    }

    /// Keeps a backlog that was measured between two instants.
    pub(crate) fn put(&mut self, route: Route, began: Instant, ended: Instant, backlog: Backlog) {
        let lasts = (ended.saturating_duration_since(began) * TIMES).min(OLDEST);
        self.0.insert(route, (ended + lasts, backlog));
    }

    /// Forgets all: an operation has changed something.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
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
            measured.put(route.clone(), began, ended, Backlog::default());
            measured.get(&route, ended + Duration::from_millis(later)).is_some()
        };
        assert!(kept(2, 19) && !kept(2, 20));
        assert!(kept(400, 3_999) && !kept(400, 4_000));
        assert!(kept(60_000, 9_999) && !kept(60_000, 10_000));
        measured.clear();
        assert!(measured.get(&route, began).is_none());
    }
}
