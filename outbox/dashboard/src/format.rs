//! Numbers and times as people read them.

use maud::{Markup, html};
use outbox::Timestamp;
use outbox::relay::duration;
pub(crate) use outbox::relay::duration::in_two_units as age;

/// Returns a number in groups of three digits.
pub(crate) fn number(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number with its noun: `1 message`, `2 messages`.
pub(crate) fn count(many: u64, noun: &str) -> String {
    if many == 1 { format!("1 {noun}") } else { format!("{} {noun}s", number(many)) }
}

/// Returns an instant to the second, in UTC: `2030-01-31 12:00:00`.
pub(crate) fn at(instant: Timestamp) -> String {
    let text = instant.to_string();
    let seconds = text.split(['.', 'Z']).next().unwrap_or_default();
    seconds.replace('T', " ")
}

/// Returns the distance of an instant: `3m 12s ago`, `in 5s`.
pub(crate) fn distance(instant: Timestamp, now: Timestamp) -> String {
    if instant > now {
        format!("in {}", age(instant.since(now)))
    } else {
        format!("{} ago", age(now.since(instant)))
    }
}

/// Shows an instant as its distance; the instant itself is seen on hovering.
pub(crate) fn ago(instant: Timestamp, now: Timestamp) -> Markup {
    html! { time datetime=(instant) title={ (at(instant)) " UTC" } { (distance(instant, now)) } }
}

/// Shows an instant with its distance.
pub(crate) fn when(instant: Timestamp, now: Timestamp) -> Markup {
    html! { time datetime=(instant) { (at(instant)) } " " span.quiet { "(" (distance(instant, now)) ")" } }
}

/// Returns a size: `312 B`, `1.5 MiB`.
pub(crate) fn bytes(size: usize) -> String {
    #[expect(clippy::cast_precision_loss, reason = "it is shown with one decimal")]
    let size_f = size as f64;
    match size {
        0..1_024 => format!("{size} B"),
        1_024..1_048_576 => format!("{:.1} KiB", size_f / 1_024.0),
        _ => format!("{:.1} MiB", size_f / 1_048_576.0),
    }
}

/// Parses an instant: RFC 3339, the same without seconds or zone (UTC), or a duration ago.
pub(crate) fn instant(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let text = text.trim().replacen(' ', "T", 1);
    let forms = [text.clone(), format!("{text}Z"), format!("{text}:00Z"), format!("{text}T00:00:00Z")];
    if let Some(instant) = forms.iter().find_map(|form| Timestamp::parse(form)) {
        return Ok(instant);
    }
    let span = duration::parse(&text).map_err(|_| {
        format!("invalid time {text:?}: write 2030-01-31 12:00 (UTC), or how long ago, as 2h")
    })?;
    let micros = i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    Ok(Timestamp::from_micros(now.as_micros().saturating_sub(micros)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_groups() {
        let all = [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")];
        for (value, text) in all {
            assert_eq!(number(value), text);
        }
        assert_eq!((count(1, "key"), count(2_000, "key")), ("1 key".to_owned(), "2,000 keys".to_owned()));
    }

    #[test]
    fn instants_have_no_fraction_and_sizes_a_unit() {
        assert_eq!(at(Timestamp::from_micros(1_700_000_000_123_456)), "2023-11-14 22:13:20");
        assert_eq!(at(Timestamp::from_micros(1_700_000_000_000_000)), "2023-11-14 22:13:20");
        assert_eq!((bytes(1_023), bytes(1_536)), ("1023 B".to_owned(), "1.5 KiB".to_owned()));
    }

    #[test]
    fn an_instant_is_absolute_or_relative() {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let same = ["2023-11-14T22:13:00Z", "2023-11-14 22:13", "2023-11-14T22:13:00"];
        for text in same {
            assert_eq!(instant(text, now).map(at), Ok("2023-11-14 22:13:00".to_owned()), "{text}");
        }
        assert_eq!(instant("2023-11-14", now).map(at), Ok("2023-11-14 00:00:00".to_owned()));
        assert_eq!(instant("20s", now).map(at), Ok("2023-11-14 22:13:00".to_owned()));
        assert!(instant("yesterday", now).unwrap_err().contains("2h"));
    }
}
