//! Common methods of every server handle: start, stop, kill, pause, inspect.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::home::Home;
use crate::missing::Missing;
use crate::notes;
use crate::own::Own;
use crate::part::Part;
use crate::pool::Record;
use crate::ports::Port;
use crate::processes::{self, Usage};
use crate::program::Program;
use crate::tls;

/// Differences between servers: setup, command, and queries.
pub(crate) trait Kind: fmt::Debug + Send + Sync {
    /// Name of the server, such as `PostgreSQL 18`.
    fn name(&self) -> String;

    /// Words of its log that precede its version.
    fn version_is_behind(&self) -> &'static str;

    /// Number of ports on which it listens.
    fn ports(&self) -> usize;

    /// Creates its data folder. Called once.
    fn initialise(&self, home: &Home) -> Result<(), String>;

    /// Returns the command that runs it in the foreground, with its working folder in `home`.
    fn command(&self, home: &Home, ports: &[u16]) -> Result<Program, String>;

    /// Returns true if it serves. `said` is its log since it was started.
    fn is_ready(&self, home: &Home, ports: &[u16], said: &str) -> bool;

    /// Asks it to end. `pid` is the process that was started.
    fn ask_to_stop(&self, home: &Home, pid: u32);

    /// Returns true if it holds resources outside of its folder, which it releases when it ends by
    /// itself.
    fn holds_what_is_outside(&self) -> bool {
        false
    }
}

/// A server, and the operations of tests on it.
///
/// A server that a test started itself may be stopped and killed at will: it keeps its data folder,
/// its ports and so its URL until it is dropped, which ends it. A shared server must not be
/// disturbed, and one that was given by URL can't be.
///
/// When the test program ends without dropping it, or is killed, a watchdog kills the server and
/// deletes its data.
///
/// Every method panics where it can't do its work, with the server's name and the end of its log:
/// the test has failed then.
pub struct Server {
    name: String,
    runs: Runs,
}

/// Runner of a server.
enum Runs {
    /// A server outside of the tests, given by its URL.
    Elsewhere,
    /// This program.
    Here(Own),
    /// The run that this program is part of, for all of its programs.
    OfRun { home: Home, ports: Vec<u16> },
}

impl Server {
    /// A server that is run outside of the tests.
    pub(crate) fn given(name: impl Into<String>) -> Self {
        let name = name.into();
        notes::used(&notes::of(&name, "given by URL"));
        Self { name, runs: Runs::Elsewhere }
    }

    /// Sets up and starts a server; returns when it serves.
    pub(crate) fn start(kind: Box<dyn Kind>, home: Home) -> Result<Self, Missing> {
        let name = kind.name();
        let own = Own::start(kind, home).map_err(|reason| Missing::failed(&name, reason))?;
        notes::used(&own.note());
        Ok(Self { name, runs: Runs::Here(own) })
    }

    /// A server that all programs of a run share.
    pub(crate) fn of_run(name: String, record: Record, home: Home) -> Self {
        Self { name, runs: Runs::OfRun { home, ports: record.ports } }
    }

    /// Returns its address for other programs. No other program can reach into a container.
    pub(crate) fn record(&self) -> Option<Record> {
        match &self.runs {
            Runs::Here(own) if !own.home.tree().is_contained() => Some(own.record()),
            _ => None,
        }
    }

    /// Lets it live until no process locks a file any more, whatever happens to this program.
    pub(crate) fn end_with(&mut self, file: &Path) -> Result<(), String> {
        match &mut self.runs {
            Runs::Here(own) => own.processes.end_with(file),
            _ => Ok(()),
        }
    }

    /// Returns its name, such as `PostgreSQL 18`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[track_caller]
    fn own(&self) -> &Own {
        match &self.runs {
            Runs::Here(own) => own,
            Runs::OfRun { .. } => panic!(
                "{} is shared by all programs of this run: a test that stops it must start one of its own",
                self.name
            ),
            Runs::Elsewhere => panic!(
                "{} was given by URL: a test that stops it or looks into it must start one of its own",
                self.name
            ),
        }
    }

    /// Returns its folder, if it is on this machine.
    fn place(&self) -> Option<&Home> {
        match &self.runs {
            Runs::Here(own) => Some(&own.home),
            Runs::OfRun { home, .. } => Some(home),
            Runs::Elsewhere => None,
        }
    }

    #[track_caller]
    fn expect(&self, what: &str, result: Result<(), String>) {
        if let Err(reason) = result {
            panic!("{}: {what}: {reason}", self.name);
        }
    }

    /// Returns true if it was started by the tests, so that they can inspect it; and stop, kill and
    /// pause it if it is not a shared one.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.place().is_some()
    }

    /// Asks it to end (PostgreSQL: fast shutdown), and waits for its end, for five minutes at most.
    #[track_caller]
    pub fn stop(&self) {
        let own = self.own();
        self.expect("stop", own.stop(|pid| own.kind.ask_to_stop(&own.home, pid)));
    }

    /// Kills all of its processes (SIGKILL), and waits until they are gone.
    #[track_caller]
    pub fn kill(&self) {
        self.expect("kill", self.own().kill());
    }

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill), with the same data on
    /// the same ports; returns when it serves.
    #[track_caller]
    pub fn start_again(&self) {
        self.expect("start again", self.own().start_again());
    }

    /// Calls [`stop`](Self::stop), then [`start_again`](Self::start_again).
    #[track_caller]
    pub fn restart(&self) {
        self.stop();
        self.start_again();
    }

    /// Freezes all of its processes (SIGSTOP): connections stay, and requests are not answered.
    /// Returns when all have stopped.
    #[track_caller]
    pub fn pause(&self) {
        self.expect("pause", self.own().processes.pause());
    }

    /// Resumes its processes after [`pause`](Self::pause).
    #[track_caller]
    pub fn resume(&self) {
        self.own().processes.resume();
    }

    /// Returns its processes, in ascending order. Empty when it is stopped.
    #[must_use]
    #[track_caller]
    pub fn pids(&self) -> Vec<u32> {
        processes::pids_in(self.home().path())
    }

    /// Returns the resources that its processes have used since they were started.
    #[must_use]
    #[track_caller]
    pub fn usage(&self) -> Usage {
        processes::usage_in(self.home().path())
    }

    /// Returns its whole log, over all starts.
    #[must_use]
    #[track_caller]
    pub fn log(&self) -> String {
        self.home().log()
    }

    /// Returns the path of one of its files as the server itself and its tools see it: they run in
    /// a system of their own.
    #[must_use]
    #[track_caller]
    pub fn inside(&self, file: &Path) -> String {
        self.home().tree().inside(file)
    }

    /// Returns its port on 127.0.0.1; of several, that of clients without TLS.
    #[must_use]
    #[track_caller]
    pub fn tcp_port(&self) -> u16 {
        self.port(0)
    }

    /// Returns the file (PEM) of the authority that a client has to trust. It exists if the server
    /// was requested with TLS.
    #[must_use]
    #[track_caller]
    pub fn authorities(&self) -> PathBuf {
        self.home().outside(tls::AUTHORITIES)
    }

    /// Returns the client that comes with it. A server given by URL is queried with this machine's
    /// client.
    pub(crate) fn client(&self, part: Part, program: &str) -> Program {
        match self.place() {
            Some(home) => home.tree().command(home.user(), "/", program),
            None => part.client(program),
        }
    }

    /// Rewrites a text so that paths of this machine are as that client sees them.
    pub(crate) fn as_seen_by_client(&self, part: Part, text: &str) -> String {
        let tree = self.place().map_or_else(|| part.tree(), |home| Ok(home.tree().clone()));
        tree.map_or_else(|_| text.to_owned(), |tree| tree.inside_of(text))
    }

    /// Ends it in another way than [`stop`](Self::stop): `ask` gets the process that was started.
    #[track_caller]
    pub(crate) fn stop_by(&self, what: &str, ask: impl FnOnce(u32)) {
        self.expect(what, self.own().stop(ask));
    }

    #[track_caller]
    pub(crate) fn home(&self) -> &Home {
        self.place().unwrap_or_else(|| &self.own().home)
    }

    #[track_caller]
    pub(crate) fn port(&self, index: usize) -> u16 {
        match &self.runs {
            Runs::OfRun { ports, .. } => ports.get(index).copied().unwrap_or_default(),
            _ => self.own().ports.get(index).map_or(0, Port::number),
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("name", &self.name)
            .field("own", &self.is_own())
            .finish_non_exhaustive()
    }
}

/// Servers that all tests of a program share, each under the text of its request. They live until
/// the program ends. An unavailable one is not tried again.
#[derive(Debug)]
pub(crate) struct Shared<S>(Mutex<BTreeMap<String, Result<S, Missing>>>);

impl<S: Clone> Shared<S> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Returns the server of a request; started by the first that asks, while the others wait.
    pub(crate) fn get(&self, key: String, start: impl FnOnce() -> Result<S, Missing>) -> Result<S, Missing> {
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        servers.entry(key).or_insert_with(start).clone()
    }
}
