//! Findings of `doctor` about brokers.

use outbox_servers::{Kafka, OrSkip, Redis, RedisServer};
use serde_json::Value;

use crate::outbox::{DONE, FINDINGS, Outbox, Run};

/// Returns the texts of one of the lists of a report, those of the broker.
fn texts(report: &Value, list: &str) -> Vec<String> {
    let all = report[list].as_array().unwrap().iter();
    let texts = all.map(|it| format!("{}: {}", it["code"].as_str().unwrap(), it["text"].as_str().unwrap()));
    texts.filter(|text| text.contains("broker")).collect()
}

fn doctor(outbox: &Outbox, arguments: &[&str]) -> Run {
    outbox.run(&[&["doctor"], arguments].concat())
}

#[test]
fn doctor_names_topics_of_the_store_that_kafka_does_not_have_until_they_are_made() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let outbox = Outbox { transport: Some(format!("kafka://{}", server.url())), ..Outbox::sqlite() };
    let topic = format!("doctor-{}", std::process::id());
    assert_eq!(texts(&doctor(&outbox, &[]).object(), "findings"), [""; 0], "no topic is known");
    outbox.publish(&[&topic, "--key", "a"]);
    let missing = format!("delivery: broker: topic {topic} does not exist: messages wait");
    let report = doctor(&outbox, &[]).ends(FINDINGS).object();
    let found = texts(&report, "findings");
    assert!(found.len() == 1 && found[0].starts_with(&missing), "{report}");
    assert!(report["checked"].as_array().unwrap().contains(&"broker".into()), "{report}");
    let text = doctor(&outbox, &["--table"]).ends(FINDINGS).stdout;
    assert!(text.contains(&format!("! broker: topic {topic} does not exist")), "{text}");
    assert!(text.contains("\n  remedy: create it with the partitions"), "{text}");

    // A topic that a rule names must be there.
    let rule = ["--set", r#"relay.retry.rules=[{topic = "doctor-of-a-rule", max_attempts = 1}]"#];
    let found = texts(&doctor(&outbox, &rule).object(), "findings");
    assert!(found[0].contains(&format!("topics {topic}, doctor-of-a-rule do not exist:")), "{found:?}");

    let address = server.internal_url();
    let make = ["--bootstrap-server", &address, "--create", "--topic", &topic, "--partitions", "1"];
    server.tool("org.apache.kafka.tools.TopicCommand", &make).unwrap();
    let report = doctor(&outbox, &[]).object();
    assert_eq!((texts(&report, "findings"), texts(&report, "unchecked")), (Vec::new(), Vec::new()));
}

/// A Redis that keeps what it has over a restart.
fn durable() -> Option<RedisServer> {
    Redis::newest().config("appendonly yes").start().or_skip()
}

#[test]
fn doctor_examines_the_broker_of_each_route_for_the_topics_of_that_route() {
    let (Some(well), Some(forgets)) = (durable(), Redis::newest().start().or_skip()) else { return };
    let outbox = Outbox { transport: Some(well.url()), ..Outbox::sqlite() };
    outbox.publish(&["orders", "--key", "a"]);
    outbox.publish(&["letters", "--key", "a", "--route", "mails"]);
    // Keys of topics that hold something else.
    for (server, topic) in [(&well, "letters"), (&forgets, "letters"), (&forgets, "orders")] {
        server.cli(&["SET", &format!("outbox:{{{topic}}}"), "something else"]);
    }
    let route = format!("routes.mails={}", forgets.url());
    let report = doctor(&outbox, &["--set", &route]).ends(FINDINGS).object();
    let found = texts(&report, "findings");
    assert_eq!(found.len(), 2, "{report}");
    assert!(found[0].starts_with("durability: broker (route mails): appendonly is no"), "{report}");
    assert!(found[1].starts_with("delivery: broker (route mails): key outbox:{letters} holds"), "{report}");
    forgets.cli(&["DEL", "outbox:{letters}"]);
    forgets.cli(&["CONFIG", "SET", "appendonly", "yes"]);
    assert_eq!(texts(&doctor(&outbox, &["--set", &route]).object(), "findings"), [""; 0]);

    let away = doctor(&outbox, &["--set", "routes.mails=redis://127.0.0.1:1"]).ends(FINDINGS).object();
    let of_route = away["findings"].as_array().unwrap().iter().find(|it| it["code"] == "transport").unwrap();
    assert!(of_route["text"].as_str().unwrap().starts_with("transport of route mails: check: "), "{away}");
    assert!(of_route["remedy"].as_str().unwrap().starts_with("correct routes.mails, "), "{away}");
}

#[test]
fn what_the_broker_hides_from_its_user_is_not_checked_and_no_finding() {
    let Some(server) = durable() else { return };
    server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-config"]);
    let url = server.url().replace("redis://", "redis://app:pw@");
    let outbox = Outbox { transport: Some(url), ..Outbox::sqlite() };
    let report = doctor(&outbox, &[]).ends(DONE).object();
    assert_eq!(texts(&report, "findings"), [""; 0]);
    assert_eq!(
        texts(&report, "unchecked"),
        ["unseen: broker: this user may not read settings (save, appendfsync)"]
    );
    assert_eq!(report["healthy"], false);
    let text = doctor(&outbox, &["--table"]).ends(DONE).stdout;
    assert!(text.contains("not checked: broker: this user may not read settings"), "{text}");
    assert!(text.contains("\n  remedy: grant it: ACL SETUSER NAME +config|get"), "{text}");
    server.cli(&["ACL", "SETUSER", "app", "+config|get"]);
    assert_eq!(doctor(&outbox, &[]).ends(DONE).object()["healthy"], true);
}
