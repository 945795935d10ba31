//! What was seen so far, and a line that shows it.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use outbox_testkit::history::KeySequences;
use tokio::task::JoinHandle;

/// What was committed and what arrived, as the checker sees it. Written by the shop and the ledger.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    sequences: Mutex<KeySequences>,
    committed: AtomicU64,
    delivered: AtomicU64,
    before: AtomicU64,
}

impl Seen {
    /// An event of a customer was committed.
    pub(crate) fn committed(&self, customer: &str, number: u32) {
        self.sequences().committed(customer, number);
        self.committed.fetch_add(1, Ordering::Relaxed);
    }

    /// An event of a customer arrived.
    pub(crate) fn delivered(&self, customer: &str, number: u32) {
        self.sequences().delivered(customer, number);
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }

    /// An earlier run over the same databases committed this many events of a customer.
    pub(crate) fn committed_before(&self, customer: &str, events: u32) {
        self.sequences().committed(customer, events);
    }

    /// An earlier run booked this many events of a customer, which arrived in their order.
    pub(crate) fn booked_before(&self, customer: &str, events: u32) {
        let mut sequences = self.sequences();
        for number in 1..=events {
            sequences.delivered(customer, number);
        }
        self.before.fetch_add(u64::from(events), Ordering::Relaxed);
    }

    /// How many arrived in this run, repeats included.
    pub(crate) fn deliveries(&self) -> u64 {
        self.sequences().deliveries() - self.before.load(Ordering::Relaxed)
    }

    /// The checker.
    pub(crate) fn sequences(&self) -> MutexGuard<'_, KeySequences> {
        self.sequences.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bar on a terminal, a line now and then elsewhere.
pub(crate) struct Progress {
    bar: ProgressBar,
    task: JoinHandle<()>,
}

impl Progress {
    /// Starts to show what is seen.
    pub(crate) fn start(seen: Arc<Seen>, expected: Option<u64>) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if terminal { ProgressBar::new(expected.unwrap_or(0)) } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{bar:32} {msg} {elapsed}") {
            bar.set_style(style);
        }
        let shown = bar.clone();
        let task = tokio::spawn(async move {
            let every = Duration::from_millis(if terminal { 100 } else { 5_000 });
            loop {
                tokio::time::sleep(every).await;
                let (committed, delivered) =
                    (seen.committed.load(Ordering::Relaxed), seen.delivered.load(Ordering::Relaxed));
                let line = format!("{committed} committed, {delivered} delivered");
                shown.set_length(expected.unwrap_or(0).max(committed));
                shown.set_position(delivered);
                if terminal { shown.set_message(line) } else { eprintln!("{line}") }
            }
        });
        Self { bar, task }
    }

    /// Says something beside the bar.
    pub(crate) fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// Ends the showing.
    pub(crate) fn end(&self) {
        self.task.abort();
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
