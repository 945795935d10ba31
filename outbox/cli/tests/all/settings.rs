//! Settings: where they come from, and what is said about wrong ones.

use crate::outbox::{DONE, FAILED, FINDINGS, Outbox, USAGE, bare, end};

#[test]
fn arguments_are_over_the_environment_and_that_is_over_the_file() {
    let outbox = Outbox::sqlite();
    let file = outbox.folder.path().join("outbox.toml");
    std::fs::write(&file, format!("store = {:?}\n", outbox.store)).unwrap();
    let file = file.to_str().unwrap();
    end(bare(&["check", "--config", file]), "").ends(DONE);
    let mut command = bare(&["check", "--config", file]);
    command.env("OUTBOX_STORE", "sqlite:absent.db");
    end(command, "").ends(FAILED).says("absent.db");
    let mut command = bare(&["check", "--store", &outbox.store]);
    command.env("OUTBOX_STORE", "sqlite:absent.db").env("OUTBOX_CONFIG", file);
    end(command, "").ends(DONE);
}

#[test]
fn an_unknown_entry_is_refused_with_those_that_are_known() {
    let outbox = Outbox::sqlite();
    let file = outbox.folder.path().join("outbox.toml");
    for (text, words) in [
        ("stor = 'x'", "unknown field `stor`"),
        ("[relay]\nleese = '30s'", "unknown field `leese`"),
        ("[relay]\nlease = 30", "invalid type"),
        ("[relay]\nlease = 'long'", "invalid settings: relay.lease: \"long\" is not a duration"),
        ("store = ", "outbox.toml:1: "),
    ] {
        std::fs::write(&file, text).unwrap();
        outbox.run(&["check", "--config", "outbox.toml"]).ends(USAGE).says(words);
    }
    outbox.run(&["check", "--config", "absent.toml"]).ends(USAGE).says("could not read absent.toml");
    outbox.run(&["check", "--set", "relay.leese=30s"]).ends(USAGE).says("unknown field `leese`");
    outbox.run(&["check", "--set", "relay.lease"]).ends(USAGE).says("NAME=VALUE");
    let mut command = outbox.command(&["check"]);
    command.env("OUTBOX_RELAY_LEESE", "30s");
    end(command, "").ends(USAGE).says("unknown field `leese`");
}

/// Refused before anything starts, with the names of both.
#[test]
fn entries_that_contradict_each_other_are_refused() {
    let outbox = Outbox { transport: Some("redis://127.0.0.1:1".to_owned()), ..Outbox::sqlite() };
    let proxy = "proxy_header = 'x-user'\nproxies = ['10.0.0.0/8']";
    let cases: [(&str, &str, &[&str]); 10] = [
        ("relay", "[relay]\nlease = '4s'", &["lease (4s)", "publish_timeout"]),
        ("relay", "[relay]\nmax_in_flight = 1\nfetch_batch = 2", &["max_in_flight (1)", "fetch_batch (2)"]),
        ("relay", "[relay]\noutage_max_delay = '1ms'", &["outage_max_delay (1ms)", "outage_first_delay"]),
        ("relay", "[routes]\ndefault = 'redis://127.0.0.1:1'", &["default"]),
        ("relay", "store = 'sqlite:a'\nstore = 'sqlite:b'", &["outbox.toml:2", "duplicate key"]),
        ("relay", "[relay]\nlease = '30s'\n[relay]\nlease = '40s'", &["outbox.toml:3", "duplicate key"]),
        (
            "dashboard",
            &format!("[dashboard]\n{proxy}\nreaders.b = 'reader-secret-1'"),
            &["both users and a proxy_header"],
        ),
        ("dashboard", "[dashboard]\nproxy_header = 'x-user'", &["prox"]),
        ("dashboard", "[dashboard]\nlogin = 'password'", &["user"]),
        ("dashboard", "[dashboard]\nlogin = 'kerberos'", &["token or password"]),
    ];
    for (command, text, said) in cases {
        std::fs::write(outbox.folder.path().join("outbox.toml"), text).unwrap();
        let run = outbox.run(&[command, "--config", "outbox.toml", "--http", "0"]).ends(USAGE);
        said.iter().fold(run, |run, words| run.says(words));
    }
    outbox.run(&["status", "--json", "--table"]).ends(USAGE).says("cannot be used with");
    outbox.run(&["requeue", "--route", "a", "--all-routes"]).ends(USAGE).says("cannot be used with");
    outbox.run(&["relay", "--within", "1s"]).ends(USAGE).says("--once");
}

#[test]
fn doctor_finds_settings_that_do_not_fit() {
    let outbox = Outbox::sqlite();
    let mut command = outbox.command(&["doctor", "--set", "relay.lease=4s"]);
    command.env("OUTBOX_RELAY_FETCH_BATCH", "0");
    let found = end(command, "").ends(FINDINGS).object();
    let text = found["findings"].to_string();
    assert!(text.contains("lease (4s) is too short") && text.contains("fetch_batch is 0"), "{text}");
}

#[test]
fn a_url_that_is_none_is_refused_and_no_secret_of_it_is_shown() {
    let secret = "hunter2-s3cret";
    let urls = [
        format!("postgres://app:{secret}@127.0.0.1:1/shop"),
        format!("mysql://app:{secret}@127.0.0.1:1/shop"),
        format!("mongodb://app:{secret}@127.0.0.1:1/shop?serverSelectionTimeoutMS=500"),
        format!("oracle://app:{secret}@db/shop"),
        format!("postgres://app:{secret}@[::bad/shop"),
        format!("app:{secret}@db"),
        "shop.db".to_owned(),
        "sqlite::memory:".to_owned(),
        String::new(),
    ];
    for url in &urls {
        for command in ["check", "status", "doctor"] {
            let run = end(bare(&[command, "--store", url, "--log", "trace"]), "");
            assert!([FAILED, USAGE, FINDINGS].contains(&run.code), "{url}: {run:#?}");
            assert!(!format!("{run:?}").contains(secret), "{url}: {run:#?}");
            assert!(!(run.stderr.is_empty() && run.stdout.is_empty()), "{url}");
        }
    }
    let help = {
        let mut command = bare(&["status", "--help"]);
        command.env("OUTBOX_STORE", &urls[0]);
        end(command, "").ends(DONE)
    };
    assert!(!help.stdout.contains(secret), "{help:#?}");

    let outbox = Outbox::sqlite();
    for url in [
        format!("redis://:{secret}@127.0.0.1:1"),
        format!("amqp://app:{secret}@127.0.0.1:1"),
        format!("pigeon://app:{secret}@loft"),
    ] {
        for command in ["check", "doctor"] {
            let run = outbox.run(&[command, "--transport", &url, "--log", "trace"]);
            assert!(run.code != DONE && !format!("{run:?}").contains(secret), "{url}: {run:#?}");
        }
    }
}

#[test]
fn a_missing_url_is_said_with_the_ways_to_give_it() {
    let run = end(bare(&["status"]), "").ends(USAGE);
    run.says("--store").says("OUTBOX_STORE").says("--config");
    Outbox::sqlite().run(&["relay", "--once"]).ends(USAGE).says("OUTBOX_TRANSPORT");
}

/// Told before anything connects, all problems at once.
#[test]
fn wrong_settings_of_a_transport_are_wrong_usage() {
    let outbox = Outbox { transport: Some("redis://127.0.0.1:1".to_owned()), ..Outbox::sqlite() };
    let run = outbox.run(&["check", "--set", "redis.units=999", "--set", "redis.prefix=a{b"]);
    run.ends(USAGE).says("units is 999; make it 1 to 256").says("prefix is \"a{b\"");
}
