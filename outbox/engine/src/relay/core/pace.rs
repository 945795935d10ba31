//! Polling pace: at once after a wake-up, as often as messages come, at growing intervals when idle.

use std::time::Duration;

use outbox_contract::backend::Wakeup;

/// Delay between looks.
#[derive(Debug)]
pub(super) struct Pace {
    idle: Duration,
    looked: Option<Duration>,
    /// Average time between two messages, at most [`BUSY`].
    gap: Duration,
    /// Start of the last look that found something.
    found: Option<Duration>,
    /// Number of looks at growing intervals since a wake-up by an append, whose commit can't be
    /// seen.
    extra_looks: Option<u32>,
    quiet_looks: u32,
}

/// Minimum interval of looks caused by wake-ups alone. Appends come faster than a look pays, and
/// several relays look each time. The interval adds 1 ms of latency on average.
const MIN_INTERVAL: Duration = Duration::from_millis(2);
/// First delay after an append whose commit was not visible yet.
const SHORTEST: Duration = Duration::from_millis(1);
/// Number of looks after an append, at 1, 2, 4 ... milliseconds: 255 ms in all.
const EXTRA_LOOKS: u32 = 8;
/// Maximum delay after a look that found something. Where messages come faster, the next look is
/// when the next one is expected: not every store can wake a relay, and a wake-up takes a while.
const BUSY: Duration = Duration::from_millis(10);
/// Share of the last look in the average.
const NEWEST: u32 = 4;

impl Pace {
    pub(super) fn new(idle: Duration) -> Self {
        Self { idle, looked: None, gap: BUSY, found: None, extra_looks: None, quiet_looks: 0 }
    }

    /// Records the start of a look.
    pub(super) fn looked(&mut self, now: Duration) {
        self.looked = Some(now);
    }

    /// Records a wake-up.
    pub(super) fn woken(&mut self, wakeup: Wakeup) {
        self.quiet_looks = 0;
        match wakeup {
            Wakeup::Soon => self.extra_looks = Some(0),
            Wakeup::Now => {}
        }
    }

    /// Returns the delay after a look that left nothing to fetch. `found`: number of messages.
    pub(super) fn after_look(&mut self, found: usize) -> Duration {
        if let Ok(found @ 1..) = u32::try_from(found) {
            self.quiet_looks = 0;
            let took = self.looked.zip(self.found).map_or(BUSY, |(now, before)| now.saturating_sub(before));
            self.gap = (self.gap * (NEWEST - 1) + took.min(BUSY) / found) / NEWEST;
            self.found = self.looked;
        } else {
            self.quiet_looks = self.quiet_looks.saturating_add(1);
        }
        if let Some(looks) = self.extra_looks {
            self.extra_looks = (looks + 1 < EXTRA_LOOKS).then_some(looks + 1);
            return SHORTEST * (1 << looks);
        }
        self.gap.max(MIN_INTERVAL).saturating_mul(1 << self.quiet_looks.min(16)).min(self.idle)
    }

    /// Returns the minimum delay before a look that a wake-up causes now.
    pub(super) fn min_wait(&self, now: Duration) -> Duration {
        self.looked.map_or(Duration::ZERO, |looked| (looked + MIN_INTERVAL).saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn an_idle_relay_looks_ever_more_seldom() {
        let mut pace = Pace::new(MS * 1000);
        let waits: Vec<u128> = (0..9).map(|_| pace.after_look(0).as_millis()).collect();
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1000, 1000, 1000]);
        assert_eq!(pace.after_look(1), BUSY);
    }

    /// Looks when it says so, while messages come at this interval. Returns the mean of the waits.
    fn follow(pace: &mut Pace, every: Duration) -> Duration {
        const LOOKS: u32 = 60;
        let (begun, mut now) = (pace.looked.unwrap_or_default(), pace.looked.unwrap_or_default());
        let mut wait = BUSY;
        for _ in 0..LOOKS {
            let before = now.as_micros() / every.as_micros();
            now += wait;
            pace.looked(now);
            let came = now.as_micros() / every.as_micros() - before;
            wait = pace.after_look(usize::try_from(came).unwrap());
        }
        (now - begun) / LOOKS
    }

    #[test]
    fn a_relay_looks_as_often_as_messages_come() {
        let mut pace = Pace::new(MS * 1000);
        let wait = follow(&mut pace, MS / 10);
        assert!(wait >= MIN_INTERVAL && wait < MS * 3, "{wait:?}");
        let wait = follow(&mut pace, MS * 5);
        assert!(wait > MS * 3 && wait < MS * 8, "{wait:?}");
        assert!(follow(&mut pace, MS * 100) > MS * 10);
    }

    #[test]
    fn an_append_is_followed_by_looks_at_growing_intervals() {
        let mut pace = Pace::new(MS * 1000);
        pace.woken(Wakeup::Soon);
        let waits: Vec<u128> = (0..8).map(|_| pace.after_look(0).as_millis()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128]);
        assert!(pace.after_look(0) > MS * 128, "and then the usual pace");
    }

    #[test]
    fn wake_ups_cause_a_look_each_two_milliseconds_at_most() {
        let mut pace = Pace::new(MS * 1000);
        assert_eq!(pace.min_wait(MS * 5), Duration::ZERO);
        pace.looked(MS * 11);
        assert_eq!(pace.min_wait(MS * 11), MS * 2);
        assert_eq!(pace.min_wait(MS * 20), Duration::ZERO);
    }
}
