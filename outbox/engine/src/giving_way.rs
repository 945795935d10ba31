//! Giving way: a member of a consumer whose program is too old for a message that waits in the
//! store leaves what is stored to the members that know more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outbox_contract::Route;

/// A member's decision to give way.
///
/// A heartbeat says it as it says that a transport is unreachable: the member's share is 0 after a
/// lease, while another living member does not give way. If all of them do, none knows more, and
/// all have their shares. A member begins this once in [`limit`](Self::new) and
/// [`rest`](Self::new) at most, so buckets do not go back and forth.
#[derive(Debug, Default)]
pub(crate) struct GivingWay {
    limit: Duration,
    rest: Duration,
    /// Set when the member meets such a message, taken by the next heartbeat.
    met: AtomicBool,
    // Written by heartbeats alone. Locked for a few instructions.
    since: Mutex<Option<Duration>>,
}

impl GivingWay {
    /// Returns the decision of a member that gives way for `limit`, then does not for `rest`.
    pub(crate) fn new(limit: Duration, rest: Duration) -> Self {
        Self { limit, rest, ..Self::default() }
    }

    /// Records that the member owns a bucket with a message that its program is too old for.
    pub(crate) fn met(&self) {
        self.met.store(true, Ordering::Release);
    }

    /// Returns true if the member gives way at this heartbeat.
    pub(crate) fn gives_way(&self, route: &Route, now: Duration) -> bool {
        let met = self.met.swap(false, Ordering::AcqRel);
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let over = |begun: Duration| now >= begun.saturating_add(self.limit).saturating_add(self.rest);
        if since.is_none_or(over) {
            *since = met.then_some(now);
            if met {
                tracing::info!(
                    %route, limit = ?self.limit,
                    "giving way: stored messages need a newer version of this program; releasing buckets to other members"
                );
            }
        }
        since.is_some_and(|begun| now < begun.saturating_add(self.limit))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn route() -> Route {
        Route::default()
    }

    #[test]
    fn a_member_that_has_met_nothing_never_gives_way() {
        let member = GivingWay::new(S * 60, S * 60);
        assert!((0..1_000).all(|at| !member.gives_way(&route(), S * at)));
        assert!(!GivingWay::default().gives_way(&route(), S));
    }

    #[test]
    fn a_member_gives_way_for_its_time_then_rests_then_may_again() {
        let member = GivingWay::new(S * 60, S * 600);
        let mut ways = Vec::new();
        for at in (0..1_400).step_by(5) {
            member.met();
            ways.push((at, member.gives_way(&route(), S * at)));
        }
        let begins = |(at, gives): &(u32, bool)| gives.then_some(*at);
        let all: Vec<u32> = ways.iter().filter_map(begins).collect();
        let expected = (0..60).chain(660..720).chain(1_320..1_380).step_by(5);
        assert_eq!(all, expected.collect::<Vec<_>>());
    }

    proptest! {
        /// However often such messages are met, buckets move twice in the time and the rest at
        /// most.
        #[test]
        fn buckets_do_not_go_back_and_forth(
            beats in prop::collection::vec((1..50_u32, any::<bool>()), 1..200),
            (limit, rest) in (1..300_u32, 0..300_u32),
        ) {
            let member = GivingWay::new(S * limit, S * rest);
            let (mut now, mut has_met, mut begun) = (0, false, Vec::new());
            let mut before = false;
            for (passes, met) in beats {
                now += passes;
                if met {
                    member.met();
                    has_met = true;
                }
                let gives = member.gives_way(&route(), S * now);
                prop_assert!(has_met || !gives);
                if gives && !before {
                    begun.push(now);
                }
                before = gives;
            }
            let all_apart = begun.windows(2).all(|pair| pair[1] - pair[0] >= limit + rest);
            prop_assert!(all_apart, "{begun:?}");
        }
    }
}
