//! The log: to the standard error, with secrets hidden and hostile characters shown.

use std::io::{self, Write};

use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::Failed;
use crate::otlp::Otlp;
use crate::{escape, redact};

/// Starts the log at a level, and the export of spans if there is one.
pub(crate) fn start(level: &str, otlp: Option<&Otlp>) -> Result<(), Failed> {
    let level: LevelFilter = level.parse().map_err(|_| {
        Failed::usage(format!("log is {level:?}; write one of off, error, warn, info, debug, trace"))
    })?;
    let log = tracing_subscriber::fmt::layer().with_writer(Safe::default).with_ansi(false).with_filter(level);
    // The first log stays: a program has one.
    let _ = tracing_subscriber::registry().with(log).with(otlp.map(Otlp::layer)).try_init();
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
