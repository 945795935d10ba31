//! Progress so far, and a line that shows it.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;

/// Progress of shop and ledger, and the order in which the ledger handles. Written by both.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    committed: AtomicU64,
    handled: AtomicU64,
    overtaken: AtomicU64,
    /// The highest number that was handled, for each customer.
    newest: Mutex<HashMap<String, u32>>,
}

impl Seen {
    /// Records that an event was committed.
    pub(crate) fn committed(&self) {
        self.committed.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the event of this number, from 1, of a customer is handled. A number may come
    /// again, when a transaction is restarted. A number that leaves some out has overtaken these.
    pub(crate) fn handled(&self, customer: &str, number: u32) {
        let mut customers = self.newest();
        let newest = customers.entry(customer.to_owned()).or_default();
        if number > *newest {
            self.overtaken.fetch_add(u64::from(number - *newest - 1), Ordering::Relaxed);
            self.handled.fetch_add(1, Ordering::Relaxed);
            *newest = number;
        }
    }

    /// Records that an earlier run booked this many events of a customer.
    pub(crate) fn booked_before(&self, customer: &str, events: u32) {
        self.newest().insert(customer.to_owned(), events);
    }

    /// Returns the number of events that a newer one of their customer has overtaken.
    pub(crate) fn overtaken(&self) -> u64 {
        self.overtaken.load(Ordering::Relaxed)
    }

    fn newest(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A progress line on standard error: redrawn on a terminal, written from time to time elsewhere.
pub(crate) struct Progress {
    line: Arc<Line>,
    task: JoinHandle<()>,
}

impl Progress {
    /// Starts to show the progress.
    pub(crate) fn start(seen: Arc<Seen>, expected: Option<u64>) -> Self {
        let line = Arc::new(Line { terminal: io::stderr().is_terminal(), ended: Mutex::new(false) });
        let shown = Arc::clone(&line);
        let task = tokio::spawn(async move {
            let every = Duration::from_millis(if shown.terminal { 100 } else { 5_000 });
            loop {
                tokio::time::sleep(every).await;
                let (committed, handled) =
                    (seen.committed.load(Ordering::Relaxed), seen.handled.load(Ordering::Relaxed));
                shown.draw(&figures(committed, handled, expected));
            }
        });
        Self { line, task }
    }

    /// Prints a message beside the line.
    pub(crate) fn say(&self, words: &str) {
        self.line.say(words);
    }

    /// Stops showing the progress.
    pub(crate) fn end(&self) {
        self.task.abort();
        self.line.end();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

/// The line itself. The lock separates drawing from messages, and prevents drawing after the end.
struct Line {
    terminal: bool,
    ended: Mutex<bool>,
}

/// Returns to the beginning of the line, and clears it.
const CLEAR: &str = "\r\x1b[K";

impl Line {
    fn draw(&self, words: &str) {
        let ended = self.ended();
        if *ended {
            return;
        }
        // A progress line that can't be written is no reason to end the program.
        let _shown = match self.terminal {
            true => write!(io::stderr(), "{CLEAR}{words}"),
            false => writeln!(io::stderr(), "{words}"),
        };
    }

    fn say(&self, words: &str) {
        let _ended = self.ended();
        let clear = if self.terminal { CLEAR } else { "" };
        let _said = writeln!(io::stderr(), "{clear}{words}");
    }

    fn end(&self) {
        let mut ended = self.ended();
        if self.terminal && !*ended {
            let _cleared = write!(io::stderr(), "{CLEAR}");
        }
        *ended = true;
    }

    fn ended(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Text of the line. It shows a percentage only if the total is known.
fn figures(committed: u64, handled: u64, expected: Option<u64>) -> String {
    let done = expected.map(|expected| {
        let all = expected.max(committed).max(1);
        format!(" ({} %)", (handled * 100 / all).min(100))
    });
    format!("{committed} committed, {handled} booked{}", done.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_was_left_out_is_overtaken_and_one_that_comes_again_is_not() {
        let seen = Seen::default();
        seen.booked_before("ann", 2);
        for number in [3, 4, 3, 4, 5] {
            seen.handled("ann", number);
        }
        assert_eq!(seen.overtaken(), 0);
        seen.handled("ann", 8);
        seen.handled("bob", 2);
        assert_eq!(seen.overtaken(), 3);
    }

    #[test]
    fn the_line_says_how_much_is_done_where_the_end_is_known() {
        assert_eq!(figures(3, 2, None), "3 committed, 2 booked");
        assert_eq!(figures(100, 50, Some(200)), "100 committed, 50 booked (25 %)");
        // More was committed than expected, and some of it was redelivered.
        assert_eq!(figures(300, 310, Some(200)), "300 committed, 310 booked (100 %)");
        assert_eq!(figures(0, 0, Some(0)), "0 committed, 0 booked (0 %)");
    }
}
