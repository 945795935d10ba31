//! Durations as text, for configuration: `30s`, `500ms`, `1m30s`.
//!
//! ```
//! use std::time::Duration;
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Settings {
//!     #[serde(with = "outbox_contract::duration")]
//!     lease: Duration,
//! }
//! # assert_eq!(outbox_contract::duration::parse("1m30s").unwrap(), Duration::from_secs(90));
//! ```

use std::fmt;
use std::time::Duration;

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

/// Units from the largest to the smallest, with their length in nanoseconds.
const UNITS: [(&str, u128); 8] = [
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("ns", 1),
];

/// Parses a duration: whole numbers, each with a unit of `d`, `h`, `m`, `s`, `ms`, `us` or `ns`,
/// and added up.
///
/// # Errors
///
/// Shows the text, and how to write a duration.
pub fn parse(text: &str) -> Result<Duration, String> {
    let invalid = || {
        format!(
            "{text:?} is not a duration; write a number and a unit, such as 500ms, 30s, 5m, 2h, 1d or 1m30s"
        )
    };
    let (mut rest, mut sum) = (text.trim(), 0_u128);
    if rest.is_empty() {
        return Err(invalid());
    }
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit()).ok_or_else(invalid)?;
        let number: u128 = rest[..digits].parse().map_err(|_| invalid())?;
        rest = rest[digits..].trim_start();
        let unit = rest.find(|char: char| !char.is_alphabetic()).unwrap_or(rest.len());
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == &rest[..unit]).ok_or_else(invalid)?;
        sum = number.checked_mul(*nanos).and_then(|part| sum.checked_add(part)).ok_or_else(invalid)?;
        rest = rest[unit..].trim_start();
    }
    let seconds = u64::try_from(sum / 1_000_000_000).map_err(|_| invalid())?;
    Ok(Duration::new(seconds, u32::try_from(sum % 1_000_000_000).map_err(|_| invalid())?))
}

/// Formats a duration as [`parse`] reads it, in the largest units that fit.
#[must_use]
pub fn format(duration: Duration) -> String {
    let (mut rest, mut text) = (duration.as_nanos(), String::new());
    for (unit, nanos) in UNITS {
        if rest >= nanos {
            text.push_str(&format!("{}{unit}", rest / nanos));
            rest %= nanos;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// Serializes a duration as text.
///
/// # Errors
///
/// Those of the serializer.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*duration))
}

/// Deserializes a duration from text.
///
/// # Errors
///
/// Those of [`parse`]; a number without a unit is one too.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse(&deserializer.deserialize_str(Text)?).map_err(Error::custom)
}

/// A text, or an error that says what it should be.
struct Text;

impl Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration with its unit, such as \"30s\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

/// Optional durations as text.
pub mod option {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Text(#[serde(with = "super")] Duration);

    /// Serializes an optional duration as text.
    ///
    /// # Errors
    ///
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(Text).serialize(serializer)
    }

    /// Deserializes an optional duration from text.
    ///
    /// # Errors
    ///
    /// As [`deserialize`](super::deserialize).
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Text>::deserialize(deserializer)?.map(|text| text.0))
    }
}

/// Durations as text that can be switched off: `none`.
pub mod or_none {
    use std::time::Duration;

    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    const NONE: &str = "none";

    /// Serializes a duration as text, or `none`.
    ///
    /// # Errors
    ///
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => super::serialize(duration, serializer),
            None => serializer.serialize_str(NONE),
        }
    }

    /// Deserializes a duration, or `none`, from text.
    ///
    /// # Errors
    ///
    /// As [`deserialize`](super::deserialize).
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        match deserializer.deserialize_str(super::Text)?.as_str() {
            NONE => Ok(None),
            text => super::parse(text).map(Some).map_err(Error::custom),
        }
    }
}

/// Returns a duration in its two largest units, cut off, for people: `3m 12s`, `2h`, `1d 1h`. Below
/// a second: `12ms`.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(outbox_contract::duration::in_two_units(Duration::from_secs(192)), "3m 12s");
/// ```
#[must_use]
pub fn in_two_units(span: Duration) -> String {
    let seconds = span.as_secs();
    let two = |big: u64, unit: &str, small: u64, next: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit} {small}{next}") }
    };
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3_600 => two(seconds / 60, "m", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "m"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_written_as_people_write_them() {
        let texts =
            ["0s", "1ns", "15us", "500ms", "1s", "30s", "1m30s", "5m", "2h", "1d", "1d1h1m1s1ms1us1ns"];
        for text in texts {
            assert_eq!(format(parse(text).unwrap()), text);
        }
        assert_eq!(parse(" 1 m 30 s ").unwrap(), Duration::from_secs(90));
        assert_eq!(parse("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse("7µs").unwrap(), Duration::from_micros(7));
    }

    #[test]
    fn what_is_no_duration_is_refused_with_its_text_and_what_to_write() {
        let too_long = format!("{}d", u128::MAX);
        for text in
            ["", " ", "30", "s", "30 sek", "-1s", "1.5s", "1s 2", "30S", &too_long, "999999999999999999d"]
        {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(&format!("{text:?}")) && error.contains("30s"), "{error}");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_refused() {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        struct Settings {
            #[serde(with = "super")]
            lease: Duration,
            #[serde(with = "super::option", default)]
            pause: Option<Duration>,
        }
        let error = serde_json::from_str::<Settings>(r#"{"lease": 30}"#).unwrap_err().to_string();
        assert!(error.contains("a duration with its unit, such as \"30s\""), "{error}");
        let settings: Settings = serde_json::from_str(r#"{"lease": "30s", "pause": "1m"}"#).unwrap();
        let expected = Settings { lease: Duration::from_secs(30), pause: Some(Duration::from_secs(60)) };
        assert_eq!(settings, expected);
        assert_eq!(serde_json::to_string(&settings).unwrap(), r#"{"lease":"30s","pause":"1m"}"#);
        let settings: Settings = serde_json::from_str(r#"{"lease": "30s", "pause": null}"#).unwrap();
        assert_eq!(settings.pause, None);
    }

    #[test]
    fn a_duration_can_be_switched_off() {
        #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        struct Settings(#[serde(with = "super::or_none")] Option<Duration>);
        for (text, expected) in [(r#""none""#, None), (r#""2ms""#, Some(Duration::from_millis(2)))] {
            assert_eq!(serde_json::from_str::<Settings>(text).unwrap(), Settings(expected));
            assert_eq!(serde_json::to_string(&Settings(expected)).unwrap(), text);
        }
        for wrong in ["5", r#""soon""#] {
            let error = serde_json::from_str::<Settings>(wrong).unwrap_err().to_string();
            assert!(error.contains("a duration"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_duration_is_read_as_it_was_written(seconds in any::<u64>(), nanos in 0..1_000_000_000_u32) {
            let duration = Duration::new(seconds, nanos);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn no_text_is_a_panic(text in ".{0,40}") {
            let _ = parse(&text);
        }
    }

    #[test]
    fn a_duration_for_people_has_two_units() {
        let all = [(0, "0ms"), (59, "59s"), (60, "1m"), (192, "3m 12s"), (7_260, "2h 1m"), (90_000, "1d 1h")];
        for (seconds, text) in all {
            assert_eq!(in_two_units(Duration::from_secs(seconds)), text);
        }
    }
}
