//! Retention of the ids that a consumer has handled: it counts only while the consumer handles
//! messages.
//!
//! A consumer that was away may get everything again that its broker still has. So its absence must
//! not use up the retention. A store records no more than when each message was handled, and that
//! is enough: the rule walks back from the latest id, in parts of an eighth of the retention. Each
//! part begins at the latest id that the part before does not cover. A busy consumer has one in
//! every part, so the walk ends after the whole retention. An absence lies between two parts, and
//! adds nothing. A consumer that handles a message now and then keeps its few ids for longer.
//!
//! One process removes the ids of all. So each records the retention that it was opened with, and
//! the longest recorded one counts.

use std::time::Duration;

use super::{Timestamp, micros};

/// Number of parts of the retention. An absence counts as one of them at most.
const PARTS: u32 = 8;

/// Time for which a recorded retention counts beyond its maximum age: more than passes between two
/// renewals.
const GRACE: Duration = Duration::from_secs(24 * 3_600);

/// Retention of handled ids: that of one process, extended by those that others have recorded.
///
/// A record counts for its maximum age and a day after its last renewal. Every id that was handled
/// while it was renewed is over that age by then, so a record that ends loses no id.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use std::time::Duration;
/// use outbox::Timestamp;
/// use outbox::backend::rules::micros;
/// use outbox::backend::rules::retention::HandledIdsRetention;
///
/// let day = Duration::from_secs(86_400);
/// let now = Timestamp::from_micros(1_700_000_000_000_000);
/// let own = HandledIdsRetention::new(day * 7, day * 90);
/// let longer = (micros(day * 30), micros(day * 90));
/// let lately = now.as_micros() - micros(day * 91);
/// assert_eq!(own.or_recorded(now, longer, lately), HandledIdsRetention::new(day * 30, day * 90));
/// assert_eq!(own.or_recorded(now, longer, lately - 1), own);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandledIdsRetention {
    kept: i64,
    max_age: i64,
}

impl HandledIdsRetention {
    /// Retention that a process was opened with: the time for which ids are kept, and their maximum
    /// age.
    #[must_use]
    pub fn new(kept: Duration, max_age: Duration) -> Self {
        Self { kept: micros(kept), max_age: micros(max_age) }
    }

    /// Returns the longer one of this and a recorded one that was last renewed then, all in
    /// microseconds, as the tables have them.
    #[must_use]
    pub fn or_recorded(self, now: Timestamp, (kept, max_age): (i64, i64), renewed_at: i64) -> Self {
        let unrenewed = now.as_micros().saturating_sub(renewed_at);
        if unrenewed > max_age.saturating_add(micros(GRACE)) {
            return self;
        }
        Self { kept: self.kept.max(kept), max_age: self.max_age.max(max_age) }
    }

    /// Begins the search for what can be removed, at the database's present time.
    #[must_use]
    pub fn cut(self, now: Timestamp) -> HandledIdsCut {
        HandledIdsCut::of(now, self.kept, self.max_age)
    }
}

/// Search for the instant up to which the ids of one consumer can be removed.
///
/// The store answers each [`look`](Self::look) with [`found`](Self::found), until there is none;
/// then it removes the ids that were handled at or before [`cut`](Self::cut).
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use std::time::Duration;
/// use outbox::Timestamp;
/// use outbox::backend::rules::retention::HandledIdsCut;
///
/// let day = Duration::from_secs(86_400);
/// let now = Timestamp::from_micros(1_700_000_000_000_000);
/// let mut cut = HandledIdsCut::new(now, day * 7, day * 90);
/// while let Some(at) = cut.look() {
///     cut.found(Some(at)); // This consumer has an id of every instant.
/// }
/// assert_eq!(cut.cut().plus(day * 7), now);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HandledIdsCut {
    /// Ids handled later are in their retention, whatever the consumer did.
    kept_since: Timestamp,
    /// Ids up to here are over the maximum age.
    floor: Timestamp,
    part: i64,
    at: Timestamp,
    left: u32,
}

impl HandledIdsCut {
    /// Begins at the database's present time.
    #[must_use]
    pub fn new(now: Timestamp, kept: Duration, max_age: Duration) -> Self {
        HandledIdsRetention::new(kept, max_age).cut(now)
    }

    fn of(now: Timestamp, kept: i64, max_age: i64) -> Self {
        let before = |span: i64| Timestamp::from_micros(now.as_micros().saturating_sub(span));
        Self {
            kept_since: before(kept),
            floor: before(max_age),
            part: kept / i64::from(PARTS),
            at: now,
            left: PARTS,
        }
    }

    /// Returns true if ids may have to be removed, given the instant of the consumer's oldest one.
    #[must_use]
    pub fn is_due(&self, oldest: Timestamp) -> bool {
        oldest <= self.kept_since.max(self.floor)
    }

    /// Returns an instant; the store looks for the consumer's latest id that was handled at or
    /// before it. `None`: the search is over.
    #[must_use]
    pub fn look(&self) -> Option<Timestamp> {
        (self.left > 0).then_some(self.at)
    }

    /// Continues with the instant of that id. `None`: there is no such id.
    pub fn found(&mut self, latest: Option<Timestamp>) {
        let next = latest.map(|latest| latest.as_micros().saturating_sub(self.part));
        match next.map(Timestamp::from_micros).filter(|next| *next > self.floor) {
            Some(next) => (self.at, self.left) = (next, self.left.saturating_sub(1)),
            None => (self.at, self.left) = (self.floor, 0),
        }
    }

    /// Returns the instant up to which ids can be removed, once the search is over.
    #[must_use]
    pub fn cut(&self) -> Timestamp {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000_000;
    const NOW: i64 = 500_000 * HOUR;

    /// The age of the cut in hours, of a consumer that handled a message at each of these ages, for
    /// a retention of 8 days and a maximum age of 90.
    fn cut(ages: impl IntoIterator<Item = i64>) -> i64 {
        let handled: Vec<_> = ages.into_iter().map(|age| Timestamp::from_micros(NOW - age * HOUR)).collect();
        let day = Duration::from_secs(86_400);
        let mut cut = HandledIdsCut::new(Timestamp::from_micros(NOW), day * 8, day * 90);
        while let Some(at) = cut.look() {
            cut.found(handled.iter().copied().filter(|handled| *handled <= at).max());
        }
        (NOW - cut.cut().as_micros()) / HOUR
    }

    fn every_hour(days: std::ops::Range<i64>) -> impl Iterator<Item = i64> {
        days.start * 24..=days.end * 24
    }

    #[test]
    fn ids_of_a_busy_consumer_are_kept_for_the_retention() {
        assert_eq!(cut(every_hour(0..30)), 8 * 24);
    }

    #[test]
    fn an_absence_takes_at_most_one_part() {
        assert_eq!(cut(every_hour(30..60)), 38 * 24, "away until now: the last 8 days before are kept");
        let back = [0].into_iter().chain(every_hour(30..60));
        assert_eq!(cut(back), 37 * 24, "back a moment ago");
        let for_days = every_hour(0..3).chain(every_hour(30..60));
        assert_eq!(cut(for_days), 34 * 24, "back for three days");
    }

    #[test]
    fn nothing_is_older_than_the_maximum_age() {
        assert_eq!(cut([]), 90 * 24);
        assert_eq!(cut([89 * 24]), 90 * 24);
        assert_eq!(cut(every_hour(85..200)), 90 * 24);
    }

    #[test]
    fn the_longest_recorded_retention_counts_in_each_part() {
        let (now, day) = (Timestamp::from_micros(NOW), Duration::from_secs(86_400));
        let own = HandledIdsRetention::new(day * 7, day * 90);
        let with = |kept: u32, max_age: u32, renewed: i64| {
            own.or_recorded(now, (micros(day * kept), micros(day * max_age)), NOW - renewed * HOUR)
        };
        assert_eq!(with(30, 60, 0), HandledIdsRetention::new(day * 30, day * 90));
        assert_eq!(with(1, 365, 0), HandledIdsRetention::new(day * 7, day * 365));
        assert_eq!(with(1, 2, 0), own, "a shorter one");
        assert_eq!(with(30, 60, 61 * 24), HandledIdsRetention::new(day * 30, day * 90));
        assert_eq!(with(30, 60, 61 * 24 + 1), own, "its ids are over their age");
        let of_the_future = with(30, 90, -1);
        assert_eq!(of_the_future, HandledIdsRetention::new(day * 30, day * 90));
        let forever = own.or_recorded(now, (i64::MAX, i64::MAX), i64::MIN);
        assert!(!forever.cut(now).is_due(Timestamp::from_micros(0)));
    }

    #[test]
    fn a_message_of_the_future_is_not_looked_at() {
        assert_eq!(cut([-10, -5, 1]), 90 * 24);
    }

    #[test]
    fn a_maximum_age_below_the_retention_counts() {
        let (now, day) = (Timestamp::from_micros(NOW), Duration::from_secs(86_400));
        let mut cut = HandledIdsCut::new(now, day * 8, day);
        assert!(cut.is_due(Timestamp::from_micros(NOW - 24 * HOUR)));
        cut.found(cut.look());
        assert_eq!((cut.look(), cut.cut().plus(day)), (None, now));
    }
}
