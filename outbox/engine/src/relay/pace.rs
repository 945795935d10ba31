//! The pace of looking: at once when there is a reason, ever more seldom when there is none. Pure.

use std::time::Duration;

use outbox_contract::hints::Wakeup;

/// When the poller looks next.
#[derive(Debug)]
pub(crate) struct Pace {
    idle: Duration,
    generation: u64,
    planned: Option<Duration>,
    looked: Option<Duration>,
    /// How many more looks at growing intervals an append is worth: its commit can't be seen.
    hurry: Option<u32>,
    quiet_looks: u32,
}

/// The shortest time between two looks that a wake-up alone causes. Appends come faster than it pays to look, and
/// several relays look each time; the delay that this adds is 1 ms on average.
const BREATH: Duration = Duration::from_millis(2);
/// The first wait after an append whose commit was not seen yet.
const SHORTEST: Duration = Duration::from_millis(1);
/// How many looks follow an append, at 1, 2, 4 ... milliseconds: 255 ms in all.
const HURRIED_LOOKS: u32 = 8;
/// The first wait after a look that found something.
const BUSY: Duration = Duration::from_millis(10);

impl Pace {
    pub(crate) fn new(idle: Duration) -> Self {
        Self { idle, generation: 0, planned: None, looked: None, hurry: None, quiet_looks: 0 }
    }

    /// Whether this is the look that was planned last.
    pub(crate) fn is_current(&self, generation: u64) -> bool {
        self.planned.is_some() && generation == self.generation
    }

    /// A look begins.
    pub(crate) fn looked(&mut self, now: Duration) {
        self.planned = None;
        self.looked = Some(now);
    }

    /// A wake-up came.
    pub(crate) fn woken(&mut self, wakeup: Wakeup) {
        self.quiet_looks = 0;
        match wakeup {
            Wakeup::Soon => self.hurry = Some(0),
            Wakeup::Now => {}
        }
    }

    /// How long to wait after a look that left nothing to fetch.
    pub(crate) fn after_look(&mut self, found: bool) -> Duration {
        if found {
            self.quiet_looks = 0;
        } else {
            self.quiet_looks = self.quiet_looks.saturating_add(1);
        }
        if let Some(looks) = self.hurry {
            self.hurry = (looks + 1 < HURRIED_LOOKS).then_some(looks + 1);
            return SHORTEST * (1 << looks);
        }
        BUSY.saturating_mul(1 << self.quiet_looks.min(16)).min(self.idle)
    }

    /// Plans a look after a wait. None: one is planned that is no later. Else its generation, and the wait that keeps to the shortest interval.
    pub(crate) fn plan(&mut self, now: Duration, wait: Duration) -> Option<(u64, Duration)> {
        let at = now + wait;
        if self.planned.is_some_and(|planned| planned <= at) {
            return None;
        }
        self.planned = Some(at);
        self.generation += 1;
        Some((self.generation, wait))
    }

    /// The shortest wait that a wake-up may cause now.
    pub(crate) fn breath(&self, now: Duration) -> Duration {
        self.looked.map_or(Duration::ZERO, |looked| (looked + BREATH).saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_idle_relay_looks_ever_more_seldom() {
        let mut pace = Pace::new(MS * 1000);
        let waits: Vec<u128> = (0..9).map(|_| pace.after_look(false).as_millis()).collect();
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1000, 1000, 1000]);
        assert_eq!(pace.after_look(true), BUSY);
    }

    #[test]
    fn an_append_is_followed_by_looks_at_growing_intervals() {
        let mut pace = Pace::new(MS * 1000);
        pace.woken(Wakeup::Soon);
        let waits: Vec<u128> = (0..8).map(|_| pace.after_look(false).as_millis()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128]);
        assert!(pace.after_look(false) > MS * 128, "and then the usual pace");
    }

    #[test]
    fn an_earlier_look_replaces_a_later_one_and_not_the_other_way() {
        let mut pace = Pace::new(MS * 1000);
        let (first, _) = pace.plan(MS, MS * 100).unwrap();
        assert_eq!(pace.plan(MS, MS * 200), None);
        let (second, _) = pace.plan(MS, MS * 10).unwrap();
        assert!(!pace.is_current(first) && pace.is_current(second));
        pace.looked(MS * 11);
        assert!(!pace.is_current(second));
        assert_eq!(pace.breath(MS * 11), MS * 2);
    }
}
