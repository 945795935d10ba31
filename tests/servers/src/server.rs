//! What every server handle can do, whatever the server: start, stop, kill, pause, look.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::home::Home;
use crate::missing::Missing;
use crate::notes;
use crate::part::Part;
use crate::ports::Port;
use crate::processes::{Processes, Usage};
use crate::program::{Program, Started};
use crate::tls;

/// How long a server may take to start or to stop. RabbitMQ needs a minute on a slow machine with other work.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often is looked.
const EVERY: Duration = Duration::from_millis(25);
/// How many sets of ports are tried when programs that know nothing of the locks take them.
const TRIES: usize = 5;

/// In what servers differ: how they are set up, run, and asked.
pub(crate) trait Kind: fmt::Debug + Send + Sync {
    /// Which server, such as `PostgreSQL 18`.
    fn name(&self) -> String;

    /// The words of its log that its version stands behind.
    fn version_is_behind(&self) -> &'static str;

    /// How many ports it listens on.
    fn ports(&self) -> usize;

    /// Makes its data folder. Called once.
    fn initialise(&self, home: &Home) -> Result<(), String>;

    /// The command that runs it in the foreground, with its working folder in `home`.
    fn command(&self, home: &Home, ports: &[u16]) -> Result<Program, String>;

    /// Whether it serves. `said` is what it has logged since it was started.
    fn is_ready(&self, home: &Home, ports: &[u16], said: &str) -> bool;

    /// Asks it to end. `pid` is the process that was started.
    fn ask_to_stop(&self, home: &Home, pid: u32);

    /// Whether it has something outside of its folder, which it gives back when it ends by itself.
    fn holds_what_is_outside(&self) -> bool {
        false
    }
}

/// A server, and what tests do to one.
///
/// One that a test started itself may be stopped and killed at will: it keeps its data folder, its ports and so its URL until it is
/// dropped, which ends it. One that is shared must be left alone, and one that was given by URL can't be touched.
///
/// When the test program ends without dropping it, or is killed, a watchdog kills the server and deletes its data.
///
/// Every method panics where it can't do what it says, with the server's name and the end of its log: the test has failed then.
pub struct Server {
    name: String,
    own: Option<Own>,
}

/// A server that was started here.
struct Own {
    kind: Box<dyn Kind>,
    started: Mutex<Option<Started>>,
    processes: Processes,
    ports: Vec<Port>,
    home: Home,
}

impl Server {
    /// A server that somebody else runs.
    pub(crate) fn given(name: impl Into<String>) -> Self {
        let name = name.into();
        notes::used(&name, "given by URL");
        Self { name, own: None }
    }

    /// Sets a server up and starts it; returns when it serves.
    pub(crate) fn start(kind: Box<dyn Kind>, home: Home) -> Result<Self, Missing> {
        let name = kind.name();
        let own = Own::start(kind, home).map_err(|reason| Missing::failed(&name, reason))?;
        own.note_use();
        Ok(Self { name, own: Some(own) })
    }

    /// Which server it is, such as `PostgreSQL 18`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[track_caller]
    fn own(&self) -> &Own {
        let Some(own) = &self.own else {
            panic!(
                "{} was given by URL: a test that stops it or looks into it must start one of its own",
                self.name
            )
        };
        own
    }

    #[track_caller]
    fn expect(&self, what: &str, result: Result<(), String>) {
        if let Err(reason) = result {
            panic!("{}: {what}: {reason}", self.name);
        }
    }

    /// Whether it was started here, so that it can be stopped, killed and paused.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Asks it to end (PostgreSQL: fast shutdown), and waits until it has, for five minutes at most.
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

    /// Starts it again after [`stop`](Self::stop) or [`kill`](Self::kill), with the same data on the same ports; returns when it serves.
    #[track_caller]
    pub fn start_again(&self) {
        self.expect("start again", self.own().start_again());
    }

    /// [`stop`](Self::stop), then [`start_again`](Self::start_again).
    #[track_caller]
    pub fn restart(&self) {
        self.stop();
        self.start_again();
    }

    /// Freezes all of its processes (SIGSTOP): connections stay, and nothing is answered. Returns when they stand still.
    #[track_caller]
    pub fn pause(&self) {
        self.expect("pause", self.own().processes.pause());
    }

    /// Lets its processes go on after [`pause`](Self::pause).
    #[track_caller]
    pub fn resume(&self) {
        self.own().processes.resume();
    }

    /// Its processes, in ascending order. Empty when it is stopped.
    #[must_use]
    #[track_caller]
    pub fn pids(&self) -> Vec<u32> {
        self.own().processes.pids()
    }

    /// What its processes have used since they were started.
    #[must_use]
    #[track_caller]
    pub fn usage(&self) -> Usage {
        self.own().processes.usage()
    }

    /// All that it has logged, over all starts.
    #[must_use]
    #[track_caller]
    pub fn log(&self) -> String {
        self.own().log()
    }

    /// The path of one of its files as the server itself and its tools see it: they run in a system of their own.
    #[must_use]
    #[track_caller]
    pub fn inside(&self, file: &Path) -> String {
        self.home().tree().inside(file)
    }

    /// Its port on 127.0.0.1; of several, that of clients without TLS.
    #[must_use]
    #[track_caller]
    pub fn tcp_port(&self) -> u16 {
        self.port(0)
    }

    /// The file (PEM) of the authority that a client has to trust. It is there when the server was asked for with TLS.
    #[must_use]
    #[track_caller]
    pub fn authorities(&self) -> PathBuf {
        self.home().outside(tls::AUTHORITIES)
    }

    /// A client that comes with it. One that was given is asked with the client that there is.
    pub(crate) fn client(&self, part: Part, program: &str) -> Program {
        match &self.own {
            Some(own) => own.home.tree().command(own.home.user(), "/", program),
            None => part.client(program),
        }
    }

    /// A text in which paths of this machine are as that client sees them.
    pub(crate) fn as_seen_by_client(&self, part: Part, text: &str) -> String {
        let tree = self.own.as_ref().map_or_else(|| part.tree(), |own| Ok(own.home.tree().clone()));
        tree.map_or_else(|_| text.to_owned(), |tree| tree.inside_of(text))
    }

    /// Ends it in another way than [`stop`](Self::stop): `ask` gets the process that was started.
    #[track_caller]
    pub(crate) fn stop_by(&self, what: &str, ask: impl FnOnce(u32)) {
        self.expect(what, self.own().stop(ask));
    }

    #[track_caller]
    pub(crate) fn home(&self) -> &Home {
        &self.own().home
    }

    #[track_caller]
    pub(crate) fn port(&self, index: usize) -> u16 {
        self.own().ports.get(index).map_or(0, Port::number)
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

impl Own {
    fn start(kind: Box<dyn Kind>, home: Home) -> Result<Self, String> {
        // Watched from the first moment, as setting up starts processes too.
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

    /// Starts the command and waits until it serves. On an error nothing is left running.
    fn launch(&self) -> Result<(), String> {
        let mut started = self.started();
        if started.is_some() {
            return Err("it runs already".to_owned());
        }
        let before = self.log().len();
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
            let log = self.log();
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

    fn note_use(&self) {
        let name = self.kind.name();
        let log = self.log();
        let version =
            notes::version(&log, self.kind.version_is_behind()).unwrap_or("of a version it does not tell");
        // The nodes of one cluster are one server here.
        let name = name.split(',').next().unwrap_or_default();
        notes::used(&format!("{name}: {version}"), self.home.from());
    }

    fn port_was_taken(&self) -> bool {
        let log = self.log().to_lowercase();
        log.contains("address already in use") || log.contains("eaddrinuse")
    }

    fn start_again(&self) -> Result<(), String> {
        // Another program may have its end of a connection on the port for a moment.
        let before = self.log().len();
        let start = Instant::now();
        loop {
            let result = self.launch();
            let taken = self.log().get(before..).is_some_and(|said| said.to_lowercase().contains("in use"));
            if result.is_ok() || !taken || start.elapsed() > PATIENCE {
                return result;
            }
        }
    }

    fn stop(&self, ask: impl FnOnce(u32)) -> Result<(), String> {
        let mut started = self.started();
        let Some(child) = started.as_mut() else { return Err("it does not run".to_owned()) };
        let Some(pid) = child.child().or_else(|| self.processes.first()) else {
            return Err("it has no process".to_owned());
        };
        ask(pid);
        let start = Instant::now();
        while child.ended()?.is_none() {
            if start.elapsed() > PATIENCE {
                return Err(format!("it did not end within {PATIENCE:?}; it said:\n{}", tail(&self.log())));
            }
            std::thread::sleep(EVERY);
        }
        *started = None;
        // Helpers, such as Erlang's port mapper, do not end by themselves.
        self.processes.kill()
    }

    fn kill(&self) -> Result<(), String> {
        let mut started = self.started();
        if let Some(mut child) = started.take() {
            // First the one that could start others. It may be gone already.
            child.kill();
        }
        self.processes.kill()
    }

    fn log(&self) -> String {
        let bytes = fs::read(self.home.outside("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn started(&self) -> MutexGuard<'_, Option<Started>> {
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // No wait for a polite end: nobody reads the data any more.
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

/// The end of a log, as much as one wants to read below a failed test.
fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let from = lines.len().saturating_sub(30);
    lines.get(from..).unwrap_or_default().join("\n")
}

/// Servers that all tests of a program share, each under the words of its request. They live until the program ends. One that could
/// not be had is not tried again.
#[derive(Debug)]
pub(crate) struct Shared<S>(Mutex<BTreeMap<String, Result<S, Missing>>>);

impl<S: Clone> Shared<S> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The server of a request; started by the first that asks, while the others wait.
    pub(crate) fn get(&self, key: String, start: impl FnOnce() -> Result<S, Missing>) -> Result<S, Missing> {
        let mut servers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        servers.entry(key).or_insert_with(start).clone()
    }
}
