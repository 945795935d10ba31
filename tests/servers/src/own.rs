//! A server that this program has started: setup, start, stop and end.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::home::Home;
use crate::notes;
use crate::pool::Record;
use crate::ports::Port;
use crate::processes::Processes;
use crate::program::Started;
use crate::server::Kind;

/// Time limit for a server to start or to stop. RabbitMQ needs a minute on a slow machine with
/// other work.
const PATIENCE: Duration = Duration::from_secs(300);
/// Interval of polling.
const EVERY: Duration = Duration::from_millis(25);
/// Number of port sets to try when programs that know nothing of the locks take them.
const TRIES: usize = 5;

/// A server that was started here.
pub(crate) struct Own {
    pub(crate) kind: Box<dyn Kind>,
    started: Mutex<Option<Started>>,
    pub(crate) processes: Processes,
    pub(crate) ports: Vec<Port>,
    pub(crate) home: Home,
}

impl Own {
    pub(crate) fn start(kind: Box<dyn Kind>, home: Home) -> Result<Self, String> {
        // Watched from the first moment, as the setup starts processes too.
        let processes = Processes::new(home.path())?;
        let mut own = Self { kind, started: Mutex::new(None), processes, ports: Vec::new(), home };
        own.kind.initialise(&own.home)?;
        for _ in 1..TRIES {
            own.ports = Port::take_some(own.kind.ports())?;
            match own.launch() {
                Err(_) if own.port_was_taken() => own.kill()?,
                started => return started.map(|()| own),
            }
        }
        own.ports = Port::take_some(own.kind.ports())?;
        own.launch().map(|()| own)
    }

    /// Starts the command and waits until it serves. After an error no process is left running.
    fn launch(&self) -> Result<(), String> {
        let mut started = self.started();
        if started.is_some() {
            return Err("it runs already".to_owned());
        }
        let before = self.home.log().len();
        let ports: Vec<u16> = self.ports.iter().map(Port::number).collect();
        let command = self.kind.command(&self.home, &ports)?;
        let child = started.insert(command.serve(&self.home.outside("log"))?);
        let result = self.until_ready(child, &ports, before);
        drop(started);
        if result.is_err() {
            self.kill()?;
        }
        result
    }

    fn until_ready(&self, child: &mut Started, ports: &[u16], before: usize) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let ended = child.ended()?;
            let log = self.home.log();
            let said = log.get(before..).unwrap_or_default();
            if let Some(status) = ended {
                return Err(format!("it ended with {status}; it said:\n{}", tail(said)));
            }
            if self.kind.is_ready(&self.home, ports, said) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("it does not serve after {PATIENCE:?}; it said:\n{}", tail(said)));
            }
            std::thread::sleep(EVERY);
        }
    }

    /// Returns the note for the run that it was used.
    pub(crate) fn note(&self) -> String {
        let name = self.kind.name();
        let log = self.home.log();
        let version =
            notes::version(&log, self.kind.version_is_behind()).unwrap_or("of a version it does not tell");
        // The nodes of one cluster are one server here.
        let name = name.split(',').next().unwrap_or_default();
        notes::of(&format!("{name}: {version}"), self.home.from())
    }

    /// Returns its address for other programs.
    pub(crate) fn record(&self) -> Record {
        let ports = self.ports.iter().map(Port::number).collect();
        Record { home: self.home.path().to_owned(), ports, note: self.note() }
    }

    fn port_was_taken(&self) -> bool {
        let log = self.home.log().to_lowercase();
        log.contains("address already in use") || log.contains("eaddrinuse")
    }

    pub(crate) fn start_again(&self) -> Result<(), String> {
        // Another program may have its end of a connection on the port for a moment.
        let before = self.home.log().len();
        let start = Instant::now();
        loop {
            let result = self.launch();
            let taken =
                self.home.log().get(before..).is_some_and(|said| said.to_lowercase().contains("in use"));
            if result.is_ok() || !taken || start.elapsed() > PATIENCE {
                return result;
            }
        }
    }

    pub(crate) fn stop(&self, ask: impl FnOnce(u32)) -> Result<(), String> {
        let mut started = self.started();
        let Some(child) = started.as_mut() else { return Err("it does not run".to_owned()) };
        let Some(pid) = child.child().or_else(|| self.processes.first()) else {
            return Err("it has no process".to_owned());
        };
        ask(pid);
        let start = Instant::now();
        while child.ended()?.is_none() {
            if start.elapsed() > PATIENCE {
                return Err(format!(
                    "it did not end within {PATIENCE:?}; it said:\n{}",
                    tail(&self.home.log())
                ));
            }
            std::thread::sleep(EVERY);
        }
        *started = None;
        // Helpers, such as Erlang's port mapper, do not end by themselves.
        self.processes.kill()
    }

    pub(crate) fn kill(&self) -> Result<(), String> {
        let mut started = self.started();
        if let Some(mut child) = started.take() {
            // First the one that could start others. It may have exited already.
            child.kill();
        }
        self.processes.kill()
    }

    fn started(&self) -> MutexGuard<'_, Option<Started>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // No wait for an orderly end: the data has no more readers.
        let mut time = Duration::ZERO;
        let runs = self.started().is_some() && self.kind.holds_what_is_outside();
        if let Some(first) = self.processes.first().filter(|_| runs) {
            crate::processes::send(first, rustix::process::Signal::QUIT);
            time = Duration::from_secs(2);
        }
        self.processes.end_within(time);
        if let Some(mut child) = self.started().take() {
            child.wait();
        }
    }
}

/// Returns the end of a log, as much as is useful below a failed test.
pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(30);
    lines.get(from..).unwrap_or_default().join("\n")
}
