//! Outage of a subscription: the time for which it has given nothing but errors.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time for which only the log reports it: a reconnect takes less.
const LASTING: Duration = Duration::from_secs(10);
/// Time without another error after which the subscription counts as healthy: without traffic,
/// nothing else shows it.
const QUIET: Duration = Duration::from_secs(60);

/// Errors of a subscription since it last gave something. Shared by who receives and who is asked
/// for health.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    // Held for a few instructions.
    errors: Mutex<Option<Errors>>,
}

#[derive(Debug)]
struct Errors {
    since: Duration,
    last_at: Duration,
    last: String,
}

impl Outage {
    fn errors(&self) -> MutexGuard<'_, Option<Errors>> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The subscription gave an error in place of deliveries.
    pub(crate) fn failed(&self, now: Duration, last: String) {
        let mut errors = self.errors();
        let goes_on = errors.as_ref().filter(|errors| !errors.is_over(now));
        let since = goes_on.map_or(now, |errors| errors.since);
        *errors = Some(Errors { since, last_at: now, last });
    }

    /// It gave deliveries, or is another one.
    pub(crate) fn over(&self) {
        self.errors().take();
    }

    /// For how long it has given nothing but errors, and the last of them. None: it is well, or
    /// this may pass in a moment.
    pub(crate) fn lasting(&self, now: Duration) -> Option<(Duration, String)> {
        let errors = self.errors();
        let errors = errors.as_ref().filter(|errors| !errors.is_over(now))?;
        let lasts = now.saturating_sub(errors.since);
        (lasts >= LASTING).then(|| (lasts, errors.last.clone()))
    }
}

impl Errors {
    fn is_over(&self, now: Duration) -> bool {
        now.saturating_sub(self.last_at) > QUIET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn lasts(outage: &Outage, now: Duration) -> Option<Duration> {
        outage.lasting(now).map(|(lasts, _)| lasts)
    }

    #[test]
    fn errors_are_told_when_they_last_and_with_the_last_of_them() {
        let outage = Outage::default();
        outage.failed(S, "first".to_owned());
        assert_eq!(lasts(&outage, S * 10), None);
        outage.failed(S * 12, "second".to_owned());
        assert_eq!(outage.lasting(S * 13), Some((S * 12, "second".to_owned())));
        outage.over();
        assert_eq!(lasts(&outage, S * 13), None);
        outage.failed(S * 14, "third".to_owned());
        assert_eq!(lasts(&outage, S * 15), None, "it counts anew");
    }

    #[test]
    fn what_was_long_ago_is_over() {
        let outage = Outage::default();
        outage.failed(S, "first".to_owned());
        assert_eq!(lasts(&outage, S * 61), Some(S * 60));
        assert_eq!(lasts(&outage, S * 62), None);
        outage.failed(S * 100, "second".to_owned());
        assert_eq!(lasts(&outage, S * 105), None, "it counts anew");
    }
}
