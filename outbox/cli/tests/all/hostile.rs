//! Text that others wrote: it reaches the terminal as text, whatever it is.

use outbox::Exhausted;

use crate::outbox::Outbox;
use crate::world;

/// Returns the characters that a terminal obeys, line breaks of the output aside.
fn obeyed(text: &str) -> Vec<char> {
    let is_obeyed = |char: &char| {
        (char.is_control() && *char != '\n')
            || ['\u{202e}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{2028}', '\u{e0041}'].contains(char)
    };
    text.chars().filter(is_obeyed).collect()
}

#[test]
fn hostile_text_in_every_field_is_escaped_in_every_output() {
    let outbox = Outbox::sqlite();
    let evil = "a\u{202e}b\u{200b}\u{2066}c\u{feff}\u{2028}\u{e0041}";
    let payload = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\r\u{202e}";
    let arguments = [
        evil,
        "--key",
        evil,
        "--type",
        "poison",
        "--content-type",
        "text/plain",
        "--data",
        payload,
        "--header",
        &format!("x={evil}"),
    ];
    let id = outbox.publish(&arguments);
    let follower = outbox.publish(&[evil, "--key", evil, "--type", evil]);
    outbox.publish(&[evil, "--key", "later", "--type", evil, "--due", "1h"]);
    let error = format!("{payload} drop table\n{}", "long ".repeat(200));
    world::relay_saying(&outbox, Exhausted::Hold, &error, |backlog| backlog.parked == 2);
    let skip = outbox.run(&["skip", evil, evil, "--yes", "--table"]);
    assert_eq!(skip.code, Some(0), "{skip:#?}");

    outbox.run(&["--as", payload, "pause", "--route", "default", "--topic", evil]);
    let waiting = outbox.publish(&[evil, "--key", "waits", "--type", evil]);

    let commands: [&[&str]; 20] = [
        &["dead", "list"],
        &["dead", "show", &id],
        &["dead", "show", &id, "--payload", "text"],
        &["keys", "list"],
        &["keys", "show", evil, evil],
        &["explain", evil, evil],
        &["parked", "list"],
        &["parked", "show", &follower],
        &["scheduled", "list"],
        &["requeue", "--all-routes", "--dry-run"],
        &["status"],
        &["messages", "list"],
        &["messages", "show", &waiting],
        &["topics"],
        &["routes"],
        &["relays", "--buckets"],
        &["top"],
        &["audit"],
        &["tail", "--once"],
        &["requeue", &id, "--edit", r#"{"key":"\u202e\u200b"}"#, "--dry-run"],
    ];
    for command in commands {
        for form in ["--table", "--json"] {
            let run = outbox.run(&[command, &[form]].concat());
            let seen = [obeyed(&run.stdout), obeyed(&run.stderr)].concat();
            assert!(seen.is_empty(), "{command:?} {form}: {seen:?} in {run:#?}");
            assert!(!run.stdout.is_empty(), "{command:?} {form}: {run:#?}");
        }
    }
    // JSON means what was written.
    let letter = outbox.run(&["dead", "show", &id]).object();
    assert_eq!(letter["key"].as_str(), Some(evil));
    assert_eq!(letter["payload_text"].as_str(), Some(payload));
    assert!(letter["last_failure"]["message"].as_str().unwrap().starts_with(payload), "{letter}");
    // A table stays narrow.
    let table = outbox.run(&["dead", "list", "--table"]).stdout;
    assert!(table.lines().all(|line| line.chars().count() <= 200), "{table}");
    // Words of the user's own are said back escaped.
    let run = outbox.run(&["release", evil, "none"]);
    assert!(obeyed(&run.stderr).is_empty(), "{run:#?}");
}
