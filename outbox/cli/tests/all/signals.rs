//! SIGTERM and SIGINT, at each step of a program that stays.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use outbox_servers::{OrSkip, Redis};
use sqlx::{Connection, Executor};

use crate::daemon::received;
use crate::outbox::{DONE, Daemon, FAILED, FINDINGS, INTERRUPTED, Outbox, until};

/// Signals by which process managers, people and closed terminals end a program. Only Linux tells
/// whether the last one is ignored.
const SIGNALS: &[&str] =
    if cfg!(target_os = "linux") { &["-TERM", "-INT", "-HUP"] } else { &["-TERM", "-INT"] };

/// Opens the connection of a client, and never says anything on it.
fn silent(listener: &TcpListener) -> TcpStream {
    listener.accept().unwrap().0
}

#[test]
fn a_signal_ends_a_start_that_waits_for_its_database() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = format!("postgres://shop@{}/shop", listener.local_addr().unwrap());
    let outbox = Outbox { store, transport: Some("redis://127.0.0.1:1".to_owned()), ..Outbox::missing() };
    let commands: [&[&str]; 3] = [&["relay"], &["relay", "--once"], &["dashboard", "--http", "0"]];
    for command in commands {
        for signal in SIGNALS.iter().copied() {
            let daemon = Daemon::spawn(outbox.command(command));
            let _connection = silent(&listener);
            daemon.signal(signal);
            assert_eq!(daemon.end(), INTERRUPTED, "{command:?} {signal}");
        }
    }
}

#[test]
fn a_signal_ends_an_idle_relay_which_gives_its_leases_back() {
    for signal in SIGNALS.iter().copied() {
        // It waits for its broker, and starts nevertheless.
        let outbox = Outbox { transport: Some("redis://127.0.0.1:1".to_owned()), ..Outbox::sqlite() };
        let daemon = Daemon::start(&outbox, &["--set", "relay.observe_every=50ms"]);
        let relays = || outbox.backlog("default")["relays"].as_array().map_or(0, Vec::len);
        until("the relay is there", || relays() == 1);
        daemon.signal(signal);
        let last = daemon.line();
        assert_eq!((daemon.end(), &last["drained"]), (DONE, &true.into()), "{signal}");
        assert_eq!(relays(), 0, "{signal}");
    }
}

/// Nothing is lost, whichever way a relay ends whose broker gives no answer.
#[test]
fn a_signal_ends_a_relay_with_messages_in_flight() {
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    // A relay that could not drain keeps its leases until they end.
    let lease =
        ["--set", "relay.lease=3s", "--set", "relay.heartbeat=500ms", "--set", "relay.publish_timeout=1s"];
    // It drains for as long as it may, and says that it could not; or a second signal ends it at once.
    let cases: [(&str, &[&str], Option<i32>); 2] =
        [("200ms", &["-TERM"], FAILED), ("1h", &["-INT", "-TERM"], INTERRUPTED)];
    for (number, (within, signals, code)) in cases.into_iter().enumerate() {
        let outbox = Outbox { transport: Some(redis.url()), ..Outbox::sqlite() };
        let topic = format!("orders-{number}");
        let options = ["--http", "0", "--stop-within", within, "--set", "relay.observe_every=50ms"];
        let daemon = Daemon::start(&outbox, &[&options[..], &lease].concat());
        // The first delivery shows that it has connected.
        outbox.publish(&[&topic, "--key", "a", "--data", "1"]);
        received(&redis.url(), &topic, 1);
        redis.pause();
        outbox.publish(&[&topic, "--key", "a", "--data", "2"]);
        let in_flight = "outbox_in_flight{route=\"default\"} 1";
        until("the message is in flight", || daemon.ask("/metrics").1.contains(in_flight));
        signals.iter().for_each(|signal| daemon.signal(signal));
        assert_eq!(daemon.end(), code, "{signals:?}");
        redis.resume();
        outbox.run(&["relay", "--once"]).ends(DONE);
        // What was in flight may come twice.
        let came = received(&redis.url(), &topic, 1);
        assert!(came.iter().all(|(_, data)| data == "2"), "{signals:?}: {came:?}");
    }
}

/// The limit is not what ended it.
#[test]
fn a_relay_that_can_not_drain_says_how_long_it_tried() {
    let outbox = Outbox { transport: Some("redis://127.0.0.1:1".to_owned()), ..Outbox::sqlite() };
    let impatient = ["--set", "sqlite.busy_timeout=200ms", "--set", "relay.store_timeout=500ms"];
    let mut command = outbox.command(&[&["relay", "--stop-within", "1h"][..], &impatient].concat());
    let mut relay = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(relay.stdout.take().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("started"));
    // The relay can't write any more, and so can't give its leases back.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut writer = runtime.block_on(sqlx::SqliteConnection::connect(&outbox.store)).unwrap();
    runtime.block_on(writer.execute("begin immediate")).unwrap();
    assert!(Command::new("kill").args(["-TERM", &relay.id().to_string()]).status().unwrap().success());
    let ended = relay.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), FAILED, "{said}");
    let last = said.lines().find(|line| line.starts_with("outbox: not drained")).unwrap();
    assert!(last.contains("gave up after ") && last.contains("s (limit 3600s)"), "{last}");
}

/// A timer must not take a run that was ended for one that has sent everything.
#[test]
fn a_signal_ends_a_run_to_the_end_which_says_that_it_was_interrupted() {
    for signal in SIGNALS.iter().copied() {
        let outbox = Outbox { transport: Some("redis://127.0.0.1:1".to_owned()), ..Outbox::sqlite() };
        outbox.publish(&["orders", "--key", "a"]);
        outbox.run(&["pause", "--route", "default"]).ends(DONE);
        let daemon = Daemon::start(&outbox, &["--once"]);
        daemon.signal(signal);
        assert_eq!(daemon.end(), INTERRUPTED, "{signal}");
        assert_eq!(outbox.backlog("default")["pending"], 1);
    }
}

/// `nohup` is for programs that stay when their terminal is closed.
#[cfg(target_os = "linux")]
#[test]
fn a_relay_under_nohup_stays_when_its_terminal_is_closed() {
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    let outbox = Outbox { transport: Some(redis.url()), ..Outbox::sqlite() };
    let relay = outbox.command(&["relay"]);
    let mut command = std::process::Command::new("nohup");
    command.arg(relay.get_program()).args(relay.get_args()).current_dir(outbox.folder.path());
    command.stdin(std::process::Stdio::null());
    for (name, value) in relay.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let daemon = Daemon::of(command);
    daemon.signal("-HUP");
    outbox.publish(&["orders", "--key", "a", "--data", "1"]);
    received(&redis.url(), "orders", 1);
    daemon.signal("-TERM");
    assert_eq!(daemon.line()["drained"], true);
    assert_eq!(daemon.end(), DONE);
}

#[test]
fn a_signal_ends_what_follows_or_watches() {
    let outbox = Outbox::sqlite();
    outbox.publish(&["orders", "--key", "a"]);
    outbox.run(&["status"]).ends(FINDINGS);
    let commands: [&[&str]; 3] = [&["tail"], &["status", "--watch"], &["dashboard", "--http", "0"]];
    for command in commands {
        for signal in SIGNALS.iter().copied() {
            let daemon = Daemon::of(outbox.command(command));
            daemon.signal(signal);
            assert_eq!(daemon.end(), DONE, "{command:?} {signal}");
        }
    }
}
