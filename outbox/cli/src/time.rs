//! Times as people write and read them.

use std::time::Duration;

use outbox::message::DueTime;
use outbox::relay::duration;
pub(crate) use outbox::relay::duration::in_two_units as age;
use outbox::{Route, Timestamp};

use crate::exit::Failed;
use crate::open::Database;

/// Maximum of a duration: no clock of a process counts further.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3_600);

/// Parses a duration: `30s`, `5m`, `1h30m`. One of over a hundred years is taken for as many. For
/// clap.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    Ok(duration::parse(text)?.min(LONGEST))
}

/// An instant of the past, as a person writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    At(Timestamp),
    /// Before now, by the database's clock: the times of its tables are from there.
    Ago(Duration),
}

impl Past {
    /// Returns the instant, at this time of the database.
    fn before(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(instant) => instant,
            Self::Ago(span) => {
                let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
                Timestamp::from_micros(now.as_micros().saturating_sub(micros))
            }
        }
    }
}

/// A time between two instants, if they are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Between {
    pub(crate) since: Option<Timestamp>,
    pub(crate) before: Option<Timestamp>,
}

impl Between {
    /// Asks the database for its time, if an instant is relative to it.
    pub(crate) async fn of(
        store: &dyn Database,
        (since, before): (Option<Past>, Option<Past>),
    ) -> Result<Self, Failed> {
        let is_relative = [since, before].iter().any(|past| matches!(past, Some(Past::Ago(_))));
        let now = if is_relative { store.ownership(&Route::default()).await?.now } else { Timestamp::now() };
        let [since, before] = [since, before].map(|past| past.map(|past| past.before(now)));
        Ok(Self { since, before })
    }
}

/// Parses an instant of the past: RFC 3339, or a duration ago. For clap.
pub(crate) fn past(text: &str) -> Result<Past, String> {
    instant(text, Past::At, Past::Ago)
}

/// Parses a time of the future: RFC 3339, or a duration from now, by the database's clock. For
/// clap.
pub(crate) fn future(text: &str) -> Result<DueTime, String> {
    instant(text, DueTime::At, DueTime::After)
}

fn instant<T>(
    text: &str,
    absolute: impl Fn(Timestamp) -> T,
    relative: impl Fn(Duration) -> T,
) -> Result<T, String> {
    if let Some(instant) = Timestamp::parse(text) {
        return Ok(absolute(instant));
    }
    duration::parse(text).map(relative).map_err(|_| {
        format!("invalid time {text:?}: write RFC 3339, as 2030-01-31T12:00:00Z, or a duration, as 2h")
    })
}

/// Returns an instant to the second, for tables.
pub(crate) fn at(instant: Timestamp) -> String {
    let text = instant.to_string();
    match text.split_once('.') {
        Some((seconds, _)) => format!("{seconds}Z"),
        None => text,
    }
}

/// Returns the time since an instant, by this machine's clock.
pub(crate) fn ago(instant: Timestamp) -> String {
    age(Timestamp::now().since(instant))
}

#[cfg(test)]
mod tests {
    use outbox::memory::MemoryStore;

    use super::*;

    #[test]
    fn an_instant_is_absolute_or_relative() {
        let (second, hour) = (Timestamp::from_micros(1_000_000), Timestamp::from_micros(3_600_000_000));
        assert_eq!(past("1970-01-01T00:00:01Z"), Ok(Past::At(second)));
        assert_eq!(past("2h"), Ok(Past::Ago(Duration::from_secs(7_200))));
        let instants =
            [Past::At(second), Past::Ago(Duration::from_secs(3_599))].map(|past| past.before(hour));
        assert_eq!(instants, [second; 2]);
        assert_eq!(future("2h"), Ok(DueTime::After(Duration::from_secs(7_200))));
        assert!(past("yesterday").unwrap_err().contains("RFC 3339"));
    }

    #[test]
    fn a_duration_without_end_is_beyond_no_clock() {
        let endless = span("18446744073709551615s").unwrap();
        assert!(std::time::Instant::now().checked_add(endless).is_some());
        assert_eq!(span("90m"), Ok(Duration::from_secs(5_400)));
    }

    /// The clocks of this machine and of the database may be years apart.
    #[tokio::test]
    async fn a_duration_ago_is_by_the_clock_of_the_database() {
        let (now, hour) = (Timestamp::from_micros(1_000_000_000_000), Duration::from_secs(3_600));
        let store = MemoryStore::builder().starting_at(now).build();
        let time = Between::of(&store, (Some(Past::Ago(hour)), Some(Past::At(now)))).await.unwrap();
        let passed = time.since.unwrap().plus(hour).since(now);
        assert!(passed < hour && time.before == Some(now), "{time:?}");
    }

    #[test]
    fn an_instant_in_a_table_has_no_fraction() {
        assert_eq!(at(Timestamp::from_micros(1_700_000_000_123_456)), "2023-11-14T22:13:20Z");
        assert_eq!(at(Timestamp::from_micros(1_700_000_000_000_000)), "2023-11-14T22:13:20Z");
    }
}
