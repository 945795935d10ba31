//! State of the partitions of a history: whether maintenance makes and drops them. Pure.

use std::time::Duration;

use outbox_contract::admin::Diagnosis;
use outbox_contract::backend::rules::micros;

/// Time for which a partition may be missing or over: maintenance comes by every minute, and gives
/// way to whoever reads the table.
const GRACE: Duration = Duration::from_secs(3_600);

/// Time for which messages may be delivered before the first partition is made.
const FIRST: Duration = Duration::from_secs(600);

/// Maximum number of partitions that a finding names.
const MAX_NAMED: usize = 3;

/// Partitions of a history. Times are microseconds of the database's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The time.
    pub now: i64,
    /// Retention of delivered messages. `None`: not known here, or no history is kept.
    pub kept: Option<Duration>,
    /// Partitions with the time up to which each has messages.
    pub partitions: Vec<(String, i64)>,
    /// First and last delivery of the messages that found no partition of their own.
    pub rest: Option<(i64, i64)>,
}

impl History {
    /// Returns true if messages are delivered, and no partition is there for them.
    #[must_use]
    pub fn lacks_partitions(&self) -> bool {
        let is_ahead = self.partitions.iter().any(|(_, end)| *end > self.now);
        let is_used =
            |(first, last): (i64, i64)| first < self.now - micros(FIRST) && last > self.now - micros(GRACE);
        !is_ahead && self.rest.is_some_and(is_used)
    }

    /// Returns the partitions whose messages are all over their time.
    #[must_use]
    pub fn overdue(&self) -> Vec<&str> {
        let Some(kept) = self.kept else { return Vec::new() };
        let over = self.now.saturating_sub(micros(kept)).saturating_sub(micros(GRACE));
        self.partitions.iter().filter(|(_, end)| *end < over).map(|(name, _)| name.as_str()).collect()
    }

    /// Returns the findings. `makes` and `drops`: the remedies where a relay can't do these.
    #[must_use]
    pub fn diagnoses(&self, makes: &str, drops: &str) -> Vec<Diagnosis> {
        let mut found = Vec::new();
        if self.lacks_partitions() {
            found.push(Diagnosis::bloat(
                "outbox_history has no partition for what is delivered now: it goes to the last one, which is never dropped whole",
                makes,
            ));
        }
        let overdue = self.overdue();
        if !overdue.is_empty() {
            let named = overdue.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
            let more = overdue.len().saturating_sub(MAX_NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            found.push(Diagnosis::bloat(
                format!(
                    "partitions of outbox_history are over their time and were not dropped: {named}{more}"
                ),
                drops,
            ));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000_000;
    const NOW: i64 = 100_000 * MINUTE;

    fn history(ends: &[i64], rest: Option<(i64, i64)>) -> History {
        let partitions = ends.iter().enumerate().map(|(at, end)| (format!("p{at}"), *end)).collect();
        History { now: NOW, kept: Some(Duration::from_secs(24 * 3_600)), partitions, rest }
    }

    #[test]
    fn partitions_are_missing_only_if_messages_are_delivered_without_them() {
        let since = |minutes: i64| Some((NOW - minutes * MINUTE, NOW - MINUTE));
        assert!(!history(&[], None).lacks_partitions(), "no history is kept");
        assert!(!history(&[], since(5)).lacks_partitions(), "the first ones are about to be made");
        assert!(history(&[], since(20)).lacks_partitions());
        assert!(history(&[NOW], since(20)).lacks_partitions(), "they have ended");
        assert!(!history(&[NOW + 1], since(20)).lacks_partitions(), "of the time before them");
        let long_ago = Some((NOW - 600 * MINUTE, NOW - 61 * MINUTE));
        assert!(!history(&[], long_ago).lacks_partitions(), "nothing is delivered any more");
    }

    #[test]
    fn a_partition_is_overdue_when_maintenance_should_have_dropped_it() {
        let day = 24 * 60 * MINUTE;
        let (over, fresh) = (NOW - day - 61 * MINUTE, NOW - day - 59 * MINUTE);
        assert_eq!(history(&[over, fresh, NOW], None).overdue(), ["p0"]);
        assert!(History { kept: None, ..history(&[over], None) }.overdue().is_empty());
        let texts = |history: &History| {
            let found = history.diagnoses("make", "drop");
            found.into_iter().map(|it| format!("{} / {}", it.text, it.remedy)).collect::<Vec<_>>()
        };
        let many = texts(&history(&[over; 5], None));
        assert!(many[0].ends_with("were not dropped: p0, p1, p2 and 2 more / drop"), "{many:?}");
        assert_eq!(texts(&history(&[NOW + day], None)), [""; 0]);
    }
}
