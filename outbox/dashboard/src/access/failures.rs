//! Failed attempts to log in: counted for each address, and slowed down.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Attempts that fail before further ones are refused.
const ALLOWED: u32 = 5;

/// Time after which one more attempt is allowed.
const EVERY: Duration = Duration::from_secs(10);

/// Maximum number of addresses that are remembered. Those beyond it share one count.
const ADDRESSES: usize = 1_024;

/// Failures of each address that has had some lately.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    /// Instant at which the failures of an address are forgotten. Each failure moves it on.
    until: HashMap<Option<IpAddr>, Instant>,
}

impl Failures {
    /// Returns the time to wait before the next attempt, or `None` if one is allowed now.
    pub(crate) fn wait(&self, peer: Option<IpAddr>, now: Instant) -> Option<Duration> {
        let until = self.until.get(&self.place(peer))?;
        let debt = until.saturating_duration_since(now);
        let wait = debt.saturating_sub(EVERY * (ALLOWED - 1));
        (!wait.is_zero()).then_some(wait)
    }

    /// Counts a failure.
    pub(crate) fn count(&mut self, peer: Option<IpAddr>, now: Instant) {
        if self.until.len() >= ADDRESSES {
            self.until.retain(|_, until| *until > now);
        }
        let place = self.place(peer);
        let until = self.until.entry(place).or_insert(now);
        *until = (*until).max(now) + EVERY;
    }

    /// Returns the place of an address: its own, or the common one if too many are remembered. A
    /// network of version 6 is one place, as whoever has one address of it has all.
    fn place(&self, peer: Option<IpAddr>) -> Option<IpAddr> {
        let peer = peer.map(|peer| match peer.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
            address @ IpAddr::V4(_) => address,
        });
        if self.until.contains_key(&peer) || self.until.len() < ADDRESSES { peer } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> Option<IpAddr> {
        Some(IpAddr::V4(number.into()))
    }

    #[test]
    fn after_some_failures_an_address_waits_and_others_do_not() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        for _ in 0..ALLOWED - 1 {
            failures.count(address(1), start);
            assert_eq!(failures.wait(address(1), start), None);
        }
        failures.count(address(1), start);
        assert_eq!(failures.wait(address(1), start), Some(EVERY));
        assert_eq!(failures.wait(address(2), start), None);
        assert_eq!(failures.wait(address(1), start + EVERY), None, "one more, after a while");
        failures.count(address(1), start + EVERY);
        assert_eq!(failures.wait(address(1), start + EVERY), Some(EVERY));
    }

    #[test]
    fn memory_is_bounded_and_a_flood_of_addresses_shares_one_count() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        for number in 0..100_000 {
            failures.count(address(number), start);
        }
        assert!(failures.until.len() <= ADDRESSES + 1, "{}", failures.until.len());
        assert!(failures.wait(address(99_999), start).is_some(), "it shares the count of the others");
        failures.count(address(7), start + EVERY * 1_000_000);
        assert!(failures.until.len() <= 2, "what is over is forgotten: {}", failures.until.len());
    }

    #[test]
    fn a_network_of_version_6_is_one_address() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        for number in 0..u128::from(ALLOWED) {
            failures.count(Some(IpAddr::V6((1_u128 << 100 | number).into())), start);
        }
        assert!(failures.wait(Some(IpAddr::V6((1_u128 << 100 | 99).into())), start).is_some());
    }
}
