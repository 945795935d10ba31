//! With Redis, which starts fastest. Runs and their programs are processes: the tests run
//! themselves again.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use super::*;
use crate::{OrSkip as _, Redis};

const LONG: Duration = Duration::from_secs(120);
/// Role of a process.
const PART: &str = "OUTBOX_TEST_PART";

/// A folder of a run, with the lock that marks it as alive.
struct Run {
    folder: tempfile::TempDir,
    lock: Option<File>,
}

impl Run {
    /// `None` where no servers could be shared.
    fn begin() -> Option<Self> {
        let server = Redis::newest().start().or_skip()?;
        server.record()?;
        let folder = tempfile::tempdir().unwrap();
        let lock = Some(hold(folder.path()));
        Some(Self { folder, lock })
    }

    fn program(&self, test: &str) -> Program {
        Program::start(test, "program", self.folder.path())
    }
}

fn hold(folder: &Path) -> File {
    let file = File::create(folder.join(RUN)).unwrap();
    file.lock().unwrap();
    file
}

/// A program of a run. It lives until it is dropped.
struct Program {
    child: Child,
    /// Kept open: a write to a closed pipe would end the process.
    output: Option<Lines<BufReader<ChildStdout>>>,
    home: PathBuf,
    url: String,
}

impl Program {
    /// Starts one; [`Self::serves`] waits for its output.
    fn start(test: &str, part: &str, folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &format!("pool::tests::{test}"), "--nocapture"]).env(PART, part);
        command.env(FOLDER, folder).env("OUTBOX_SERVERS_USED", folder.join("used"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        Self { child, output: None, home: PathBuf::new(), url: String::new() }
    }

    /// Waits until it has its server.
    fn serves(mut self) -> Self {
        let mut lines = BufReader::new(self.child.stdout.take().unwrap()).lines();
        let mut said = lines.by_ref().map_while(Result::ok);
        let line = said.find_map(|line| Some(line.split_once("serving: ")?.1.to_owned())).unwrap();
        let (home, url) = line.split_once(' ').unwrap();
        (self.home, self.url) = (PathBuf::from(home), url.to_owned());
        self.output = Some(lines);
        self
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns the role of this process; `None` in the test itself.
fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// Plays a program: prints its server, and waits for its end.
fn be_a_program() {
    let server = Redis::newest().of_run().unwrap();
    println!("serving: {} {}", server.home().path().display(), server.url());
    std::io::stdout().flush().unwrap();
    std::io::stdin().lines().for_each(drop);
}

/// Returns true if a watchdog waits for the end of a run.
fn is_waited_for(run: &Path) -> bool {
    let words = format!("flock\0--shared\0{}\0", run.join(RUN).display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut lines = processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.any(|line| line.starts_with(words.as_bytes()))
}

fn serves(url: &str) -> bool {
    std::net::TcpStream::connect(url.trim_start_matches("redis://")).is_ok()
}

#[track_caller]
fn ends(program: &Program) {
    let ended = until(LONG, || !program.home.exists() && !serves(&program.url));
    assert!(ended, "{} is still there", program.home.display());
}

#[test]
fn programs_share_a_server_that_outlives_them_and_ends_with_the_run() {
    const NAME: &str = "programs_share_a_server_that_outlives_them_and_ends_with_the_run";
    if part().is_some() {
        return be_a_program();
    }
    let Some(mut run) = Run::begin() else { return };
    // At once: one starts it.
    let programs: Vec<Program> = (0..3).map(|_| run.program(NAME)).collect();
    let programs: Vec<Program> = programs.into_iter().map(Program::serves).collect();
    let url = programs[0].url.clone();
    assert!(programs.iter().all(|program| program.url == url && program.home == programs[0].home));
    // One of them has started it: all are killed.
    drop(programs);
    assert!(until(LONG, || is_waited_for(run.folder.path())), "its watchdog waits for the run");
    let later = run.program(NAME).serves();
    assert_eq!(later.url, url);
    assert!(serves(&url));
    let used = fs::read_to_string(run.folder.path().join("used")).unwrap();
    let lines: Vec<&str> = used.lines().collect();
    assert!(lines.len() == 4 && lines[0].starts_with("Redis 8: 8."), "{used}");
    assert!(lines.iter().all(|line| *line == lines[0]), "each program notes the same: {used}");
    run.lock = None;
    ends(&later);
}

#[test]
fn servers_end_with_a_run_that_is_killed() {
    const NAME: &str = "servers_end_with_a_run_that_is_killed";
    match part().as_deref() {
        Some("run") => {
            let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
            let _lock = hold(&folder);
            fs::write(folder.join("begun"), "").unwrap();
            std::io::stdin().lines().for_each(drop);
            return;
        }
        Some(_) => return be_a_program(),
        None => {}
    }
    let Some(mut run) = Run::begin() else { return };
    run.lock = None;
    let process = Program::start(NAME, "run", run.folder.path());
    assert!(until(LONG, || run.folder.path().join("begun").exists()));
    let program = run.program(NAME).serves();
    assert!(serves(&program.url));
    drop(process);
    // The program that has started it still lives.
    ends(&program);
}

#[test]
fn a_server_that_has_ended_is_started_anew() {
    const NAME: &str = "a_server_that_has_ended_is_started_anew";
    if part().is_some() {
        return be_a_program();
    }
    let Some(run) = Run::begin() else { return };
    let first = run.program(NAME).serves();
    processes::kill_in(&first.home).unwrap();
    let second = run.program(NAME).serves();
    assert_ne!(second.home, first.home);
    assert!(serves(&second.url));
    assert_eq!(run.program(NAME).serves().home, second.home);
}

#[test]
fn a_server_that_programs_share_can_not_be_stopped_by_one() {
    const NAME: &str = "a_server_that_programs_share_can_not_be_stopped_by_one";
    if part().is_some() {
        let server = Redis::newest().of_run().unwrap();
        assert!(server.is_own() && !server.pids().is_empty() && server.usage().memory > 0);
        assert!(server.log().contains("Ready to accept connections"));
        assert_eq!(server.cli(&["echo", "here"]), "here");
        let refused = catch_unwind(AssertUnwindSafe(|| server.kill())).unwrap_err();
        let why = refused.downcast::<String>().unwrap();
        assert!(why.contains("is shared by all programs of this run"), "{why}");
        return be_a_program();
    }
    let Some(run) = Run::begin() else { return };
    assert!(serves(&run.program(NAME).serves().url));
}

#[test]
fn without_a_run_that_lives_there_is_no_pool() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Pool::at(folder.path().to_owned()).is_none());
    let run = hold(folder.path());
    assert!(Pool::at(folder.path().to_owned()).is_some());
    drop(run);
    assert!(Pool::at(folder.path().to_owned()).is_none());
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let record = Record { home: PathBuf::from("/a b"), ports: vec![1, 2], note: "Redis (x)".to_owned() };
    assert_eq!(Record::parse(&record.text()), Some(record));
    for half in ["", "/a\n", "/a\n1 x\nnote\n", "/a\n1\n"] {
        assert_eq!(Record::parse(half), None);
    }
}
