//! `orders`: every committed event is booked, once and in order, whatever happens to the relays.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

use std::process::Stdio;

use examples_shared::program::{Run, run};

const PROGRAM: &str = env!("CARGO_BIN_EXE_orders");

const INCLUDED: &str = include_str!("../orders.jsonl");

/// Asserts that everything arrived: nothing lost, phantom or out of order, every effect once.
#[track_caller]
fn assert_all_booked(run: &Run, committed: u64) {
    let figures = run.figures();
    assert_eq!(run.code, Some(0), "{run:#?}");
    for (name, expected) in
        [("committed", committed), ("effects", committed), ("lost", 0), ("out of order", 0), ("phantom", 0)]
    {
        assert_eq!(figures.get(name), Some(&expected), "{name}: {run:#?}");
    }
    assert!(figures["delivered"] >= committed, "{run:#?}");
    assert!(run.stdout.contains("each event exactly once"), "{run:#?}");
}

#[test]
fn every_line_of_the_included_file_is_committed_and_booked_once() {
    let run = run(PROGRAM, &[], "");
    assert_all_booked(&run, INCLUDED.lines().count() as u64);
    let figures = run.figures();
    // No relay was killed, so there is nothing to repeat.
    assert_eq!((figures["repeated"], figures["delivered"]), (0, figures["committed"]), "{run:#?}");
    assert!(!figures.contains_key("refused") && !figures.contains_key("relays killed"), "{run:#?}");
    assert!(figures["rate"] > 0, "{run:#?}");
}

#[test]
fn killed_relays_lose_nothing_and_bring_nothing_out_of_order() {
    // With this seed the first two relays die after 113 and 306 ms, in the middle of the run.
    let arguments = ["--orders", "300", "--customers", "20", "--kill-relay", "--seed", "52"];
    let run = run(PROGRAM, &arguments, "");
    let figures = run.figures();
    assert!(figures["committed"] > 600 && figures["relays killed"] > 0, "{run:#?}");
    assert_all_booked(&run, figures["committed"]);
}

#[test]
fn a_backlog_that_was_written_before_the_relays_started_arrives() {
    let run = run(PROGRAM, &["--orders", "200", "--customers", "7", "--backlog-first"], "");
    let committed = run.figures()["committed"];
    assert_all_booked(&run, committed);
}

#[test]
fn what_a_killed_program_left_behind_is_found_and_booked_once_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    let mut command = std::process::Command::new(PROGRAM);
    command.args(["--orders", "100000", "--customers", "50", "--dir", dir]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // In the middle of the run: as soon as the log of the shop's database has a good many
    // transactions.
    let log = folder.path().join("shop.db-wal");
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while std::fs::metadata(&log).map_or(0, |log| log.len()) < 2_500_000 {
        assert!(std::time::Instant::now() < patience && child.try_wait().unwrap().is_none());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let run = run(PROGRAM, &["--dir", dir, "-"], INCLUDED.lines().next().unwrap());
    let figures = run.figures();
    assert_eq!(run.code, Some(0), "{run:#?}");
    assert_eq!(figures["effects"], figures["found"] + 1, "{run:#?}");
    assert!(figures["found"] > 20, "{run:#?}");
    assert_eq!((figures["lost"], figures["out of order"], figures["phantom"]), (0, 0, 0), "{run:#?}");
}

#[test]
fn a_line_that_is_no_order_is_reported_with_its_number_and_the_rest_goes_on() {
    let mut lines: Vec<&str> = INCLUDED.lines().take(30).collect();
    lines[14] = r#"{"kind":"place","order_id":"#;
    let run = run(PROGRAM, &["-"], &lines.join("\n"));
    assert_all_booked(&run, 29);
    assert_eq!(run.figures()["refused"], 1, "{run:#?}");
    assert!(run.stderr.starts_with("line 15 is not an order: "), "{run:#?}");
    assert_eq!(run.stderr.lines().count(), 1, "{run:#?}");
}

#[test]
fn an_empty_input_commits_nothing() {
    assert_all_booked(&run(PROGRAM, &["-"], ""), 0);
}

#[test]
fn a_file_is_read_as_standard_input_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("some orders.jsonl");
    std::fs::write(&file, INCLUDED.lines().take(5).collect::<Vec<_>>().join("\n")).unwrap();
    assert_all_booked(&run(PROGRAM, &[file.to_str().unwrap()], ""), 5);
}

#[test]
fn what_cannot_be_done_is_said_in_words_with_what_it_is_about() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    std::fs::write(&file, "").unwrap();
    let (folder, file) = (folder.path().to_str().unwrap(), file.to_str().unwrap());
    let wrong: &[(&[&str], &str)] = &[
        (&["no-such-orders.jsonl"], "orders: could not read no-such-orders.jsonl: "),
        (&[folder], "orders: could not read past line 0: "),
        (&["--dir", file], "orders: could not make the folder "),
        (&["--store", "filing-cabinet:a"], "orders: unsupported URL scheme \"filing-cabinet\""),
        (&["--transport", "pigeon://loft"], "orders: unsupported URL scheme \"pigeon\""),
    ];
    for (arguments, words) in wrong {
        let run = run(PROGRAM, arguments, "");
        assert!(run.stderr.starts_with(words), "{arguments:?}: {run:#?}");
        assert_eq!(run.stderr.lines().count(), 1, "{arguments:?}: {run:#?}");
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{arguments:?}");
    }
}

#[test]
fn a_call_that_makes_no_sense_is_refused_before_anything_is_done() {
    let wrong: &[(&[&str], &str)] = &[
        (&["--orders", "many"], "invalid value 'many' for '--orders <N>'"),
        (&["orders.jsonl", "--orders", "3"], "cannot be used with '--orders <N>'"),
        (&["--customers", "3"], "--orders <N>"),
        (&["--store", "sqlite:a", "--dir", "b"], "cannot be used with"),
        (&["--relays"], "unexpected argument '--relays'"),
    ];
    for (arguments, words) in wrong {
        let run = run(PROGRAM, arguments, "");
        assert!(run.stderr.contains(words) && run.code == Some(2), "{arguments:?}: {run:#?}");
    }
}

#[cfg(all(unix, feature = "postgres", feature = "redis"))]
#[test]
fn postgresql_and_redis_take_the_place_of_what_is_embedded() {
    use outbox_servers::{OrSkip, Postgres, Redis};

    let Some(postgres) = Postgres::newest().shared().or_skip() else { return };
    // A Redis server of its own: the topic is `orders` for every run.
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    let (store, transport) = (postgres.fresh_database(), redis.url());
    let arguments = ["--store", &store, "--transport", &transport, "--kill-relay"];
    assert_all_booked(&run(PROGRAM, &arguments, ""), INCLUDED.lines().count() as u64);
}

#[cfg(all(unix, feature = "mysql"))]
#[test]
fn mysql_takes_the_place_of_what_is_embedded() {
    use outbox_servers::{MySql, OrSkip};

    let Some(mysql) = MySql::newest().shared().or_skip() else { return };
    let store = mysql.fresh_database();
    assert_all_booked(
        &run(PROGRAM, &["--store", &store, "--kill-relay"], ""),
        INCLUDED.lines().count() as u64,
    );
}

/// On the stand-in for MongoDB, or on the server that the environment names.
#[cfg(all(unix, feature = "mongodb"))]
#[test]
fn mongodb_takes_the_place_of_what_is_embedded() {
    use outbox_servers::{MongoDb, OrSkip};

    let Some(mongodb) = MongoDb::newest().shared().or_skip() else { return };
    let url = mongodb.url();
    let (server, options) = url.split_once('?').unwrap_or((&url, ""));
    let host = server.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    let store = format!("{host}/{}?{options}", mongodb.fresh_database());
    let lines: Vec<&str> = INCLUDED.lines().take(50).collect();
    assert_all_booked(&run(PROGRAM, &["--store", &store, "-"], &lines.join("\n")), 50);
}

/// Two programs, one after the other, each with databases of its own: the second is a member of the
/// same group. It would wait for the first one's session to end, had that not left.
#[cfg(all(unix, feature = "kafka"))]
#[test]
fn a_second_run_over_one_topic_of_kafka_finds_the_group_left() {
    use outbox_servers::{Kafka, OrSkip};

    // A broker of its own: the topic is `orders` for every run.
    let Some(kafka) = Kafka::newest().start().or_skip() else { return };
    let (url, internal) = (kafka.url(), kafka.internal_url());
    let brokers = ["--bootstrap-server", &internal];
    let tool = |class: &str, args: &[&str]| kafka.tool(class, &[&brokers[..], args].concat()).unwrap();
    let create = ["--create", "--topic", "orders", "--partitions", "4", "--replication-factor", "1"];
    tool("org.apache.kafka.tools.TopicCommand", &create);
    for _ in 0..2 {
        let run = run(PROGRAM, &["--transport", &format!("kafka://{url}")], "");
        assert_all_booked(&run, INCLUDED.lines().count() as u64);
        assert!(!run.stderr.contains("ERROR"), "{run:#?}");
        let describe = ["--describe", "--group", "ledger", "--state"];
        let state = tool("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", &describe);
        assert!(state.contains(" Empty "), "somebody is left in the group: {state}");
    }
}

#[cfg(all(unix, feature = "rabbitmq"))]
#[test]
fn a_run_on_rabbitmq_reports_no_problem() {
    use outbox_servers::{OrSkip, RabbitMq};

    let Some(rabbitmq) = RabbitMq::newest().shared().or_skip() else { return };
    let run = run(PROGRAM, &["--transport", &rabbitmq.fresh_vhost()], "");
    assert_all_booked(&run, INCLUDED.lines().count() as u64);
    assert!(!run.stderr.contains("ERROR"), "{run:#?}");
}

#[test]
fn a_reader_of_the_report_that_has_seen_enough_breaks_nothing() {
    let mut command = std::process::Command::new(PROGRAM);
    command.args(["--orders", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn help_shows_every_option_and_a_line_that_can_be_read() {
    let help = run(PROGRAM, &["--help"], "");
    assert_eq!(help.code, Some(0));
    for option in [
        "[FILE]",
        "--orders",
        "--customers",
        "--seed",
        "--kill-relay",
        "--backlog-first",
        "--dir",
        "--store",
        "--transport",
    ] {
        assert!(help.stdout.contains(option), "{option}: {}", help.stdout);
    }
    let example = help.stdout.lines().find(|line| line.trim_start().starts_with('{'));
    assert_all_booked(&run(PROGRAM, &["-"], example.expect("help shows a line of input")), 1);
}
