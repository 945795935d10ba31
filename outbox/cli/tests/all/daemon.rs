//! The relay as a program: health and metrics, signals, one run to the end.

use std::collections::BTreeSet;

use outbox::backend::{Received, Subscription};
use outbox::redis::RedisTransport;
use outbox::{Consumer, Topic, Transport};
use outbox_servers::{OrSkip, Redis, RedisServer};

use crate::outbox::{DONE, Daemon, FINDINGS, Outbox, PATIENCE, USAGE, until};

/// Returns an outbox that publishes to a Redis server.
fn with(redis: &RedisServer) -> Outbox {
    Outbox { transport: Some(redis.url()), ..Outbox::sqlite() }
}

/// Receives messages of a topic until there are so many different ones; returns all in their order,
/// as key and payload.
pub(crate) fn received(url: &str, topic: &str, number: usize) -> Vec<(String, String)> {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let transport = RedisTransport::builder(url).build().unwrap();
        let consumer = Consumer::new("test").unwrap();
        let topic = Topic::new(topic).unwrap();
        let deliveries = transport.subscribe(Subscription::new(consumer, [topic]).unwrap()).await.unwrap();
        let (mut all, mut different) = (Vec::new(), BTreeSet::new());
        let receiving = async {
            while different.len() < number {
                let Received::Deliveries(batch) = deliveries.next().await.unwrap() else { continue };
                for delivery in &batch {
                    let message = delivery.message.as_ref().unwrap();
                    different.insert(message.id);
                    let payload = String::from_utf8(message.payload.to_vec()).unwrap();
                    all.push((message.key.as_ref().unwrap().to_string(), payload));
                }
                let tags: Vec<_> = batch.into_iter().map(|delivery| delivery.tag).collect();
                deliveries.acknowledge(&tags).await.unwrap();
            }
        };
        let came = tokio::time::timeout(PATIENCE, receiving).await;
        assert!(came.is_ok(), "{} of {number} were delivered", different.len());
        all
    })
}

#[test]
fn a_relay_delivers_shows_its_health_and_drains_at_sigterm() {
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    let outbox = with(&redis);
    let daemon = Daemon::start(&outbox, &["--http", "0", "--label", "test"]);
    outbox.publish(&["orders", "--key", "a", "--data", "1"]);
    assert_eq!(received(&redis.url(), "orders", 1), [("a".to_owned(), "1".to_owned())]);
    until("the relay is healthy", || daemon.ask("/health").1.contains("\"healthy\""));
    assert_eq!(daemon.ask("/health").0, 200);
    until("the delivery is counted", || {
        daemon.ask("/metrics").1.contains("outbox_delivered_total{route=\"default\"} 1")
    });
    let metrics = daemon.ask("/metrics").1;
    assert!(metrics.contains("outbox_latency_seconds_bucket{route=\"default\",le=\"+Inf\"} 1"), "{metrics}");
    assert!(metrics.contains("outbox_dead_lettered_total{route=\"default\"} 0"), "{metrics}");
    assert_eq!(daemon.ask("/live").0, 200);
    assert_eq!(daemon.ask("/other").0, 404);

    outbox.run(&["pause", "--route", "default"]).ends(DONE);
    let paused = r#"{"code":"paused","status":"degraded","text":"route default: paused by an operator"#;
    until("the pause is in its health", || daemon.ask("/health").1.contains(paused));
    outbox.run(&["resume", "--route", "default"]).ends(DONE);

    daemon.signal("-TERM");
    let last = daemon.line();
    assert_eq!((&last["drained"], &last["delivered"]), (&true.into(), &1.into()));
    assert_eq!(daemon.end(), DONE);
    // Its leases are given back: a new relay has them at once.
    outbox.publish(&["orders", "--key", "a", "--data", "2"]);
    outbox.run(&["relay", "--once"]).ends(DONE);
    assert_eq!(outbox.backlog("default")["pending"], 0);
}

#[test]
fn one_run_sends_what_is_there_and_reports_what_stays() {
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    let outbox = with(&redis);
    for number in 0..20 {
        outbox.publish(&["orders", "--key", "a", "--data", &number.to_string()]);
    }
    outbox.run(&["hold", "orders", "held"]).ends(DONE);
    outbox.publish(&["orders", "--key", "held"]);
    outbox.run(&["relay", "--once"]).ends(FINDINGS).says("1 behind failing or held keys");
    let values: Vec<String> =
        received(&redis.url(), "orders", 20).into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, (0..20).map(|number| number.to_string()).collect::<Vec<_>>());
    outbox.run(&["pause", "--route", "default"]).ends(DONE);
    outbox.publish(&["orders", "--key", "a"]);
    outbox.run(&["relay", "--once", "--within", "1s"]).ends(FINDINGS).says("1 pending");
}

#[test]
fn verify_and_bench_count_what_arrives() {
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    let outbox = with(&redis);
    let run = outbox.run(&["verify", "--with-relay", "-n", "40", "--keys", "7"]).ends(DONE).object();
    let figures = ["sent", "arrived", "missing", "repeated", "out_of_order"].map(|name| run[name].as_u64());
    assert_eq!(figures, [Some(40), Some(40), Some(0), Some(0), Some(0)], "{run}");
    let run = outbox.run(&["bench", "--with-relay", "-n", "200"]).ends(DONE).object();
    let counted: u64 =
        run["histogram"].as_array().unwrap().iter().map(|bin| bin["messages"].as_u64().unwrap()).sum();
    assert_eq!((counted, run["messages_per_second"].as_f64() > Some(0.0)), (200, true), "{run}");

    // No relay runs: nothing arrives, and that is a finding.
    let run = outbox.run(&["verify", "-n", "5", "--within", "1s"]).ends(FINDINGS).object();
    assert_eq!((&run["missing"], &run["findings"][0]["code"]), (&5.into(), &"missing".into()));
    assert!(run["findings"][0]["remedy"].as_str().unwrap().contains("--with-relay"), "{run}");
}

#[test]
fn a_verification_that_goes_on_counts_its_rounds() {
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    let outbox = with(&redis);
    let arguments =
        ["verify", "--with-relay", "-n", "20", "--every", "50ms", "--within", "30s", "--http", "0"];
    let daemon = Daemon::of(outbox.command(&arguments));
    assert_eq!(daemon.ask("/live").0, 200);
    let whole =
        |round: &serde_json::Value| round["arrived"] == 20 && round["findings"] == serde_json::json!([]);
    for _ in 0..2 {
        let round = daemon.line();
        assert!(whole(&round), "{round}");
    }
    let metrics = daemon.ask("/metrics").1;
    let sent = metrics.lines().find_map(|line| line.strip_prefix("outbox_canary_sent_total "));
    assert!(sent.is_some_and(|sent| sent.parse::<u64>().unwrap() >= 40), "{metrics}");
    for none in ["missing", "repeated", "out_of_order", "failed"] {
        assert!(metrics.contains(&format!("outbox_canary_{none}_total 0")), "{metrics}");
    }
    assert!(metrics.contains("outbox_canary_latency_seconds_bucket{le=\"+Inf\"}"), "{metrics}");
    daemon.signal("-TERM");
    assert_eq!(daemon.end(), DONE);
    outbox.run(&["verify", "--http"]).ends(USAGE).says("--every");
}

/// A broker that is away refuses each attempt at once: the time limit holds nevertheless.
#[test]
fn a_verification_whose_broker_goes_away_ends_in_time_and_says_what_is_left() {
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    let outbox = with(&redis);
    outbox.run(&["pause", "--route", "default"]).ends(DONE);
    let arguments = ["verify", "--with-relay", "-n", "20", "--within", "10s"];
    let daemon = Daemon::spawn(outbox.command(&arguments));
    until("they are appended", || outbox.backlog("default")["pending"] == 20);
    redis.stop();
    let round = daemon.line();
    let left = serde_json::json!({ "waiting": 20, "parked": 0, "dead": 0, "confirmed": 0 });
    assert_eq!((&round["missing"], &round["left"]), (&20.into(), &left), "{round}");
    let text = round["findings"][0]["text"].as_str().unwrap();
    assert!(text.ends_with("within 10s: 20 in the store, not confirmed by the broker"), "{text}");
    assert_eq!(daemon.end(), FINDINGS);
}

#[test]
fn a_verification_that_goes_on_counts_an_outage_and_survives_it() {
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    let outbox = with(&redis);
    let arguments =
        ["verify", "--with-relay", "-n", "20", "--every", "50ms", "--within", "10s", "--http", "0"];
    let daemon = Daemon::of(outbox.command(&arguments));
    let is_whole = |round: &serde_json::Value| round["arrived"] == 20;
    assert!(is_whole(&daemon.line()));
    redis.stop();
    let counts = |text: &str| daemon.ask("/metrics").1.contains(text);
    until("an outage is found", || !is_whole(&daemon.line()));
    until("it is counted", || {
        !counts("outbox_canary_failed_total 0") || !counts("outbox_canary_missing_total 0")
    });
    redis.start_again();
    until("the next round is whole", || is_whole(&daemon.line()));
    daemon.signal("-TERM");
    assert_eq!(daemon.end(), FINDINGS);
}

#[test]
fn a_relay_that_can_not_start_says_why() {
    let outbox = Outbox { transport: Some("redis://127.0.0.1:1".to_owned()), ..Outbox::sqlite() };
    outbox.run(&["relay", "--set", "relay.lease=1s"]).ends(USAGE).says("lease (1s) is too short");
    outbox.run(&["relay", "--http", "somewhere"]).ends(USAGE).says("127.0.0.1:9464");
    outbox.run(&["relay", "--set", "routes.mails=pigeon://loft"]).ends(USAGE).says("pigeon");
}

#[test]
fn doctor_and_check_look_at_the_broker() {
    let Some(redis) = Redis::newest().config("appendonly yes").start().or_skip() else { return };
    let outbox = with(&redis);
    assert_eq!(outbox.run(&["check"]).ends(DONE).objects().len(), 2);
    let well = outbox.run(&["doctor"]).ends(DONE).object();
    assert_eq!((&well["healthy"], well["checked"].as_array().map(Vec::len)), (&true.into(), Some(7)));
    redis.stop();
    outbox.run(&["check"]).ends(crate::outbox::FAILED);
    let found = outbox.run(&["doctor"]).ends(FINDINGS).object();
    assert!(found["findings"].to_string().contains("\"transport\""), "{found}");
}
