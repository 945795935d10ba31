//! Trace of a run: a line for each event, with the virtual time.

use std::sync::Mutex;

use tokio::time::Instant;

/// The lines so far. Written by every part of the world.
pub(crate) struct Trace {
    started: Instant,
    lines: Mutex<Vec<String>>,
    // True if one seed is replayed: then its lines are printed as they come, for the run may never
    // end.
    live: bool,
}

impl Trace {
    pub(crate) fn new() -> Self {
        let live = std::env::var_os("OUTBOX_SEED").is_some();
        Self { started: Instant::now(), lines: Mutex::new(Vec::new()), live }
    }

    pub(crate) fn say(&self, what: impl AsRef<str>) {
        let at = self.started.elapsed().as_micros();
        let line = format!("{at:>10} {}", what.as_ref());
        if self.live {
            println!("{line}");
        }
        self.lines.lock().unwrap().push(line);
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.lines.lock().unwrap())
    }
}
