//! Runs the program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Longest wait for anything: much longer than on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Ends of runs.
pub(crate) const DONE: Option<i32> = Some(0);
pub(crate) const FAILED: Option<i32> = Some(1);
pub(crate) const USAGE: Option<i32> = Some(2);
pub(crate) const FINDINGS: Option<i32> = Some(3);
pub(crate) const INTERRUPTED: Option<i32> = Some(130);

/// Outcome of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Run {
    /// Returns the objects of the output, one a line.
    #[track_caller]
    pub(crate) fn objects(&self) -> Vec<Value> {
        let object = |line: &str| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {self:#?}"));
        self.stdout.lines().map(object).collect()
    }

    /// Returns the only object of the output.
    #[track_caller]
    pub(crate) fn object(&self) -> Value {
        let mut objects = self.objects();
        assert_eq!(objects.len(), 1, "{self:#?}");
        objects.remove(0)
    }

    /// Asserts an exit code, and returns the run.
    #[track_caller]
    pub(crate) fn ends(self, code: Option<i32>) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Asserts that the errors contain these words, and returns the run.
    #[track_caller]
    pub(crate) fn says(self, words: &str) -> Self {
        assert!(self.stderr.contains(words), "no {words:?} in {self:#?}");
        self
    }
}

/// A database, and how the program reaches it.
#[derive(Debug)]
pub(crate) struct Outbox {
    pub(crate) folder: TempDir,
    pub(crate) store: String,
    pub(crate) transport: Option<String>,
}

impl Outbox {
    /// Returns a migrated database in a file.
    pub(crate) fn sqlite() -> Self {
        let outbox = Self::missing();
        outbox.run(&["migrate"]).ends(DONE);
        outbox
    }

    /// Returns a database file that does not exist yet.
    pub(crate) fn missing() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = format!("sqlite:{}", folder.path().join("shop.db").display());
        Self { folder, store, transport: None }
    }

    /// Returns a migrated database of a server.
    #[cfg(unix)]
    pub(crate) fn at(store: String) -> Self {
        let outbox = Self { folder: tempfile::tempdir().unwrap(), store, transport: None };
        outbox.run(&["migrate"]).ends(DONE);
        outbox
    }

    /// Returns the command of a run.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = bare(arguments);
        command.env("OUTBOX_STORE", &self.store).current_dir(self.folder.path());
        if let Some(transport) = &self.transport {
            command.env("OUTBOX_TRANSPORT", transport);
        }
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        end(self.command(arguments), "")
    }

    /// Runs the program to its end, with an input.
    pub(crate) fn run_with(&self, arguments: &[&str], input: &str) -> Run {
        end(self.command(arguments), input)
    }

    /// Appends a message, and returns its id.
    #[track_caller]
    pub(crate) fn publish(&self, arguments: &[&str]) -> String {
        let run = self.run(&[&["publish"], arguments].concat()).ends(DONE);
        run.object()["id"].as_str().unwrap().to_owned()
    }

    /// Returns the backlog of a route.
    pub(crate) fn backlog(&self, route: &str) -> Value {
        self.run(&["status", "--route", route]).object()["routes"][0].clone()
    }
}

/// Returns a command without anything from the environment of the tests.
pub(crate) fn bare(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outbox"));
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("OUTBOX_") || name.starts_with("OTEL_"))
    {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub(crate) fn end(mut command: Command, input: &str) -> Run {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Small enough for the pipe; a program that does not read its input may have closed it.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let run = thread::scope(|scope| {
        let (stdout, stderr) = (scope.spawn(|| text(stdout)), scope.spawn(|| text(stderr)));
        let code = ended(&mut child);
        Run { code, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
    });
    assert!(!run.stderr.contains("panicked"), "{command:?}: {run:#?}");
    run
}

fn text(mut pipe: impl Read) -> String {
    let mut text = String::new();
    pipe.read_to_string(&mut text).unwrap();
    text
}

/// Waits for a child's end; kills it if that takes too long.
fn ended(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A relay as a program.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    said: Receiver<String>,
    /// The first line that it said.
    pub(crate) started: Value,
}

impl Daemon {
    /// Starts a relay, and waits until it says that it has.
    pub(crate) fn start(outbox: &Outbox, arguments: &[&str]) -> Self {
        Self::of(outbox.command(&[&["relay"], arguments].concat()))
    }

    /// Starts a command that stays, and waits until it says that it has.
    pub(crate) fn of(command: Command) -> Self {
        let mut daemon = Self::spawn(command);
        daemon.started = daemon.line();
        daemon
    }

    /// Starts a command that stays, and waits for nothing.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        // Read on a thread, because a blocking read of a pipe can't be interrupted.
        let (say, said) = channel();
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
        Self { child, said, started: Value::Null }
    }

    /// Returns the next object that it says.
    pub(crate) fn line(&self) -> Value {
        serde_json::from_str(&self.said.recv_timeout(PATIENCE).expect("the relay says something")).unwrap()
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        let told = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(told.success());
    }

    /// Waits for its end, and returns its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        ended(&mut self.child)
    }

    /// Returns the status and the body of an answer.
    pub(crate) fn ask(&self, path: &str) -> (u16, String) {
        self.ask_with(path, "")
    }

    /// Returns the status and the body of an answer to a request with more headers, each with its
    /// end of line.
    pub(crate) fn ask_with(&self, path: &str, headers: &str) -> (u16, String) {
        let address = self.started["http"].as_str().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\n{headers}connection: close\r\n\r\n")
            .unwrap();
        let answer = text(stream);
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
        (status.unwrap_or_else(|| panic!("{answer}")), body.unwrap_or_default())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Still running only after a failed test, or to be killed.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Polls until something is true.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}
