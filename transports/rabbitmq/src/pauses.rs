//! Pauses before attempts to connect.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Pauses that double from one failure to the next, each cut by up to a half at random: what lost
/// the broker together does not come back together.
#[derive(Debug)]
pub(crate) struct Pauses {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Pauses {
    pub(crate) const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, failures: 0 }
    }

    /// The pause after one more failure.
    pub(crate) fn next(&mut self) -> Duration {
        let bound = self.first.saturating_mul(1 << self.failures.min(31)).min(self.most);
        self.failures = self.failures.saturating_add(1);
        // The hasher of the standard library is seeded at random each time.
        let draw = u32::try_from(RandomState::new().hash_one(self.failures) >> 32).unwrap_or_default();
        bound.mul_f64(0.5 + 0.5 * f64::from(draw) / f64::from(u32::MAX))
    }

    /// It went well: the next failure is a first one.
    pub(crate) const fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_begin_again() {
        let (first, most) = (Duration::from_millis(100), Duration::from_secs(1));
        let mut pauses = Pauses::new(first, most);
        for bound in [100, 200, 400, 800, 1_000, 1_000].map(Duration::from_millis) {
            let pause = pauses.next();
            assert!(pause <= bound && pause >= bound / 2, "{pause:?} of {bound:?}");
        }
        (0..100).for_each(|_| assert!(pauses.next() <= most));
        pauses.reset();
        assert!(pauses.next() <= first);
    }
}
