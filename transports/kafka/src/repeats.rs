//! Repeats in the client's log.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time after which the log has the same line once more.
const AGAIN: Duration = Duration::from_secs(60);
/// Number of lines that are remembered: the client's lines have addresses of brokers.
const REMEMBERED: usize = 1_000;

/// Lines that were logged lately. While a broker is down, each client of the process says so
/// several times a second.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Option<HashMap<String, Instant>>);

impl Repeats {
    const fn new() -> Self {
        Self(None)
    }

    /// Returns true if the same line was logged within the last minute, by any client of this
    /// process.
    pub(crate) fn have(line: &str) -> bool {
        static LOGGED: Mutex<Repeats> = Mutex::new(Repeats::new());
        LOGGED.lock().unwrap_or_else(PoisonError::into_inner).repeats(line, Instant::now())
    }

    fn repeats(&mut self, line: &str, now: Instant) -> bool {
        let logged = self.0.get_or_insert_default();
        let line = without_circumstances(line);
        let is_recent = |at: &Instant| now.duration_since(*at) < AGAIN;
        if logged.get(line).is_some_and(is_recent) {
            return true;
        }
        if logged.len() >= REMEMBERED {
            logged.retain(|_, at| is_recent(at));
        }
        if logged.len() < REMEMBERED {
            logged.insert(line.to_owned(), now);
        }
        false
    }
}

/// Returns a text of the client without the name of its thread, and without the time that an attempt
/// took.
pub(crate) fn without_circumstances(line: &str) -> &str {
    let line = line.strip_prefix("[thrd:").and_then(|line| line.split_once("]: ")).map_or(line, |(_, it)| it);
    line.split_once(" (after ").map_or(line, |(it, _)| it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_comes_again_after_a_minute_whatever_its_thread_and_its_time() {
        let refused = |thread: &str, ms: u32| {
            format!(
                "[thrd:{thread}]: b:9092/1: Connect to b:9092 failed: Connection refused (after {ms}ms in state CONNECT)"
            )
        };
        let (mut repeats, start) = (Repeats::new(), Instant::now());
        assert!(!repeats.repeats(&refused("b:9092/1", 0), start));
        assert!(repeats.repeats(&refused("b:9092/1", 7), start + AGAIN / 2));
        assert!(repeats.repeats(&refused("main", 0), start + AGAIN / 2));
        assert!(!repeats.repeats("b:9092/1: Disconnected", start));
        assert!(!repeats.repeats(&refused("b:9092/1", 0), start + AGAIN));
    }

    #[test]
    fn no_more_lines_are_remembered_than_fit() {
        let (mut repeats, start) = (Repeats::new(), Instant::now());
        for number in 0..2 * REMEMBERED {
            assert!(!repeats.repeats(&format!("line {number}"), start));
        }
        assert_eq!(repeats.0.as_ref().map(HashMap::len), Some(REMEMBERED));
        assert!(!repeats.repeats("line", start + AGAIN) && repeats.repeats("line", start + AGAIN));
    }
}
