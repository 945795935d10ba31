//! The pace of looking: at once when there is a reason, ever more seldom when there is none.

use std::time::Duration;

use outbox_contract::backend::Wakeup;

/// The wait between looks.
#[derive(Debug)]
pub(super) struct Pace {
    idle: Duration,
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
    pub(super) fn new(idle: Duration) -> Self {
        Self { idle, looked: None, hurry: None, quiet_looks: 0 }
    }

    /// A look begins.
    pub(super) fn looked(&mut self, now: Duration) {
        self.looked = Some(now);
    }

    /// A wake-up came.
    pub(super) fn woken(&mut self, wakeup: Wakeup) {
        self.quiet_looks = 0;
        match wakeup {
            Wakeup::Soon => self.hurry = Some(0),
            Wakeup::Now => {}
        }
    }

    /// How long to wait after a look that left nothing to fetch.
    pub(super) fn after_look(&mut self, found: bool) -> Duration {
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

    /// The shortest wait that a wake-up may cause now.
    pub(super) fn breath(&self, now: Duration) -> Duration {
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
    fn wake_ups_cause_a_look_each_two_milliseconds_at_most() {
        let mut pace = Pace::new(MS * 1000);
        assert_eq!(pace.breath(MS * 5), Duration::ZERO);
        pace.looked(MS * 11);
        assert_eq!(pace.breath(MS * 11), MS * 2);
        assert_eq!(pace.breath(MS * 20), Duration::ZERO);
    }
}
