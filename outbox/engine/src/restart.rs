//! Restart policy: decides when a failed part of a relay is restarted. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::{pending, select_all};
use ractor::{ActorCell, ActorId, ActorStatus, SupervisionEvent};

/// Restarts without limit, with growing delays while failures continue, and reports too many
/// failures.
#[derive(Debug)]
pub(crate) struct RestartPolicy {
    first_delay: Duration,
    max_delay: Duration,
    failures: VecDeque<Duration>,
}

/// Returns which actor ended and why; `None` if the event is about something else.
pub(crate) fn ended(event: SupervisionEvent) -> Option<(ActorId, String)> {
    match event {
        SupervisionEvent::ActorFailed(who, error) => Some((who.get_id(), error.to_string())),
        SupervisionEvent::ActorTerminated(who, _, reason) => {
            Some((who.get_id(), reason.unwrap_or_else(|| "stopped".to_owned())))
        }
        _ => None,
    }
}

/// Converts the limit of a call to an actor.
pub(crate) fn millis(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
}

/// Returns true if a root supervisor has ended, and with it everything below it. It has no parent
/// that restarts it: it fails only by a bug, which a restart of the process cures if anything does.
/// So health reports it, and a service shuts down.
pub(crate) fn has_ended(root: &ActorCell) -> bool {
    root.get_status() >= ActorStatus::Stopping
}

/// Waits until one of these root supervisors has ended. Returns its name.
pub(crate) async fn first_ended(roots: impl IntoIterator<Item = (String, ActorCell)>) -> String {
    let ended = roots.into_iter().map(|(name, root)| {
        Box::pin(async move {
            // Without a limit, it can't fail.
            let _ = root.wait(None).await;
            name
        })
    });
    let ended: Vec<_> = ended.collect();
    if ended.is_empty() {
        return pending().await;
    }
    select_all(ended).await.0
}

/// Time window in which failures count together.
pub(crate) const FAILING_WINDOW: Duration = Duration::from_secs(60);
/// Number of failures within the window that make a relay unhealthy.
const UNHEALTHY: usize = 3;
/// Maximum number of failures that are remembered.
const REMEMBERED: usize = 32;

impl RestartPolicy {
    pub(crate) fn new(first_delay: Duration, max_delay: Duration) -> Self {
        Self { first_delay, max_delay, failures: VecDeque::new() }
    }

    /// Records a failure. Returns the delay before the restart. `draw` is uniform between 0 and 1.
    pub(crate) fn failed(&mut self, now: Duration, draw: f64) -> Duration {
        self.forget_old(now);
        if self.failures.len() == REMEMBERED {
            self.failures.pop_front();
        }
        self.failures.push_back(now);
        let doublings = u32::try_from(self.failures.len() - 1).unwrap_or(u32::MAX).min(16);
        let bound = self.first_delay.saturating_mul(1 << doublings).min(self.max_delay);
        bound.mul_f64(0.5 + draw.clamp(0.0, 1.0) / 2.0)
    }

    /// Returns true if there were so many failures lately that the relay is unhealthy.
    pub(crate) fn keeps_failing(&mut self, now: Duration) -> bool {
        self.forget_old(now);
        self.failures.len() >= UNHEALTHY
    }

    fn forget_old(&mut self, now: Duration) {
        while self.failures.front().is_some_and(|failure| *failure + FAILING_WINDOW < now) {
            self.failures.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn waits_grow_and_a_quiet_time_forgives() {
        let mut policy = RestartPolicy::new(S, S * 8);
        let waits: Vec<u64> = (0..5).map(|n| policy.failed(S * n, 1.0).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 8]);
        assert!(policy.keeps_failing(S * 5));
        assert!(!policy.keeps_failing(S * 70));
        assert_eq!(policy.failed(S * 70, 1.0), S);
    }
}
