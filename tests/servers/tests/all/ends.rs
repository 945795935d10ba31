//! Remnants of a test program, however it ends; and of a skip. The tests run themselves again as a
//! program of its own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outbox_servers::{OrSkip as _, Postgres, RabbitMq, Redis};

const PATIENCE: Duration = Duration::from_secs(300);

/// This test program again, with one test only, which then plays another role.
fn again(test: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("ends::{test}"), "--nocapture"]).env("OUTBOX_TEST_PART", part);
    command
}

fn part() -> Option<String> {
    std::env::var("OUTBOX_TEST_PART").ok()
}

/// Reads the line that a program prints after a word.
fn line_after(child: &mut Child, word: &str) -> String {
    let output = BufReader::new(child.stdout.take().unwrap());
    let lines = output.lines().map_while(Result::ok);
    let line = lines.into_iter().find_map(|line| Some(line.split_once(word)?.1.to_owned()));
    line.expect("the program says so before it ends")
}

/// Prints the serving processes, and never ends.
fn serve(pids: &[u32]) {
    println!("serving: {}", pids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    loop {
        std::thread::park();
    }
}

/// Runs a part that serves, kills it, and waits until its servers are gone too.
#[track_caller]
fn killed_servers_end(test: &str) {
    let mut child = again(test, "serve").stdout(Stdio::piped()).spawn().unwrap();
    let pids = line_after(&mut child, "serving: ");
    if pids == "none" {
        child.wait().unwrap();
        return;
    }
    let pids: Vec<&str> = pids.split(' ').collect();
    let homes: Vec<_> =
        pids.iter().filter_map(|pid| std::fs::read_link(format!("/proc/{pid}/cwd")).ok()).collect();
    assert!(pids.len() > 2 && homes.len() > 2, "{pids:?} in {homes:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    let start = Instant::now();
    let left = || homes.iter().any(|home| home.exists()) || pids.iter().any(|pid| runs_in(pid, &homes));
    while left() {
        assert!(start.elapsed() < PATIENCE, "{pids:?} in {homes:?} are still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns true if a process is still the same: its number may be another's by now.
fn runs_in(pid: &str, homes: &[std::path::PathBuf]) -> bool {
    std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|home| homes.contains(&home))
}

#[test]
fn a_postgres_ends_with_a_test_program_that_is_killed() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    if !server.is_own() {
        return;
    }
    if part().is_some() {
        serve(&server.pids());
    }
    killed_servers_end("a_postgres_ends_with_a_test_program_that_is_killed");
}

#[test]
fn a_paused_rabbitmq_ends_with_a_test_program_that_is_killed() {
    if part().is_some() {
        let Some(server) = RabbitMq::newest().start().or_skip() else {
            println!("serving: none");
            return;
        };
        server.pause();
        serve(&server.pids());
    }
    killed_servers_end("a_paused_rabbitmq_ends_with_a_test_program_that_is_killed");
}

#[test]
fn a_server_that_is_dropped_leaves_nothing() {
    let Some(server) = Postgres::newest().start().or_skip() else { return };
    let pids = server.pids();
    let home = std::fs::read_link(format!("/proc/{}/cwd", pids[0])).unwrap();
    drop(server);
    assert!(!home.exists());
    assert!(!pids.iter().any(|pid| runs_in(&pid.to_string(), std::slice::from_ref(&home))));
}

#[test]
fn a_test_without_its_server_skips_by_name_or_fails_when_servers_are_required() {
    const NAME: &str = "a_test_without_its_server_skips_by_name_or_fails_when_servers_are_required";
    if part().is_some() {
        assert!(Postgres::newest().shared().or_skip().is_none());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let skips = folder.path().join("skips");
    let run = |required: &str| {
        let mut command = again(NAME, "skip");
        command.env("OUTBOX_SERVERS_DIR", folder.path()).env("OUTBOX_SKIPS", &skips);
        command.env("OUTBOX_REQUIRE_SERVERS", required).env_remove("OUTBOX_POSTGRES_URL");
        command.env("DOCKER_HOST", format!("unix://{}", folder.path().join("nobody").display()));
        command.output().unwrap().status.success()
    };
    assert!(run("0"), "a skip is no failure");
    let noted = read(&skips);
    assert!(
        noted.starts_with(&format!("ends::{NAME}: no PostgreSQL 18: ")) && noted.ends_with('\n'),
        "{noted:?}"
    );
    assert!(!run("1"), "a skip is a failure when servers are required");
    assert_eq!(read(&skips), noted, "what failed is not noted as skipped");
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn servers_that_were_used_are_noted_with_their_versions_and_where_they_came_from() {
    const NAME: &str = "servers_that_were_used_are_noted_with_their_versions_and_where_they_came_from";
    if part().is_some() {
        Redis::newest().shared().unwrap();
        Redis::oldest().start().unwrap();
        return;
    }
    // Only asks whether there could be one.
    for wish in [Redis::newest(), Redis::oldest()] {
        let Some(server) = wish.start().or_skip() else { return };
        drop(server);
    }
    let folder = tempfile::tempdir().unwrap();
    let used = folder.path().join("used");
    let mut command = again(NAME, "use");
    command.env("OUTBOX_SERVERS_USED", &used).env("OUTBOX_REDIS_URL", "redis://user:secret@127.0.0.1:1");
    assert!(command.output().unwrap().status.success());
    let noted = read(&used);
    let lines: Vec<&str> = noted.lines().collect();
    assert_eq!(lines.len(), 2, "{noted:?}");
    assert_eq!(lines[0], "Redis 8 (given by URL)");
    let from = ["(tests/servers/prepare)", "(container of "].iter().any(|from| lines[1].contains(from));
    assert!(lines[1].starts_with("Redis 7: 7.") && from, "{noted:?}");
}
