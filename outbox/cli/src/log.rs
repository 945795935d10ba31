//! The log: to the standard error, with secrets hidden and hostile characters shown.

use std::io::{self, Write};

use tracing_subscriber::filter::LevelFilter;

use crate::exit::Failed;
use crate::{escape, redact};

/// Starts the log at a level.
pub(crate) fn start(level: &str) -> Result<(), Failed> {
    let level: LevelFilter = level.parse().map_err(|_| {
        Failed::usage(format!("log is {level:?}; write one of off, error, warn, info, debug, trace"))
    })?;
    let log = tracing_subscriber::fmt().with_writer(Safe::default).with_ansi(false).with_max_level(level);
    // The first log stays: a program has one.
    let _ = log.try_init();
    Ok(())
}

/// Collects an event, and writes it whole and safe.
#[derive(Default)]
struct Safe(Vec<u8>);

impl Write for Safe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Safe {
    fn drop(&mut self) {
        let text = String::from_utf8_lossy(&self.0);
        let text = redact::hide(&escape::lines(&text));
        // A log that can't be written is no reason to stop.
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
}
