//! Notes of a test run for its end, beyond passed and failed tests: which tests skipped, and which
//! servers were used.

use std::fs::OpenOptions;
use std::io::Write as _;

/// The file for tests that skipped.
pub(crate) const SKIPS: &str = "OUTBOX_SKIPS";
/// The file for servers that were used.
const USED: &str = "OUTBOX_SERVERS_USED";

/// Adds a line to the file that an environment variable names. Without the variable the line has no
/// reader, and is dropped.
///
/// # Panics
///
/// If it can't be written: an unrecorded skip would look like a test that passed.
#[track_caller]
pub(crate) fn note(variable: &str, line: &str) {
    let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) else { return };
    // One write, so that lines of test programs that run at once stay whole.
    let noted = OpenOptions::new().append(true).create(true).open(&path);
    let noted =
        noted.and_then(|mut file| file.write_all(format!("{}\n", line.replace('\n', " ")).as_bytes()));
    if let Err(error) = noted {
        panic!("{line:?} can't be noted in {}: {error}", path.display());
    }
}

/// Note of a running server: its name, and its source.
pub(crate) fn of(server: &str, from: &str) -> String {
    format!("{server} ({from})")
}

/// Records that a server was used: see [`of`].
#[track_caller]
pub(crate) fn used(server: &str) {
    note(USED, server);
}

/// Returns the version in a server's log, behind some words of it.
pub(crate) fn version<'l>(log: &'l str, behind: &str) -> Option<&'l str> {
    let (_, rest) = log.split_once(behind).filter(|_| !behind.is_empty())?;
    let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(rest.len());
    Some(rest.get(..end)?.trim_end_matches('.')).filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_a_log() {
        let log = "x\n[System] ready. Version: '9.7.4-2'  socket: '/a'\nVersion: '1'";
        assert_eq!(version(log, "Version: '"), Some("9.7.4"));
        assert_eq!(version("Starting RabbitMQ 4.3.6.\n", "Starting RabbitMQ "), Some("4.3.6"));
        assert_eq!(version("starting up", "starting "), None);
        assert_eq!(version("1.2", ""), None);
    }
}
