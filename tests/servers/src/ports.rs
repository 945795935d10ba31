//! Ports that belong to one server for as long as it lives.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

/// Below the ports that Linux assigns to outgoing connections (32,768 and up): a stopped server
/// finds its port free when it starts again.
const FIRST: u16 = 15_000;
const COUNT: u16 = 17_000;

/// A port of 127.0.0.1, kept by a lock on a file. No test program on this machine takes a port that
/// another's server uses now, or after a restart. The lock ends with this value, or with the
/// process.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// Takes some free ports, as [`take`](Self::take) does.
    pub(crate) fn take_some(count: usize) -> Result<Vec<Self>, String> {
        (0..count).map(|_| Self::take()).collect()
    }

    /// Takes a free port. Other programs do not know of the locks: the caller must expect the port
    /// to be taken when the server starts, and take another.
    pub(crate) fn take() -> Result<Self, String> {
        let folder = folder()?;
        let start = u16::try_from(seed() % u64::from(COUNT)).unwrap_or_default();
        for step in 0..COUNT {
            let number = FIRST + (start + step) % COUNT;
            let path = folder.join(number.to_string());
            let Ok(lock) = File::options().create(true).append(true).open(&path) else { continue };
            if lock.try_lock().is_ok() && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _lock: lock });
            }
        }
        Err(format!("no free port from {FIRST} on, among {COUNT}"))
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

/// Returns the folder of the locks. The files stay: deleting one would let two processes hold a
/// lock of the same name. It is the same one whatever `TMPDIR` says, because ports are those of the
/// machine.
fn folder() -> Result<PathBuf, String> {
    let folder = PathBuf::from("/tmp/outbox-servers-ports");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// Returns the random start of the search, so that test programs that start at once do not all try
/// the same ports.
fn seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(std::process::id())
}
