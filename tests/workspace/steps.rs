//! The scripts that run everything report every failure: no failing step passes, and a broken
//! promise is not retried until it passes.
//!
//! They run here with fakes of cargo and other programs.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A folder with the scripts of the workspace, and fake programs of the test.
pub(crate) struct Workspace {
    folder: TempDir,
}

/// Output of a script, and whether it succeeded.
pub(crate) struct Ended {
    pub(crate) said: String,
    pub(crate) well: bool,
}

impl Workspace {
    pub(crate) fn with(scripts: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let workspace = Self { folder };
        for script in scripts {
            let text = fs::read_to_string(crate::root().join(script)).expect("the script is there");
            workspace.program(script, &text);
        }
        workspace
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a fake program, or another file.
    pub(crate) fn program(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder can be made");
        fs::write(&path, text).expect("a file can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can be made a program");
    }

    /// Runs a script with the programs of `bin` before all others.
    fn run(&self, script: &str) -> Ended {
        self.run_with(script, &[])
    }

    /// Like [`run`](Self::run), with arguments.
    pub(crate) fn run_with(&self, script: &str, arguments: &[&str]) -> Ended {
        let output = self.command(script, arguments).output().expect("bash is there");
        let said = [output.stdout, output.stderr].concat();
        Ended { said: String::from_utf8_lossy(&said).into_owned(), well: output.status.success() }
    }

    fn command(&self, script: &str, arguments: &[&str]) -> Command {
        let path = std::env::var("PATH").expect("there is a path");
        let mut command = Command::new("bash");
        command
            .arg(self.path().join(script))
            .args(arguments)
            .env("PATH", format!("{}:{path}", self.path().join("bin").display()))
            .env_remove("OUTBOX_REQUIRE_SERVERS")
            .env_remove("CARGO_TARGET_DIR")
            .env("OUTBOX_SERVERS_DIR", self.path())
            .env("FOLDER", self.path());
        command
    }
}

const GOOD: &str = "#!/usr/bin/env bash\n";

/// A test program of which one test fails among others, with this text, and passes alone.
fn failing_once(words: &str) -> Workspace {
    let workspace = Workspace::with(&["tests/run", "tests/program", "tests/steps.bash"]);
    workspace.program("tests/nightly", "# package program beginning\n");
    for good in ["tests/tools", "tests/servers/prepare"] {
        workspace.program(good, GOOD);
    }
    let log = format!(
        "running 2 tests\ntest good ... ok\ntest story::unsteady ... FAILED\n\nfailures:\n\n---- story::unsteady stdout ----\n{words}\n\n\n\
         failures:\n    story::unsteady\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n"
    );
    workspace.program("log", &log);
    let program = "echo \"$*\" >>\"$FOLDER/arguments\"
case \"$*\" in
  *--exact*) echo alone >>\"$FOLDER/alone\"; echo 'test story::unsteady ... ok' ;;
  *) cat \"$FOLDER/log\"; exit 101 ;;
esac
";
    workspace.program("two-0123", &format!("{GOOD}{program}"));
    let cargo = "case \"$*\" in
  *--no-run* | *--doc*) exit 0 ;;
  *note*) CARGO_PKG_NAME=one tests/program note \"$FOLDER/two-0123\" ;;
esac
";
    workspace.program("bin/cargo", &format!("{GOOD}{cargo}"));
    workspace
}

#[test]
fn a_failed_test_that_is_not_named_fails_the_run() {
    let workspace = failing_once("");
    workspace
        .program("two-0123", &format!("{GOOD}echo 'test good ... ok'; echo 'running 1 test'; exit 134\n"));
    let ended = workspace.run("tests/run");
    assert!(!ended.well, "{}", ended.said);
    assert!(ended.said.contains("one two: ended with 134"), "{}", ended.said);
}

#[test]
fn what_only_the_nightly_run_tries_is_left_out_and_named() {
    let workspace = failing_once("");
    workspace.program("tests/nightly", "# package program beginning\none two old::\nother two new::\n");
    let ended = workspace.run("tests/run");
    assert!(ended.well, "{}", ended.said);
    assert!(ended.said.contains("skipped: one two old:: (tests/run --nightly runs them)"), "{}", ended.said);
    let arguments = fs::read_to_string(workspace.path().join("arguments")).expect("it was run");
    assert_eq!(arguments.lines().next(), Some("--skip old::"));
}

/// A feature that the run does not switch on is code that no test sees.
#[test]
fn every_feature_is_tested_but_the_support_of_containers_and_what_tests_have_anyway() {
    let script = fs::read_to_string(crate::root().join("tests/run")).expect("it is there");
    let told = script.split("\nfeatures='").nth(1).and_then(|rest| rest.split('\'').next());
    let told: Vec<&str> = told.expect("it names the features").split_whitespace().collect();
    let mut command = cargo_metadata::MetadataCommand::new();
    command.manifest_path(crate::root().join("Cargo.toml")).no_deps();
    let metadata = command.exec().expect("cargo metadata describes the workspace");
    for package in metadata.workspace_packages() {
        for feature in package.features.keys() {
            let feature = format!("{}/{feature}", package.name);
            // Tests of the engine have its simulation without the feature, which gives it to a
            // program.
            let left_out = feature.ends_with("/default")
                || ["outbox-servers/containers", "outbox-engine/_simulation"].contains(&feature.as_str());
            assert_eq!(told.contains(&feature.as_str()), !left_out, "{feature}, in tests/run");
        }
    }
}

#[test]
fn a_test_that_fails_once_and_passes_alone_is_unsteady() {
    let workspace = failing_once("thread panicked: the server took too long");
    let ended = workspace.run("tests/run");
    assert!(ended.well, "{}", ended.said);
    assert!(ended.said.contains("unsteady: story::unsteady"), "{}", ended.said);
    assert!(workspace.path().join("alone").exists(), "it was run again");
}

/// A test program would otherwise continue, and its servers with it.
#[test]
fn an_interrupt_ends_the_test_programs_too() {
    let workspace = failing_once("");
    workspace.program(
        "two-0123",
        &format!(
            "{GOOD}mktemp -d >\"$FOLDER/files\"; echo $$ >\"$FOLDER/part\"; mv \"$FOLDER/part\" \"$FOLDER/pid\"\nsleep 600\n"
        ),
    );
    let run = workspace.command("tests/run", &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let run = run.expect("bash is there");
    let pid = until("the test program runs", || fs::read_to_string(workspace.path().join("pid")).ok());
    let interrupted = Command::new("kill").args(["-TERM", &run.id().to_string()]).status();
    assert!(interrupted.expect("kill is there").success());
    let ended = run.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{said}");
    assert!(said.contains("Interrupted in: tests. Nothing is left running"), "{said}");
    let left = fs::read_to_string(format!("/proc/{}/cmdline", pid.trim()));
    assert!(!left.is_ok_and(|line| line.contains("two-0123")), "the test program goes on");
    let files = fs::read_to_string(workspace.path().join("files")).expect("it has a folder");
    assert!(!Path::new(files.trim()).exists(), "its temporary files stay");
}

/// Polls for a minute at most.
fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let limit = Instant::now() + Duration::from_secs(60);
    loop {
        match found() {
            Some(found) => return found,
            None => assert!(Instant::now() < limit, "not within a minute: {what}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_disk_without_room_is_said_before_tests_fail_on_it() {
    let workspace = failing_once("");
    // A build needs more prerequisites than the tests alone.
    let cases = [
        (true, 3_999_999, false),
        (true, 4_000_000, true),
        (false, 9_999_999, false),
        (false, 10_000_000, true),
    ];
    for (built, free, well) in cases {
        let deps = workspace.path().join("target/debug/deps");
        if built {
            fs::create_dir_all(&deps).expect("a folder can be made");
        } else {
            fs::remove_dir_all(workspace.path().join("target")).expect("it can be removed");
        }
        let table = format!("echo disk blocks used free; echo / 1 1 {free} 1% /");
        workspace.program("bin/df", &format!("{GOOD}{table}\n"));
        let ended = workspace.run("tests/run");
        assert_eq!(ended.well, well, "{}", ended.said);
        let left = format!("has {} GB left", free / 1_000_000);
        assert_eq!(ended.said.contains(&left), !well, "{}", ended.said);
    }
}

/// Each test fails in words of its own then.
#[test]
fn a_disk_that_was_full_while_tests_ran_is_said_after_those_that_failed() {
    for (words, full) in [("write failed: No space left on device", true), ("a usual failure", false)] {
        let workspace = failing_once(words);
        let ended = workspace.run("tests/run");
        assert_eq!(ended.said.contains("a disk was full while the tests ran"), full, "{}", ended.said);
    }
}

/// Free memory of the machine in MB, the limit of a control group, and how many programs run on
/// two processors.
#[test]
fn as_many_programs_run_at_once_as_memory_carries() {
    let cases = [(22_000, None, 3), (1_500, None, 2), (300, None, 1), (22_000, Some(1_500), 2)];
    for (free, limit, programs) in cases {
        let workspace = failing_once("");
        workspace.program("bin/nproc", &format!("{GOOD}echo 2\n"));
        workspace.program("system/proc/meminfo", &format!("MemTotal: 1 kB\nMemAvailable: {free}000 kB\n"));
        workspace.program("system/proc/self/cgroup", "4:memory:/docker/0123\n0::/\n");
        workspace.program("system/sys/fs/cgroup/memory.max", "max\n");
        if let Some(limit) = limit {
            let file = "system/sys/fs/cgroup/memory/memory.limit_in_bytes";
            workspace.program(file, &format!("{limit}000000\n"));
        }
        let mut run = workspace.command("tests/run", &[]);
        run.env("OUTBOX_SYSTEM", workspace.path().join("system")).env_remove("OUTBOX_JOBS");
        let output = run.output().expect("bash is there");
        let said = String::from_utf8_lossy(&output.stdout);
        let least = limit.unwrap_or(free);
        let line = format!("1 programs, {programs} at once (2 processors, {least} MB of memory)");
        assert!(said.contains(&line), "{said}");
    }
}

#[test]
fn a_broken_promise_is_not_tried_a_second_time() {
    let verdicts = [
        "thread panicked at world.rs:\nnot everything was delivered at least once and in order\n",
        "not everything has come after 300s\n",
        "         1 lost: committed and never delivered",
        "        12 phantoms: delivered and never committed",
        "         3 out of order: first delivered behind a newer message",
        "assertion `left == right` failed: direct: the effects of each key\n",
        "behind effect 3 of its key comes Effect",
        "2 of 70 seeds failed: [3, 17]",
    ];
    for verdict in verdicts {
        let workspace = failing_once(verdict);
        let ended = workspace.run("tests/run");
        assert!(!ended.well, "{verdict}: {}", ended.said);
        assert!(ended.said.contains("failed: story::unsteady"), "{verdict}: {}", ended.said);
        assert!(!workspace.path().join("alone").exists(), "{verdict}: it was run again");
    }
    // Without a failure, the same words are no verdict; and another test's words do not apply to
    // this one.
    let harmless = [
        "         0 lost: committed and never delivered\n         0 phantoms: delivered",
        "nothing\n\n---- story::unsteady_too stdout ----\nnot everything was delivered",
    ];
    for harmless in harmless {
        let ended = failing_once(harmless).run("tests/run");
        assert!(ended.well, "{harmless}: {}", ended.said);
    }
}

/// All checks of a change, each of which passes.
fn checks() -> Workspace {
    let workspace = Workspace::with(&[".ci/run", "tests/steps.bash"]);
    for good in ["tests/tools", "tests/run", "bin/cargo", "bin/typos", "bin/cargo-deny", "bin/mdbook"] {
        workspace.program(good, GOOD);
    }
    workspace
}

#[test]
fn every_check_that_fails_fails_the_whole() {
    let ended = checks().run(".ci/run");
    assert!(ended.well, "{}", ended.said);
    let dies = format!("{GOOD}exit 101\n");
    let broken = [
        ("tests/tools", "tools"),
        ("tests/run", "tests/run"),
        ("bin/mdbook", "the book"),
        ("bin/typos", "spelling"),
        ("bin/cargo", "licenses and sources"),
        ("bin/cargo", "documentation"),
    ];
    for (program, step) in broken {
        let workspace = checks();
        workspace.program(program, &dies);
        let ended = workspace.run(".ci/run");
        assert!(!ended.well, "{program} dies: {}", ended.said);
        let failed =
            ended.said.lines().any(|line| line.trim_start().starts_with("FAILED") && line.contains(step));
        assert!(failed, "{program} dies, and {step} passes: {}", ended.said);
    }
}

#[test]
fn a_book_with_warnings_fails() {
    let workspace = checks();
    workspace.program("bin/mdbook", &format!("{GOOD}echo '[WARN] a listing is not there' >&2\n"));
    let ended = workspace.run(".ci/run");
    assert!(!ended.well && ended.said.contains("FAILED  the book"), "{}", ended.said);
}
