//! Servers that all test programs of one run share.
//!
//! A run is a folder, which `OUTBOX_SERVERS_POOL` names, with a lock on its file `run` that
//! `tests/run` holds while it lives. The first program that needs a server starts it and records
//! its address. Its watchdog ends it after that lock is released. So servers end with the run,
//! however the run ends, and even if the program that started them has failed.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::missing::Missing;
use crate::own::tail;
use crate::part::Part;
use crate::server::{Kind, Server};
use crate::until::until;
use crate::{given, notes, processes};

/// Environment variable of the folder of a run.
const FOLDER: &str = "OUTBOX_SERVERS_POOL";
/// The file in it that is locked while the run lives.
const RUN: &str = "run";
/// Time without an answer after which a server that has served counts as gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// The servers of a run.
#[derive(Debug)]
pub(crate) struct Pool {
    folder: PathBuf,
}

impl Pool {
    /// Returns the pool of this program's run. Outside of a run, and after its end, a program has
    /// servers of its own.
    pub(crate) fn of_this_run() -> Option<Self> {
        Self::at(PathBuf::from(given::url(FOLDER)?))
    }

    fn at(folder: PathBuf) -> Option<Self> {
        let run = File::open(folder.join(RUN)).ok()?;
        let is_held = matches!(run.try_lock_shared(), Err(fs::TryLockError::WouldBlock));
        is_held.then_some(Self { folder })
    }

    /// Returns the run's server of a kind. The first program that asks starts it, while the others
    /// wait; one that has ended is started anew.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the server is unavailable, or did not start.
    pub(crate) fn server(&self, part: Part, kind: impl Kind + 'static) -> Result<Server, Missing> {
        let name = kind.name();
        let failed = |reason: String| Missing::failed(&name, reason);
        let _lock = self.lock(&name).map_err(failed)?;
        if let Some(record) = self.record(&name) {
            let home = part.home_at(&name, &record.home)?;
            if until(PATIENCE, || kind.is_ready(&home, &record.ports, &home.log())) {
                notes::used(&record.note);
                return Ok(Server::of_run(name, record, home));
            }
            // The program that used it when it ended has failed: this is printed among its output.
            eprintln!(
                "{name}, which all programs of this run share, has ended, and is started anew; it said:"
            );
            eprintln!("{}", tail(&home.log()));
            processes::kill_in(home.path()).map_err(failed)?;
        }
        let mut started = part.started(kind)?;
        let Some(record) = started.record() else { return Ok(started) };
        self.write(&name, &record).map_err(failed)?;
        // If this program is killed before, the server ends with it, and the next program finds it
        // gone.
        started.end_with(&self.folder.join(RUN)).map_err(failed)?;
        // Never dropped: it outlives this program.
        STARTED.lock().unwrap_or_else(PoisonError::into_inner).push(started);
        let home = part.home_at(&name, &record.home)?;
        Ok(Server::of_run(name, record, home))
    }

    /// Held until the value is dropped, or the program ends.
    fn lock(&self, name: &str) -> Result<File, String> {
        let path = self.path(name, ".lock");
        let file = File::options().create(true).append(true).open(&path);
        let locked = file.and_then(|file| file.lock().map(|()| file));
        locked.map_err(|error| format!("{}: {error}", path.display()))
    }

    fn record(&self, name: &str) -> Option<Record> {
        Record::parse(&fs::read_to_string(self.path(name, "")).ok()?)
    }

    /// Writes in one step: a program may be killed at any moment.
    fn write(&self, name: &str, record: &Record) -> Result<(), String> {
        let (part, path) = (self.path(name, ".part"), self.path(name, ""));
        let written = fs::write(&part, record.text()).and_then(|()| fs::rename(&part, &path));
        written.map_err(|error| format!("{}: {error}", path.display()))
    }

    fn path(&self, name: &str, end: &str) -> PathBuf {
        self.folder.join(name.replace(' ', "-") + end)
    }
}

/// Servers that this program has started for the whole run.
static STARTED: Mutex<Vec<Server>> = Mutex::new(Vec::new());

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) home: PathBuf,
    pub(crate) ports: Vec<u16>,
    /// The note for the run on used servers.
    pub(crate) note: String,
}

impl Record {
    fn text(&self) -> String {
        let ports = self.ports.iter().map(u16::to_string).collect::<Vec<_>>().join(" ");
        format!("{}\n{ports}\n{}\n", self.home.display(), self.note)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let home = PathBuf::from(lines.next()?);
        let ports = lines.next()?.split(' ').map(|port| port.parse().ok()).collect::<Option<_>>()?;
        Some(Self { home, ports, note: lines.next()?.to_owned() })
    }
}

#[cfg(test)]
#[path = "pool/tests.rs"]
mod tests;
