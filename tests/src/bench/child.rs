//! Measured processes: this program again, with a role.
//!
//! A child gets ready, prints a line, waits for a line, does its work, and prints the result as a
//! line of JSON. Then it waits for the end of its input, so that its connections are still open
//! when the servers' figures are read.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child as Process, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::process;

/// Work and resources of a child between the start signal and the end of its work.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Number of messages.
    pub messages: u64,
    /// Time that passed.
    pub seconds: f64,
    /// Processor time.
    pub cpu_seconds: f64,
    /// Resident memory at the end, in bytes.
    pub memory: u64,
    /// Maximum resident memory, in bytes.
    pub max_memory: u64,
}

/// A child, seen from the program that measures it. It is killed when this is dropped.
#[derive(Debug)]
pub struct Child {
    process: Process,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Child {
    /// Starts it, and returns when it is ready.
    pub fn start(role: &impl Serialize) -> Self {
        Self::start_of(&std::env::current_exe().expect("this program is a file"), role)
    }

    /// Starts it of another build of this program; None: of this one.
    pub fn start_by(build: Option<&Path>, role: &impl Serialize) -> Self {
        build.map_or_else(|| Self::start(role), |build| Self::start_of(build, role))
    }

    fn start_of(program: &Path, role: &impl Serialize) -> Self {
        let role = serde_json::to_string(role).expect("a role is JSON");
        let mut process = Command::new(program)
            .args(["child", &role])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().expect("its output was asked for"));
        let mut child = Self { process, input, output };
        assert_eq!(child.line(), "ready", "the child {role} did not get ready: see above");
        child
    }

    /// Lets it begin.
    pub fn go(&mut self) {
        let input = self.input.as_mut().expect("it was not ended");
        writeln!(input, "go").expect("the child listens");
    }

    /// Waits for its result.
    pub fn done<T: DeserializeOwned>(&mut self) -> T {
        let line = self.line();
        serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("a child said {line:?}: {error}; see above"))
    }

    /// Kills it, as if the machine's power had failed.
    pub fn kill(&mut self) {
        self.process.kill().expect("a child can be killed");
        self.process.wait().expect("a child that was killed ends");
    }

    /// Returns the processor time of the living child so far.
    pub fn cpu(&self) -> Duration {
        process::cpu_of(self.process.id())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a child's output can be read");
        line.trim_end().to_owned()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The end of its input ends it; one that does not react is killed.
        self.input = None;
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(30) {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a child, lets it work, and returns its result.
pub fn run<T: DeserializeOwned>(role: &impl Serialize) -> T {
    run_by(None, role)
}

/// As [`run`], of another build of this program; None: of this one.
pub fn run_by<T: DeserializeOwned>(build: Option<&Path>, role: &impl Serialize) -> T {
    let mut child = Child::start_by(build, role);
    child.go();
    child.done()
}

/// Reports that this child is ready, and waits for the start signal.
pub async fn ready() {
    println!("ready");
    heard().await;
}

/// Waits for the end of the input.
pub async fn finished() {
    while heard().await {}
}

/// Returns true if there was a line before the end of the input.
pub async fn heard() -> bool {
    let read = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    read.await.expect("reading does not panic").is_ok_and(|bytes| bytes > 0)
}

/// Prints the result.
pub fn tell<T: Serialize>(what: &T) {
    println!("{}", serde_json::to_string(what).expect("what came of it is JSON"));
}

/// Measures some work.
pub async fn measured(messages: u64, work: impl Future<Output = ()>) -> Done {
    let (started, before) = (Instant::now(), process::cpu());
    work.await;
    let (memory, max_memory) = process::memory();
    Done {
        messages,
        seconds: started.elapsed().as_secs_f64(),
        cpu_seconds: (process::cpu() - before).as_secs_f64(),
        memory,
        max_memory,
    }
}
