//! Runs an example as a program of its own, as a user does. For the tests of the examples.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// As long as an example may take: much longer than it does on a slow machine. One that hangs is ended, and its test fails.
const PATIENCE: Duration = Duration::from_secs(300);

/// Outcome of a run.
#[derive(Debug)]
pub struct Run {
    /// Exit code; none when the program was killed.
    pub code: Option<i32>,
    /// Everything on standard output.
    pub stdout: String,
    /// Everything on standard error.
    pub stderr: String,
}

/// Runs a program, `env!("CARGO_BIN_EXE_…")`, with arguments and with something to read, and waits for its end.
///
/// One that does not end in time is killed, and has no code then.
///
/// # Panics
///
/// The program can't be started, panics, or writes something that is no text.
#[must_use]
pub fn run(program: &str, arguments: &[&str], input: &str) -> Run {
    let mut command = Command::new(program);
    command.args(arguments).env_remove("RUST_LOG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{program} can't be started: {error}"));
    // Small enough for the pipe; one that reads nothing of it has closed it, which is its right.
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

/// All that a child writes there.
fn text(pipe: Option<impl Read>) -> String {
    let mut text = String::new();
    pipe.expect("it was asked for").read_to_string(&mut text).expect("a program writes text");
    text
}

/// Waits for a child's end, and kills it where that takes too long.
///
/// # Panics
///
/// The system refuses to tell of the child, or to kill it.
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
    /// The figures of a report: on each line a name, a number, and what it means.
    #[must_use]
    pub fn figures(&self) -> BTreeMap<&str, u64> {
        let figure = |line: &'_ str| line.split_whitespace().find_map(|word| word.parse().ok());
        let lines = self.stdout.lines();
        lines.filter_map(|line| Some((line.get(..14)?.trim_end(), figure(line.get(14..)?)?))).collect()
    }
}
