//! Views of an outbox at work for operators, and the audit of their operations.

use std::process::Stdio;
use std::thread;

use outbox::Exhausted;

use crate::outbox::{DONE, FAILED, FINDINGS, Outbox, USAGE};
use crate::world;

/// Operations of the audit, the oldest first.
fn recorded(outbox: &Outbox, arguments: &[&str]) -> Vec<String> {
    let run = outbox.run(&[&["audit", "--oldest"], arguments].concat()).ends(DONE);
    run.objects().iter().map(|entry| entry["operation"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn messages_that_wait_are_listed_and_shown_wherever_they_are() {
    let outbox = Outbox::sqlite();
    let parent = "traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let first = outbox.publish(&["orders", "--key", "a", "--data", r#"{"n":1}"#, "--header", parent]);
    let second = outbox.publish(&["orders", "--key", "b"]);
    let later = outbox.publish(&["orders", "--key", "a", "--due", "2h"]);
    let ids = |arguments: &[&str]| -> Vec<String> {
        let run = outbox.run(&[&["messages", "list"], arguments].concat()).ends(DONE);
        run.objects().iter().map(|it| it["id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&[]), [first.clone(), second.clone()]);
    assert_eq!(ids(&["--newest"]), [second.clone(), first.clone()]);
    assert_eq!(ids(&["--key", "b"]), [second]);
    let shown = outbox.run(&["messages", "show", &first]).ends(DONE).object();
    assert_eq!(shown["payload"]["n"], 1);
    assert_eq!(shown["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    assert!(shown["appended_at"].is_string());
    let shown = outbox.run(&["messages", "show", &later]).ends(DONE).object();
    assert!(shown["due_at"].is_string(), "it is found where it is: {shown}");
    let hex = outbox.run(&["messages", "show", &first, "--payload", "hex"]).ends(DONE).object();
    assert_eq!(hex["payload_hex"], "7b226e223a317d");
    let unknown = "01a2158c-0000-7000-8000-000000000000";
    outbox.run(&["messages", "show", unknown]).ends(FAILED).says("no message has the id");

    let topics = outbox.run(&["topics"]).ends(DONE).objects();
    assert_eq!((topics.len(), &topics[0]["topic"], &topics[0]["waiting"]), (1, &"orders".into(), &2.into()));
    assert_eq!(outbox.run(&["topics", "--route", "nowhere"]).ends(DONE).objects().len(), 0);
}

#[test]
fn relays_routes_and_pauses_are_shown() {
    let outbox = Outbox::sqlite();
    outbox.publish(&["orders", "--key", "a"]);
    outbox.run(&["pause", "--route", "default", "--topic", "orders"]).ends(DONE);
    let routes = outbox.run(&["routes"]).ends(DONE).objects();
    assert_eq!(routes[0]["route"], "default");
    assert_eq!(routes[0]["paused"]["topics"][0], "orders");
    assert_eq!(outbox.run(&["relays"]).ends(DONE).objects().len(), 0);

    let (relay, label) = world::lease(&outbox, "shop-relay");
    let relays = outbox.run(&["relays"]).ends(DONE).objects();
    assert_eq!((relays.len(), relays[0]["relay"].as_str()), (1, Some(&*relay)));
    assert_eq!((&relays[0]["label"], &relays[0]["buckets"]), (&label.clone().into(), &256.into()));
    let buckets = outbox.run(&["relays", "--route", "default", "--buckets"]).ends(DONE).objects();
    assert_eq!(buckets.len(), 256);
    assert_eq!((&buckets[7]["bucket"], &buckets[7]["epoch"]), (&7.into(), &1.into()));
    assert_eq!(buckets[7]["label"].as_str(), Some(&*label));
    assert!(buckets[7]["since"].is_string() && buckets[7]["until"].is_string());

    let status = outbox.run(&["status"]).object();
    assert_eq!(status["routes"][0]["relays"][0]["label"].as_str(), Some(&*label));
    assert_eq!(status["routes"][0]["paused"]["topics"][0], "orders");
    let top = outbox.run(&["top"]).object();
    assert_eq!(top["routes"][0]["pending"], 1, "once where no terminal is: {top}");
    let table = outbox.run(&["top", "--table"]).stdout;
    assert!(table.contains("relays shop-relay (256)") && table.contains("topics: orders"), "{table}");
    let story = outbox.run(&["explain", "orders", "a"]).ends(FINDINGS).object();
    assert_eq!(story["owner"]["label"].as_str(), Some(&*label));
    assert_eq!((&story["owner"]["epoch"], &story["paused"]), (&1.into(), &true.into()));
    assert!(story["why"].as_str().unwrap().contains("paused"), "{story}");
    let story = outbox.run(&["explain", "orders", "a", "--table"]).ends(FINDINGS).stdout;
    assert!(story.contains(&format!("{label} ({relay})")) && story.contains("outbox resume"), "{story}");
}

/// An operator who has forgotten a pause begins here, before the messages are old.
#[test]
fn a_pause_is_found_with_the_command_that_ends_it() {
    let outbox = Outbox::sqlite();
    let found = |command: &str| {
        let findings = outbox.run(&[command, "--table"]).ends(FINDINGS).stdout;
        findings.lines().filter(|line| line.contains("paused") || line.contains("resume")).collect::<String>()
    };
    outbox.run(&["pause", "--route", "default"]).ends(DONE);
    outbox.run(&["pause", "--route", "inbox/billing", "--topic", "new orders"]).ends(DONE);
    for command in ["status", "doctor"] {
        let found = found(command);
        for part in [
            "! route default: paused; nothing is published",
            "remedy: `outbox resume --route default` ends the pause; `outbox audit --route default` shows who",
            "! route inbox/billing: paused, and not handled: topic new orders",
            "`outbox resume --route inbox/billing --topic 'new orders'`",
        ] {
            assert!(found.contains(part), "{part}: {found}");
        }
    }
    outbox.run(&["resume", "--route", "inbox/billing", "--topic", "new orders"]).ends(DONE);
    outbox.run(&["resume", "--route", "default"]).ends(DONE);
    outbox.run(&["status"]).ends(DONE);
}

/// The broker may answer the operator's machine, and not the relay's.
#[test]
fn a_relay_that_does_not_reach_its_broker_is_found() {
    let outbox = Outbox::sqlite();
    world::cut_off(&outbox, "shop-relay", "default");
    // This one gives way to a newer program.
    world::cut_off(&outbox, "billing", "inbox/billing");
    let status = outbox.run(&["status", "--route", "default", "--route", "inbox/billing"]).ends(FINDINGS);
    let findings = status.object()["findings"].clone();
    assert_eq!((findings.as_array().unwrap().len(), &findings[0]["code"]), (1, &"unreachable".into()));
    let text = findings[0]["text"].as_str().unwrap();
    let begin = "route default: the broker is unavailable to the relay shop-relay (for over ";
    assert!(text.starts_with(begin) && text.ends_with("s)"), "{text}");
    // It may be full, or refuse the relay: only the relay knows.
    let remedy = findings[0]["remedy"].as_str().unwrap();
    assert!(remedy.contains("/health") && remedy.contains("full"), "{remedy}");
    outbox.publish(&["orders", "--key", "a"]);
    let story = outbox.run(&["explain", "orders", "a"]).ends(FINDINGS).object();
    assert_eq!(story["state"], "waits");
    assert!(story["why"].as_str().unwrap().contains("does not reach the broker"), "{story}");
    assert_eq!(story["remedies"][0]["command"], "outbox doctor");
}

#[test]
fn relays_with_other_settings_are_found() {
    let outbox = Outbox::sqlite();
    world::heartbeat(&outbox, "shop-1", 7);
    world::heartbeat(&outbox, "shop-2", 7);
    outbox.run(&["status"]).ends(DONE);
    world::heartbeat(&outbox, "old", 8);
    for command in ["status", "doctor"] {
        let found = outbox.run(&[command]).ends(FINDINGS).object()["findings"].to_string();
        assert!(found.contains("\"disagreeing\"") && found.contains(": old, shop-1, shop-2"), "{found}");
    }
}

#[test]
fn operations_are_recorded_under_the_name_of_the_user() {
    let outbox = Outbox::sqlite();
    let id = outbox.publish(&["orders", "--key", "a", "--type", "poison"]);
    world::relay(&outbox, Exhausted::DeadLetter, |backlog| backlog.dead == 1);
    outbox.run(&["purge", &id, "--dry-run"]).ends(DONE);
    outbox.run(&["release", "orders", "a"]).ends(FAILED);
    outbox.run(&["purge", &id]).ends(USAGE);
    outbox.run(&["requeue", "01a2158c-0000-7000-8000-000000000000"]).ends(FAILED);
    assert_eq!(recorded(&outbox, &[]), [""; 0], "nothing was done");

    outbox.run(&["--as", "ann", "hold", "orders", "a"]).ends(DONE);
    outbox.run(&["purge", &id, "--yes"]).ends(DONE);
    assert_eq!(recorded(&outbox, &[]), ["hold", "purge"]);
    assert_eq!(recorded(&outbox, &["--message", &id]), ["purge"]);
    assert_eq!(recorded(&outbox, &["--key", "a"]), ["hold"]);
    let entries = outbox.run(&["audit"]).ends(DONE).objects();
    assert_eq!((&entries[0]["operation"], &entries[1]["actor"]), (&"purge".into(), &"ann".into()));
    assert_eq!((&entries[0]["messages"], &entries[0]["ids"][0]), (&1.into(), &id.into()));
    assert!(!entries[0]["actor"].as_str().unwrap().is_empty(), "the user of this process");
    let table = outbox.run(&["audit", "--table"]).ends(DONE).stdout;
    assert!(table.contains("ACTOR") && table.contains("ann"), "{table}");
    let first = outbox.run(&["audit", "--limit", "1"]).ends(DONE).says("continue with --offset 1");
    assert_eq!(first.objects().len(), 1);
}

#[test]
fn a_dead_letter_is_corrected_and_sent_again() {
    let outbox = Outbox::sqlite();
    let id = outbox.publish(&["orders", "--key", "a", "--type", "poison", "--data", r#"{"n":1}"#]);
    world::relay(&outbox, Exhausted::DeadLetter, |backlog| backlog.dead == 1);
    for (wrong, words) in
        [(r#"{"typo":1}"#, "unknown field"), ("{}", "changes nothing"), (r#"{"topic":""}"#, "topic is empty")]
    {
        outbox.run(&["requeue", &id, "--edit", wrong]).ends(USAGE).says(words);
    }
    outbox.run(&["requeue", &id, "--edit", r#"{"type":""}"#]).ends(FAILED).says("event type");
    outbox.run(&["requeue", "--edit", "{}"]).ends(USAGE);
    let unknown = "01a2158c-0000-7000-8000-000000000000";
    outbox.run(&["requeue", unknown, "--edit", r#"{"type":"x"}"#]).ends(FAILED).says("no dead letter");
    let edit = r#"{"type":"order.placed","payload":{"n":2},"key":"b"}"#;
    let dry = outbox.run(&["requeue", &id, "--edit", edit, "--dry-run"]).ends(DONE).object();
    assert_eq!(dry["edited"].as_array().unwrap().len(), 3);
    assert_eq!(outbox.run(&["dead", "list"]).objects().len(), 1, "a dry run does nothing");
    outbox.run_with(&["requeue", &id, "--edit", "-"], edit).ends(DONE);
    let message = outbox.run(&["messages", "show", &id]).ends(DONE).object();
    assert_eq!((&message["type"], &message["key"]), (&"order.placed".into(), &"b".into()));
    assert_eq!(message["payload"]["n"], 2);
    assert_eq!(recorded(&outbox, &[]), ["requeue_edited"]);
    let entry = outbox.run(&["audit"]).ends(DONE).object();
    assert!(!entry.to_string().contains("\"n\""), "no payload is recorded: {entry}");
}

#[test]
fn two_operators_on_one_key_take_one_message_each() {
    let outbox = Outbox::sqlite();
    outbox.publish(&["orders", "--key", "a", "--type", "poison"]);
    for _ in 0..3 {
        outbox.publish(&["orders", "--key", "a"]);
    }
    world::relay(&outbox, Exhausted::Hold, |backlog| backlog.parked == 4);
    let skip = |name: &'static str| outbox.run(&["--as", name, "skip", "orders", "a", "--yes"]);
    let runs = thread::scope(|scope| {
        let runs = ["ann", "bob"].map(|name| scope.spawn(move || skip(name)));
        runs.map(|run| run.join().unwrap())
    });
    let skipped: Vec<String> =
        runs.map(|run| run.ends(DONE).object()["skipped"].as_str().unwrap().to_owned()).into();
    assert_ne!(skipped[0], skipped[1]);
    for (name, id) in ["ann", "bob"].iter().zip(&skipped) {
        let entry = outbox.run(&["audit", "--message", id]).ends(DONE).object();
        assert_eq!(entry["actor"].as_str(), Some(*name));
    }
}

#[test]
fn what_is_committed_and_delivered_is_followed() {
    let outbox = Outbox::sqlite();
    for _ in 0..3 {
        outbox.publish(&["orders", "--key", "a"]);
    }
    let events = outbox.run(&["tail", "--once", "-n", "2"]).ends(DONE).objects();
    assert_eq!(events.len(), 2, "the newest");
    assert!(events.iter().all(|event| event["event"] == "committed" && event["topic"] == "orders"));
    assert_eq!(outbox.run(&["tail", "--once", "--topic", "customers"]).ends(DONE).objects().len(), 0);
}

#[cfg(unix)]
mod following {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command};

    use super::*;
    use crate::outbox::until;

    fn tail(outbox: &Outbox) -> Child {
        let mut command = outbox.command(&["tail", "--every", "20ms", "-n", "0"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn ended(mut child: Child) -> (Option<i32>, String) {
        let mut code = None;
        until("the program has ended", || {
            code = child.try_wait().unwrap();
            code.is_some()
        });
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
        (code.and_then(|code| code.code()), said)
    }

    #[test]
    fn a_message_is_told_when_it_is_committed_and_when_it_is_delivered() {
        let outbox = Outbox::sqlite();
        let mut child = tail(&outbox);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The first look may be before or after the append, and -n 0 leaves out what it sees: so
        // appends continue until one is reported.
        let mut told = None;
        let told_event = thread::scope(|scope| {
            let line = scope.spawn(|| lines.next().unwrap().unwrap());
            until("a message is told", || {
                outbox.publish(&["orders", "--key", "a"]);
                line.is_finished()
            });
            line.join().unwrap()
        });
        let event: serde_json::Value = serde_json::from_str(&told_event).unwrap();
        assert_eq!(event["event"], "committed");
        told.replace(event["id"].as_str().unwrap().to_owned());
        world::relay(&outbox, Exhausted::DeadLetter, |backlog| backlog.pending == 0);
        let told = told.unwrap();
        loop {
            let event: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            if event["event"] == "delivered" && event["id"].as_str() == Some(&told) {
                break;
            }
        }
        let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(killed.success());
        let (code, said) = ended(child);
        assert_eq!((code, said.contains("panicked")), (DONE, false), "{said}");
    }

    #[test]
    fn a_reader_that_goes_away_ends_it() {
        let outbox = Outbox::sqlite();
        let mut child = tail(&outbox);
        drop(child.stdout.take());
        // It finds out when it has something to say.
        until("the program has ended", || {
            outbox.publish(&["orders", "--key", "a"]);
            child.try_wait().unwrap().is_some()
        });
        let (code, said) = ended(child);
        assert_eq!((code, &*said), (DONE, ""), "a closed pipe is no error");
    }
}
