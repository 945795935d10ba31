//! The rule of sessions: how relays notice, long before its lease is over, that another one is
//! dead.
//!
//! A relay's session in the database ends with its process. A store that sees this looks at the
//! sessions of the other relays of a route with each heartbeat, and asks this rule. A relay that
//! only opens another connection keeps what it has, so one look is not enough. Epochs fence a relay
//! that lost its session and lives on. PostgreSQL repeats the rule in a function of its own.

use std::time::Duration;

use crate::clock::Timestamp;

/// Time for which a session has to be lost before its relay is dead.
pub const GRACE: Duration = Duration::from_millis(500);

/// Interval at which a relay looks at the sessions of the others.
pub const EVERY: Duration = Duration::from_millis(1_500);

/// The result of a look at a relay that has not expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It has its session.
    Alive,
    /// It has been without its session since this instant, to be written, and looked at again after
    /// this time.
    Lost(Timestamp, Duration),
    /// It is dead: its life is over.
    Dead,
}

impl Look {
    /// Judges a relay by whether its session exists, and by the instant at which the session was
    /// first found to be lost, if it was.
    #[must_use]
    pub fn at(has_session: bool, lost_at: Option<Timestamp>, now: Timestamp) -> Self {
        // An instant that is ahead is of another clock, before a failover.
        match lost_at.filter(|lost_at| *lost_at <= now) {
            _ if has_session => Self::Alive,
            None => Self::Lost(now, GRACE),
            Some(lost_at) => match GRACE.checked_sub(now.since(lost_at)) {
                Some(left) if !left.is_zero() => Self::Lost(lost_at, left),
                _ => Self::Dead,
            },
        }
    }

    /// Returns the time after which to look again.
    #[must_use]
    pub const fn recheck(self) -> Option<Duration> {
        match self {
            Self::Alive => Some(EVERY),
            Self::Lost(_, left) => Some(left),
            Self::Dead => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn a_relay_is_dead_when_its_session_has_been_lost_for_half_a_second() {
        assert_eq!(Look::at(true, None, at(7)), Look::Alive);
        assert_eq!(Look::at(true, Some(at(0)), at(9_000_000)), Look::Alive, "it has another session");
        assert_eq!(Look::at(false, None, at(7)), Look::Lost(at(7), GRACE), "one look is not enough");
        let almost = Look::at(false, Some(at(7)), at(500_006));
        assert_eq!(almost, Look::Lost(at(7), Duration::from_micros(1)));
        assert_eq!(Look::at(false, Some(at(7)), at(500_007)), Look::Dead);
        assert_eq!(Look::at(false, Some(at(i64::MIN)), at(i64::MAX)), Look::Dead);
    }

    #[test]
    fn an_instant_that_is_ahead_counts_from_now() {
        assert_eq!(Look::at(false, Some(at(8)), at(7)), Look::Lost(at(7), GRACE));
    }

    #[test]
    fn who_lives_is_looked_at_again_and_who_is_dead_is_not() {
        let looks = [Look::Alive, Look::Lost(at(1), GRACE), Look::Dead].map(Look::recheck);
        assert_eq!(looks, [Some(EVERY), Some(GRACE), None]);
    }
}
