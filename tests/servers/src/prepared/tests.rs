//! In a tree that holds only a program and a user. Where several processes are needed, the tests
//! run themselves again.

#![allow(clippy::unwrap_used)]

use std::cell::Cell;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

const PATIENCE: Duration = Duration::from_secs(120);
/// The folder of a process with another role.
const FOLDER: &str = "OUTBOX_TEST_FOLDER";

/// Creates a folder of servers with one tree.
fn servers() -> tempfile::TempDir {
    let servers = tempfile::tempdir().unwrap();
    let root = servers.path().join("release");
    for folder in ["etc", "bin", "srv"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::write(root.join("etc/passwd"), "server:x:0:0::/:/bin/sh\n").unwrap();
    fs::write(root.join("bin/server"), "one").unwrap();
    servers
}

fn tree(servers: &Path) -> Tree {
    Tree::at(servers.join("release"))
}

fn recipe(settings: &str) -> Recipe<'_> {
    Recipe { part: "part", user: "server", programs: &["/bin/server"], settings }
}

fn fill(home: &Home) -> Result<(), String> {
    fs::write(home.outside(MADE).join("data"), "whole").map_err(|error| error.to_string())
}

/// Cached folders, without the locks.
fn kept(servers: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(servers.join("prepared")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Plays another role in a process of its own.
fn again(test: &str, servers: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("prepared::tests::{test}"), "--nocapture"]);
    command.env(FOLDER, servers).stdout(Stdio::null()).spawn().unwrap()
}

fn part() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

#[track_caller]
fn wait_for(what: &str, done: impl Fn() -> bool) {
    assert!(crate::until::until(PATIENCE, done), "{what}");
}

#[test]
fn a_folder_is_made_once_for_each_setting() {
    let servers = servers();
    let made = Cell::new(0);
    let count = |home: &Home| {
        made.set(made.get() + 1);
        fill(home)
    };
    let one = recipe("a").folder(&tree(servers.path()), count).unwrap().unwrap();
    assert_eq!(recipe("a").folder(&tree(servers.path()), count).unwrap().unwrap(), one);
    let other = recipe("b").folder(&tree(servers.path()), count).unwrap().unwrap();
    assert_eq!((made.get(), kept(servers.path()).len()), (2, 2));
    assert_ne!(one, other);
    assert_eq!(fs::read_to_string(other.join("data")).unwrap(), "whole");
}

#[test]
fn a_folder_of_another_version_is_removed() {
    let servers = servers();
    let old = recipe("a").folder(&tree(servers.path()), fill).unwrap().unwrap();
    fs::write(servers.path().join("release/bin/server"), "another").unwrap();
    let new = recipe("a").folder(&tree(servers.path()), fill).unwrap().unwrap();
    assert_ne!(old, new);
    assert_eq!(kept(servers.path()), [new]);
}

#[test]
fn what_could_not_be_made_is_not_used() {
    let servers = servers();
    let failed = recipe("a").folder(&tree(servers.path()), |home| {
        fill(home)?;
        Err("no room".to_owned())
    });
    assert_eq!(failed, Err("no room".to_owned()));
    assert_eq!(kept(servers.path()), [""; 0].map(PathBuf::from));
    assert!(recipe("a").folder(&tree(servers.path()), fill).unwrap().is_some());
}

#[test]
fn without_a_place_to_keep_it_nothing_is_made() {
    let servers = servers();
    // Root may write to every folder, though not into a file.
    fs::write(servers.path().join("prepared"), "").unwrap();
    let made = recipe("a").folder(&tree(servers.path()), |_| Err("it was made".to_owned()));
    assert_eq!(made, Ok(None));
}

#[test]
fn what_a_killed_program_has_half_made_is_not_used_and_does_not_stay() {
    const NAME: &str = "what_a_killed_program_has_half_made_is_not_used_and_does_not_stay";
    if let Some(servers) = part() {
        let made = recipe("a").folder(&tree(&servers), |home| {
            fill(home)?;
            fs::write(servers.join("half"), "").unwrap();
            loop {
                std::thread::park();
            }
        });
        panic!("{made:?}");
    }
    let servers = servers();
    let mut half = again(NAME, servers.path());
    wait_for("it begins", || servers.path().join("half").exists());
    half.kill().unwrap();
    half.wait().unwrap();
    assert_eq!(kept(servers.path()), [""; 0].map(PathBuf::from));
    let made = Cell::new(false);
    let place = recipe("a").folder(&tree(servers.path()), |home| {
        made.set(true);
        fill(home)
    });
    assert!(made.get() && place.unwrap().is_some());
    let srv = servers.path().join("release/srv");
    wait_for("nothing of it is left", || fs::read_dir(&srv).unwrap().next().is_none());
}

#[test]
fn of_two_programs_at_once_one_makes_it_and_the_other_waits() {
    const NAME: &str = "of_two_programs_at_once_one_makes_it_and_the_other_waits";
    const PROGRAMS: usize = 4;
    if let Some(servers) = part() {
        let me = std::process::id();
        fs::write(servers.join(format!("here-{me}")), "").unwrap();
        let place = recipe("a").folder(&tree(&servers), |home| {
            fs::write(servers.join(format!("maker-{me}")), "").unwrap();
            // Not before all are there.
            let start = Instant::now();
            while count(&servers, "here-") < PROGRAMS && start.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(5));
            }
            fill(home)
        });
        assert_eq!(fs::read_to_string(place.unwrap().unwrap().join("data")).unwrap(), "whole");
        return;
    }
    let servers = servers();
    let programs: Vec<Child> = (0..PROGRAMS).map(|_| again(NAME, servers.path())).collect();
    for mut program in programs {
        assert!(program.wait().unwrap().success());
    }
    assert_eq!((count(servers.path(), "maker-"), kept(servers.path()).len()), (1, 1));
}

fn count(folder: &Path, prefix: &str) -> usize {
    let entries = fs::read_dir(folder).unwrap().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)).count()
}
