//! Runs an example as a program of its own.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// As long as an example may take: much longer than it does on a slow machine. One that hangs is ended, and its test fails.
const PATIENCE: Duration = Duration::from_secs(300);

/// What came of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs an example with arguments and with something to read, and waits for its end.
///
/// One that does not end in time is killed, and has no code then.
pub(crate) fn run(example: &str, arguments: &[&str], input: &str) -> Run {
    let mut command = Command::new(program(example));
    command.args(arguments).env_remove("RUST_LOG");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{example} can't be started: {error}"));
    // Small enough for the pipe; one that reads nothing of it has closed it, which is its right.
    let _ = child.stdin.take().expect("it was asked for").write_all(input.as_bytes());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let run = thread::scope(|scope| {
        let (stdout, stderr) = (scope.spawn(|| text(stdout)), scope.spawn(|| text(stderr)));
        let code = end(&mut child).code();
        let read = "a reader reads to the end";
        Run { code, stdout: stdout.join().expect(read), stderr: stderr.join().expect(read) }
    });
    assert!(!run.stderr.contains("panicked"), "{example} {arguments:?}: {run:#?}");
    run
}

/// All that a child writes there.
fn text(pipe: Option<impl Read>) -> String {
    let mut text = String::new();
    pipe.expect("it was asked for").read_to_string(&mut text).expect("a program writes text");
    text
}

/// Waits for a child's end, and brings it about where that takes too long.
pub(crate) fn end(child: &mut Child) -> ExitStatus {
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
    pub(crate) fn figures(&self) -> BTreeMap<&str, u64> {
        let figure = |line: &'_ str| line.split_whitespace().find_map(|word| word.parse().ok());
        let lines = self.stdout.lines();
        lines.filter_map(|line| Some((line.get(..14)?.trim_end(), figure(line.get(14..)?)?))).collect()
    }
}

/// Where cargo has put an example. `cargo test` builds it before this test. Asked for this test alone, it does not: then this looks whether the
/// example is there and not older than its own sources, and has it built if not.
pub(crate) fn program(example: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    let test = std::env::current_exe().expect("a test knows where it is");
    let profile = test.parent().and_then(Path::parent).expect("a test is in target/<profile>/deps");
    let program = profile.join("examples").join(format!("{example}{}", std::env::consts::EXE_SUFFIX));
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = newest(&folder.join(example)).max(newest(&folder.join(format!("{example}.rs"))));
    let built = std::fs::metadata(&program).and_then(|program| program.modified());
    if built.is_ok_and(|built| Some(built) >= sources) {
        return program;
    }
    BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--examples"]);
        // With the features that this test has: another build would leave other programs in the same place.
        cargo.args(["--features", &features()]);
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.env("CARGO_TARGET_DIR", profile.parent().expect("a profile has a folder in target"));
        assert!(cargo.status().is_ok_and(|status| status.success()), "cargo can't build the examples");
    });
    assert!(program.exists(), "cargo has put no example at {}", program.display());
    program
}

/// The features that this test was built with.
fn features() -> String {
    let all = [
        (cfg!(feature = "kafka"), "kafka"),
        (cfg!(feature = "mongodb"), "mongodb"),
        (cfg!(feature = "mysql"), "mysql"),
        (cfg!(feature = "postgres"), "postgres"),
        (cfg!(feature = "rabbitmq"), "rabbitmq"),
        (cfg!(feature = "redis"), "redis"),
    ];
    let on: Vec<&str> = all.into_iter().filter_map(|(on, name)| on.then_some(name)).collect();
    on.join(",")
}

/// When a file, or anything in a folder, was changed last. None: there is no such thing.
fn newest(path: &Path) -> Option<SystemTime> {
    let Ok(entries) = std::fs::read_dir(path) else {
        return std::fs::metadata(path).and_then(|file| file.modified()).ok();
    };
    entries.filter_map(|entry| newest(&entry.ok()?.path())).max()
}
