//! Unique names.

use std::sync::atomic::{AtomicU32, Ordering};

/// Returns the name of a database, a virtual host or a prefix for one test. No other test of any
/// program uses it, even on a server that outlives them.
pub(crate) fn name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let time = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
    format!("test_{count}_{}_{time}", std::process::id())
}
