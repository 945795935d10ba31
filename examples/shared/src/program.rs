//! Runs an example as a program of its own, as a user does. For the tests of the examples.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum run time of an example: much longer than on a slow machine. A hanging example is killed,
/// and its test fails.
const PATIENCE: Duration = Duration::from_secs(300);

/// Outcome of a run.
#[derive(Debug)]
pub struct Run {
    /// Exit code; `None` if the program was killed.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs a program, `env!("CARGO_BIN_EXE_…")`, with arguments and input, and waits for its end.
///
/// A program that does not end in time is killed, and has no exit code.
///
/// # Panics
///
/// If the program can't be started, panics, or writes something that is not text.
#[must_use]
pub fn run(program: &str, arguments: &[&str], input: &str) -> Run {
    let mut command = Command::new(program);
    command.args(arguments).env_remove("RUST_LOG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{program} can't be started: {error}"));
    // Small enough for the pipe; a program that does not read its input may have closed it.
    let _ = child.stdin.take().expect("it was asked for").write_all(input.as_bytes());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let run = thread::scope(|scope| {
        let (stdout, stderr) = (scope.spawn(|| text(stdout)), scope.spawn(|| text(stderr)));
        let code = end(&mut child).code();
        let read = "a reader reads to the end";
        Run { code, stdout: stdout.join().expect(read), stderr: stderr.join().expect(read) }
    });
    assert!(!run.stderr.contains("panicked"), "{program} {arguments:?}: {run:#?}");
    run
}

/// Reads everything that a child writes to a pipe.
fn text(pipe: Option<impl Read>) -> String {
    let mut text = String::new();
    pipe.expect("it was asked for").read_to_string(&mut text).expect("a program writes text");
    text
}

/// Waits for a child's end, and kills it if that takes too long.
///
/// # Panics
///
/// If the system fails to report on the child, or to kill it.
pub fn end(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be asked for") {
            return status;
        }
        if Instant::now() >= deadline {
            eprintln!("killed after {PATIENCE:?}");
            child.kill().expect("a child can be killed");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

impl Run {
    /// Parses the figures of a report: each line has a name, a number, and its meaning.
    #[must_use]
    pub fn figures(&self) -> BTreeMap<&str, u64> {
        let figure = |line: &'_ str| line.split_whitespace().find_map(|word| word.parse().ok());
        let lines = self.stdout.lines();
        lines.filter_map(|line| Some((line.get(..14)?.trim_end(), figure(line.get(14..)?)?))).collect()
    }
}
