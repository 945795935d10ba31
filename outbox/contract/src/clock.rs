//! Time: the instant that a message carries, and the clock that a relay reads.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// An instant in time: microseconds since 1970-01-01T00:00:00 UTC, without leap seconds.
///
/// A plain number keeps date libraries below version 1 out of our signatures; every date library
/// converts from it. Printed and parsed as RFC 3339 in UTC.
///
/// ```
/// # extern crate outbox_contract as outbox;
/// use outbox::Timestamp;
///
/// let instant = Timestamp::from_micros(1_700_000_000_123_456);
/// assert_eq!(instant.to_string(), "2023-11-14T22:13:20.123456Z");
/// assert_eq!(Timestamp::parse("2023-11-14T23:13:20.123456+01:00"), Some(instant));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

impl Timestamp {
    /// Creates an instant from microseconds since 1970.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns microseconds since 1970; negative before 1970.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns the current time of the system's wall clock.
    #[must_use]
    pub fn now() -> Self {
        let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Self(micros(since)),
            Err(before) => Self(-micros(before.duration())),
        }
    }

    /// Returns this instant plus a duration. Saturates at the last representable instant.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }

    /// Returns true if the instant lies in the years 0 to 9999, the range of RFC 3339. Other
    /// instants can be printed, but not parsed.
    pub(crate) fn is_printable(self) -> bool {
        (-62_167_219_200_000_000..253_402_300_800_000_000).contains(&self.0)
    }

    /// Returns the time elapsed since `earlier`; zero if this instant is not after it.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Parses an RFC 3339 instant with any offset. Returns `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let number = |range: std::ops::Range<usize>| -> Option<i64> {
            let digits = bytes.get(range)?;
            digits.iter().all(u8::is_ascii_digit).then_some(())?;
            std::str::from_utf8(digits).ok()?.parse().ok()
        };
        let separator = |at: usize, any: &[u8]| any.contains(bytes.get(at)?).then_some(());
        separator(4, b"-")?;
        separator(7, b"-")?;
        separator(10, b"Tt ")?;
        separator(13, b":")?;
        separator(16, b":")?;
        let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
        let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
        let in_range = (1..=12).contains(&month)
            && (1..=days_in_month(year, month)).contains(&day)
            && hour < 24
            && minute < 60
            && second < 61;
        in_range.then_some(())?;

        let mut rest = 19;
        let mut micros = 0;
        if bytes.get(rest) == Some(&b'.') {
            rest += 1;
            let digits = bytes[rest..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            (digits > 0).then_some(())?;
            for place in 0..6 {
                let digit = if place < digits { i64::from(bytes[rest + place] - b'0') } else { 0 };
                micros = micros * 10 + digit;
            }
            rest += digits;
        }
        let offset_minutes = match bytes.get(rest)? {
            b'Z' | b'z' if bytes.len() == rest + 1 => 0,
            sign @ (b'+' | b'-') if bytes.len() == rest + 6 => {
                separator(rest + 3, b":")?;
                let minutes = number(rest + 1..rest + 3)? * 60 + number(rest + 4..rest + 6)?;
                if *sign == b'-' { -minutes } else { minutes }
            }
            _ => return None,
        };
        let seconds =
            days_from_civil(year, month, day) * SECONDS_PER_DAY + hour * 3600 + minute * 60 + second
                - offset_minutes * 60;
        Some(Self(seconds * MICROS_PER_SECOND + micros))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(MICROS_PER_SECOND);
        let micros = self.0.rem_euclid(MICROS_PER_SECOND);
        let (year, month, day) = civil_from_days(seconds.div_euclid(SECONDS_PER_DAY));
        let of_day = seconds.rem_euclid(SECONDS_PER_DAY);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        if !(0..10_000).contains(&year) {
            return write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z");
        }
        // Runs for each sent message, so it avoids the formatting machinery.
        let mut text = *b"0000-00-00T00:00:00.000000Z";
        for (end, mut number) in
            [(4, year), (7, month), (10, day), (13, hour), (16, minute), (19, second), (26, micros)]
        {
            for digit in text[..end].iter_mut().rev() {
                if number == 0 {
                    break;
                }
                *digit = b'0' + u8::try_from(number % 10).unwrap_or_default();
                number /= 10;
            }
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

/// Days from 1970-01-01 to a date in the proleptic Gregorian calendar: years start in March, in
/// eras of 400.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day_of_year - (153 * from_march + 2) / 5 + 1)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The clock by which a relay measures its own leases. Tests inject a clock under their control.
///
/// Leases themselves live on the database's clock. This clock only tells a relay when to stop
/// *before* they expire.
pub trait Clock: Send + Sync + 'static {
    /// Time since a fixed instant in this process's life. It never goes back, and it includes time
    /// in suspend: a relay that slept through its lease must notice that when it wakes.
    fn elapsed(&self) -> Duration;

    /// The wall clock, for output that people read.
    fn now(&self) -> Timestamp;
}

/// The machine's own clock.
///
/// On most systems the monotonic clock stops during suspend. Linux has one that includes suspend
/// (`CLOCK_BOOTTIME`) and can't be set. On other systems this type also reads the wall clock. A
/// step forward of more than a second counts as time passed, because it may have been a suspend. A
/// step back counts as nothing. A suspend of less than a second is not detected there.
#[derive(Debug)]
pub struct SystemClock {
    started: tokio::time::Instant,
    asleep: Asleep,
}

impl SystemClock {
    /// Starts the clock at zero.
    #[must_use]
    pub fn new() -> Self {
        Self { started: tokio::time::Instant::now(), asleep: Asleep::new() }
    }
}

/// A system clock that includes suspend.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[derive(Debug)]
struct Asleep {
    started: Duration,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
impl Asleep {
    fn new() -> Self {
        Self { started: Self::since_boot() }
    }

    fn since_boot() -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // The clock counts up from zero, so neither part is negative.
        let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
        Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
    }

    /// Returns the elapsed time, given the monotonic clock's reading: the larger of the two. Under
    /// tokio's paused clock that is the monotonic one.
    fn elapsed(&self, monotonic: Duration) -> Duration {
        monotonic.max(Self::since_boot().saturating_sub(self.started))
    }
}

/// Suspend detection by the wall clock, for systems without a better clock.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
#[derive(Debug)]
struct Asleep {
    // A plain mutex, because it is held for a few additions only.
    readings: std::sync::Mutex<Readings>,
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
impl Asleep {
    fn new() -> Self {
        Self { readings: std::sync::Mutex::new(Readings::new(Timestamp::now())) }
    }

    fn elapsed(&self, monotonic: Duration) -> Duration {
        let mut readings = self.readings.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        readings.advance(monotonic, Timestamp::now())
    }
}

/// The last readings of a monotonic clock that may stop and of a wall clock that may be set, and
/// the elapsed time derived from both.
#[cfg(any(test, not(any(target_os = "linux", target_os = "android"))))]
#[derive(Debug)]
struct Readings {
    monotonic: Duration,
    wall: Timestamp,
    elapsed: Duration,
}

#[cfg(any(test, not(any(target_os = "linux", target_os = "android"))))]
impl Readings {
    /// Minimum lead of the wall clock that counts as a suspend. Smaller leads may be clock
    /// adjustments, and these would add up.
    const SLACK: Duration = Duration::from_secs(1);

    fn new(wall: Timestamp) -> Self {
        Self { monotonic: Duration::ZERO, wall, elapsed: Duration::ZERO }
    }

    /// Adds the time passed since the previous readings. It works step by step, so that setting the
    /// wall clock once does not count for or against it forever.
    fn advance(&mut self, monotonic: Duration, wall: Timestamp) -> Duration {
        let passed = monotonic.saturating_sub(self.monotonic);
        let by_wall = wall.since(self.wall);
        self.elapsed += if by_wall > passed + Self::SLACK { by_wall } else { passed };
        // Two threads may deliver their readings out of order.
        self.monotonic = self.monotonic.max(monotonic);
        self.wall = wall;
        self.elapsed
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn elapsed(&self) -> Duration {
        self.asleep.elapsed(self.started.elapsed())
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_instant_survives_printing_and_reading(micros in -62_135_596_800_000_000_i64..253_402_300_799_999_999) {
            let instant = Timestamp::from_micros(micros);
            prop_assert_eq!(Timestamp::parse(&instant.to_string()), Some(instant));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "\\PC{0,40}") {
            let _ = Timestamp::parse(&text);
        }
    }

    #[test]
    fn known_instants_are_read() {
        let read = |text| Timestamp::parse(text).map(Timestamp::as_micros);
        assert_eq!(read("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(read("2000-02-29T12:00:00.5Z"), Some(951_825_600_500_000));
        assert_eq!(read("2026-11-21T10:00:00.1234567-05:30"), Some(1_795_275_000_123_456));
        for wrong in [
            "",
            "2026-11-21",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-11-21T10:00:00",
            "2026-11-21T10:00:00.Z",
        ] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }

    const S: Duration = Duration::from_secs(1);

    /// A monotonic clock, a wall clock, and their readings.
    struct Machine {
        monotonic: Duration,
        wall: i64,
        readings: Readings,
    }

    impl Machine {
        fn new() -> Self {
            let wall = 1_700_000_000_000_000;
            Self { monotonic: Duration::ZERO, wall, readings: Readings::new(Timestamp::from_micros(wall)) }
        }

        fn runs(&mut self, seconds: u32) -> Duration {
            self.monotonic += S * seconds;
            self.is_set(i64::from(seconds))
        }

        fn is_suspended(&mut self, seconds: u32) -> Duration {
            self.is_set(i64::from(seconds))
        }

        /// Moves the wall clock by this many seconds. Returns how much additional elapsed time the
        /// readings show.
        fn is_set(&mut self, seconds: i64) -> Duration {
            self.wall += seconds * 1_000_000;
            let before = self.readings.elapsed;
            self.readings.advance(self.monotonic, Timestamp::from_micros(self.wall)) - before
        }
    }

    #[test]
    fn a_suspend_is_seen_though_the_wall_clock_was_set_back_before() {
        let mut machine = Machine::new();
        assert_eq!(machine.runs(10), S * 10);
        assert_eq!(machine.is_set(-600), Duration::ZERO);
        assert_eq!(machine.is_suspended(60), S * 60);
        assert_eq!(machine.runs(5), S * 5);
    }

    #[test]
    fn time_goes_on_when_a_wall_clock_that_was_ahead_is_set_right() {
        let mut machine = Machine::new();
        assert_eq!(machine.is_set(3_600), S * 3_600, "it may have been a suspend");
        assert_eq!(machine.is_set(-3_600), Duration::ZERO);
        assert_eq!(machine.runs(10), S * 10);
    }

    #[test]
    fn small_adjustments_of_the_wall_clock_do_not_add_up() {
        let mut machine = Machine::new();
        for _ in 0..100 {
            machine.monotonic += S;
            machine.is_set(2);
        }
        assert_eq!(machine.readings.elapsed, S * 100);
    }

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_runs_with_the_runtime_that_its_timers_run_on() {
        let clock = SystemClock::new();
        tokio::time::sleep(S * 3_600).await;
        assert!(clock.elapsed() >= S * 3_600);
    }

    #[test]
    fn the_system_clock_does_not_go_back() {
        let clock = SystemClock::new();
        let first = clock.elapsed();
        assert!(clock.elapsed() >= first);
    }
}
