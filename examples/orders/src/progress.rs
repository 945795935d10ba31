//! Progress so far, and a line that shows it.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_testkit::history::KeySequences;
use tokio::task::JoinHandle;

/// Committed and delivered events, as the checker sees them. Written by the shop and the ledger.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    sequences: Mutex<KeySequences>,
    committed: AtomicU64,
    delivered: AtomicU64,
    before: AtomicU64,
}

impl Seen {
    /// Records that an event of a customer was committed.
    pub(crate) fn committed(&self, customer: &str, number: u32) {
        self.sequences().committed(customer, number);
        self.committed.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that an event of a customer was delivered.
    pub(crate) fn delivered(&self, customer: &str, number: u32) {
        self.sequences().delivered(customer, number);
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that an earlier run over the same databases committed this many events of a
    /// customer.
    pub(crate) fn committed_before(&self, customer: &str, events: u32) {
        self.sequences().committed(customer, events);
    }

    /// Records that an earlier run booked this many events of a customer, delivered in their order.
    pub(crate) fn booked_before(&self, customer: &str, events: u32) {
        let mut sequences = self.sequences();
        for number in 1..=events {
            sequences.delivered(customer, number);
        }
        self.before.fetch_add(u64::from(events), Ordering::Relaxed);
    }

    /// Returns the number of deliveries in this run, repeats included.
    pub(crate) fn deliveries(&self) -> u64 {
        self.sequences().deliveries() - self.before.load(Ordering::Relaxed)
    }

    /// Returns the checker.
    pub(crate) fn sequences(&self) -> MutexGuard<'_, KeySequences> {
        self.sequences.lock().unwrap_or_else(PoisonError::into_inner)
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
                let (committed, delivered) =
                    (seen.committed.load(Ordering::Relaxed), seen.delivered.load(Ordering::Relaxed));
                shown.draw(&figures(committed, delivered, expected));
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
fn figures(committed: u64, delivered: u64, expected: Option<u64>) -> String {
    let done = expected.map(|expected| {
        let all = expected.max(committed).max(1);
        format!(" ({} %)", (delivered * 100 / all).min(100))
    });
    format!("{committed} committed, {delivered} delivered{}", done.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_much_is_done_where_the_end_is_known() {
        assert_eq!(figures(3, 2, None), "3 committed, 2 delivered");
        assert_eq!(figures(100, 50, Some(200)), "100 committed, 50 delivered (25 %)");
        // More was committed than expected, and some of it was redelivered.
        assert_eq!(figures(300, 310, Some(200)), "300 committed, 310 delivered (100 %)");
        assert_eq!(figures(0, 0, Some(0)), "0 committed, 0 delivered (0 %)");
    }
}
