//! Times as people write and read them.

use std::time::Duration;

use outbox::Timestamp;
use outbox::message::DueTime;
use outbox::relay::duration;
pub(crate) use outbox::relay::duration::in_two_units as age;

/// Parses a duration: `30s`, `5m`, `1h30m`. For clap.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    duration::parse(text)
}

/// Parses an instant of the past: RFC 3339, or a duration ago. For clap.
pub(crate) fn past(text: &str) -> Result<Timestamp, String> {
    instant(text, std::convert::identity, |span| {
        let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        Timestamp::from_micros(Timestamp::now().as_micros().saturating_sub(micros))
    })
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
        format!("{text:?} is no time; write RFC 3339, as 2030-01-31T12:00:00Z, or a duration from now, as 2h")
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
    use super::*;

    #[test]
    fn an_instant_is_absolute_or_relative() {
        assert_eq!(past("1970-01-01T00:00:01Z"), Ok(Timestamp::from_micros(1_000_000)));
        assert!(past("2h").unwrap() < Timestamp::now());
        assert_eq!(future("2h"), Ok(DueTime::After(Duration::from_secs(7_200))));
        assert!(past("yesterday").unwrap_err().contains("RFC 3339"));
    }

    #[test]
    fn an_instant_in_a_table_has_no_fraction() {
        assert_eq!(at(Timestamp::from_micros(1_700_000_000_123_456)), "2023-11-14T22:13:20Z");
        assert_eq!(at(Timestamp::from_micros(1_700_000_000_000_000)), "2023-11-14T22:13:20Z");
    }
}
