//! Commands that look: `migrate`, `check`, `status`, `explain`, lists.

use outbox::Exhausted;

use crate::outbox::{DONE, FAILED, FINDINGS, Outbox, USAGE, bare, end};
use crate::world;

#[test]
fn migrate_creates_the_tables_which_check_accepts() {
    let outbox = Outbox::missing();
    outbox.run(&["migrate"]).ends(DONE);
    outbox.run(&["migrate"]).ends(DONE);
    let checked = outbox.run(&["check"]).ends(DONE).object();
    assert_eq!((checked["checked"].as_str(), checked["kind"].as_str()), (Some("store"), Some("sqlite")));
}

#[test]
fn a_mistyped_path_leaves_no_file_behind() {
    let outbox = Outbox::missing();
    for arguments in [&["check"][..], &["status"], &["dead", "list"], &["publish", "orders"]] {
        outbox
            .run(arguments)
            .ends(FAILED)
            .says("does not exist; check the path, or create it with `outbox migrate`");
    }
    assert_eq!(outbox.folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_database_without_tables_is_refused_with_the_remedy() {
    let outbox = Outbox::missing();
    std::fs::write(outbox.folder.path().join("shop.db"), "").unwrap();
    outbox.run(&["check"]).ends(FAILED).says("create or upgrade the tables with `outbox migrate`");
    let found = outbox.run(&["doctor"]).ends(FINDINGS).object();
    let codes: Vec<_> = found["findings"].as_array().unwrap().iter().map(|it| it["code"].clone()).collect();
    assert!(codes.contains(&"schema".into()), "{found}");
    let finding =
        &found["findings"].as_array().unwrap()[codes.iter().position(|code| code == "schema").unwrap()];
    assert_eq!(finding["remedy"], "create or upgrade the tables with `outbox migrate`");
    assert!(!finding["text"].as_str().unwrap().contains("remedy"), "it has one remedy: {finding}");
}

#[test]
fn statements_are_printed_without_a_connection() {
    for url in ["sqlite:none.db", "postgres://nowhere.invalid/x", "mysql://nowhere.invalid/x"] {
        let run = end(bare(&["migrate", "--print", "--table", "--store", url]), "").ends(DONE);
        assert!(run.stdout.starts_with("-- outbox 1: ") && run.stdout.contains("outbox_message"), "{run:#?}");
        let run = end(bare(&["migrate", "--print", "--json", "--store", url]), "").ends(DONE);
        assert_eq!(run.objects()[0]["version"], 1);
    }
    let mongodb = end(bare(&["migrate", "--print", "--store", "mongodb://nowhere.invalid/x"]), "");
    mongodb.ends(USAGE).says("made by `outbox migrate`");
}

#[test]
fn status_counts_what_waits_and_ends_with_findings_only_if_there_are_any() {
    let outbox = Outbox::sqlite();
    let status = outbox.run(&["status"]).ends(DONE).object();
    assert_eq!((&status["healthy"], &status["routes"][0]["pending"]), (&true.into(), &0.into()));
    let text = outbox.run(&["status", "--table"]).ends(DONE).stdout;
    assert!(text.ends_with("\nhealthy, but no relay is running\n"), "{text}");

    outbox.publish(&["orders", "--key", "a"]);
    outbox.publish(&["orders", "--due", "2h"]);
    let route = outbox.backlog("default");
    assert_eq!((&route["pending"], &route["scheduled"]), (&1.into(), &1.into()));
    assert!(route["oldest_age_seconds"].as_f64().is_some(), "{route}");

    // No relay runs: it is found as soon as messages may not be that old.
    let status = outbox.run(&["status", "--max-age", "0s"]).ends(FINDINGS).object();
    assert_eq!(status["unserved"][0]["route"], "default");
    assert_eq!(status["findings"][0]["code"], "unserved", "{status}");
    let table = outbox.run(&["status", "--max-age", "0s", "--table"]).ends(FINDINGS).stdout;
    assert!(table.starts_with("ROUTE") && table.contains("remedy: start a relay"), "{table}");
}

#[test]
fn a_held_key_is_explained_with_what_to_do() {
    let outbox = Outbox::sqlite();
    let first = outbox.publish(&["orders", "--key", "order 1", "--type", "poison"]);
    outbox.publish(&["orders", "--key", "order 1"]);
    world::relay(&outbox, Exhausted::Hold, |backlog| backlog.held_keys == 1 && backlog.parked == 2);

    let story = outbox.run(&["explain", "orders", "order 1"]).ends(FINDINGS).object();
    assert_eq!((&story["state"], &story["failing"]["parked"]), (&"held".into(), &2.into()));
    assert_eq!(story["failing"]["last_failure"]["class"], "schema");
    assert_eq!(story["first_parked"][0]["id"].as_str(), Some(&*first));
    assert_eq!(story["remedies"][0]["command"], "outbox release orders 'order 1' --route default");
    let text = outbox.run(&["keys", "show", "orders", "order 1", "--table"]).ends(FINDINGS).stdout;
    for part in ["held", "no such column [schema]", "position", "outbox skip orders 'order 1'"] {
        assert!(text.contains(part), "{part}: {text}");
    }

    let keys = outbox.run(&["keys", "list"]).ends(DONE).objects();
    assert_eq!((keys.len(), &keys[0]["key"]), (1, &"order 1".into()));
    let parked = outbox.run(&["parked", "list", "--key", "order 1"]).ends(DONE).objects();
    assert_eq!((parked.len(), parked[0]["id"].as_str()), (2, Some(&*first)));

    outbox.run(&["explain", "orders", "another", "--table"]);
    let story = outbox.run(&["explain", "orders", "another"]).object();
    assert_eq!(story["state"], "flows");
}

#[test]
fn a_key_without_messages_is_explained_as_such() {
    let outbox = Outbox::sqlite();
    outbox.publish(&["orders", "--key", "a"]);
    let story = outbox.run(&["explain", "orders", "b"]).ends(DONE).object();
    assert_eq!(story["why"], "No message of this key waits: it had none, or all were delivered.");
    assert_eq!(story["remedies"], serde_json::json!([]));
    outbox.run(&["explain", "orders", "a"]).ends(FINDINGS);
}

#[test]
fn lists_are_paged_and_filtered() {
    let outbox = Outbox::sqlite();
    for number in 0..7 {
        let topic = if number % 2 == 0 { "orders" } else { "mails" };
        outbox.publish(&[topic, "--key", &format!("k{number}"), "--type", "poison"]);
    }
    world::relay(&outbox, Exhausted::DeadLetter, |backlog| backlog.dead == 7);
    assert_eq!(outbox.run(&["dead", "list"]).ends(DONE).objects().len(), 7);
    let ids = |options: &[&str]| {
        let listed = outbox.run(&[&["dead", "list"], options].concat()).ends(DONE).objects();
        listed.iter().map(|letter| letter["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let mut backwards = ids(&[]);
    backwards.reverse();
    assert_eq!(ids(&["--newest"]), backwards);
    assert_eq!(ids(&["--newest", "--limit", "2", "--offset", "1"]), backwards[1..3]);
    let page = outbox.run(&["dead", "list", "--limit", "3", "--offset", "2"]).ends(DONE);
    assert_eq!(page.objects().len(), 3);
    page.says("continue with --offset 5");
    let rest = outbox.run(&["dead", "list", "--limit", "3", "--offset", "5"]).ends(DONE);
    assert_eq!((rest.objects().len(), rest.stderr.as_str()), (2, ""));
    let of =
        |arguments: &[&str]| outbox.run(&[&["dead", "list"], arguments].concat()).ends(DONE).objects().len();
    assert_eq!((of(&["--topic", "mails"]), of(&["--key", "k2"])), (3, 1));
    assert_eq!((of(&["--since", "1h"]), of(&["--before", "1h"]), of(&["--route", "other"])), (7, 0, 0));
    let table = outbox.run(&["dead", "list", "--table"]).ends(DONE).stdout;
    assert!(table.starts_with("ID ") && table.lines().count() >= 8 && table.contains("exhausted"), "{table}");
    assert_eq!(outbox.run(&["history", "list", "--table"]).ends(DONE).stdout, "none\n");
}

#[test]
fn a_message_is_shown_in_the_form_that_is_asked_for() {
    let outbox = Outbox::sqlite();
    let data = r#"{"total":42}"#;
    let arguments = ["orders", "--key", "a", "--type", "poison", "--data", data, "--header", "tenant=acme"];
    let id = outbox.publish(&arguments);
    world::relay(&outbox, Exhausted::DeadLetter, |backlog| backlog.dead == 1);
    let show = |form: &str| outbox.run(&["dead", "show", &id, "--payload", form]).ends(DONE).object();
    let letter = show("auto");
    assert_eq!((&letter["payload"]["total"], &letter["headers"]["tenant"]), (&42.into(), &"acme".into()));
    assert_eq!((&letter["reason"], &letter["attempts"]), (&"exhausted".into(), &1.into()));
    assert_eq!(show("text")["payload_text"], data);
    assert_eq!(show("hex")["payload_hex"], "7b22746f74616c223a34327d");
    let text = outbox.run(&["dead", "show", &id, "--table"]).ends(DONE).stdout;
    assert!(text.contains("tenant: acme") && text.contains("\"total\": 42"), "{text}");
}

#[test]
fn what_is_not_there_is_said_with_its_id() {
    let outbox = Outbox::sqlite();
    let id = "00000000-0000-7000-8000-000000000001";
    for view in ["dead", "parked", "scheduled", "history"] {
        let run = outbox.run(&[view, "show", id]).ends(FAILED).says(id);
        assert!(run.stdout.is_empty(), "{run:#?}");
    }
    for action in ["requeue", "purge", "replay", "cancel"] {
        outbox.run(&[action, id, "--yes"]).ends(FAILED).says(id);
    }
    for action in ["release", "skip", "discard"] {
        outbox.run(&[action, "orders", "no-such-key", "--yes"]).ends(FAILED).says("neither failing nor held");
    }
    outbox.run(&["dead", "show", "not-an-id"]).ends(USAGE).says("not-an-id");
}

#[test]
fn a_key_that_waits_on_two_routes_is_shown_on_both_and_changed_on_the_one_that_is_named() {
    let outbox = Outbox::sqlite();
    for route in ["inbox/billing", "mails"] {
        outbox.run(&["hold", "orders", "a", "--route", route]).ends(DONE);
    }
    let status = outbox.run(&["status"]).ends(FINDINGS).object();
    let routes: Vec<&str> =
        status["routes"].as_array().unwrap().iter().map(|it| it["route"].as_str().unwrap()).collect();
    assert_eq!(routes.len(), 3, "{status}");
    assert!(routes.contains(&"inbox/billing") && routes.contains(&"mails"), "{status}");
    assert_eq!(outbox.run(&["explain", "orders", "a"]).ends(FINDINGS).objects().len(), 2);
    outbox.run(&["release", "orders", "a"]).ends(USAGE).says("waits on several routes");
    outbox.run(&["release", "orders", "a", "--route", "mails"]).ends(DONE);
    let states: Vec<_> =
        outbox.run(&["keys", "list"]).objects().iter().map(|it| it["state"].clone()).collect();
    assert!(states.contains(&"held".into()) && states.len() <= 2, "{states:?}");
}

/// However many dead letters and failing keys a route has, and however old they are.
#[test]
fn a_route_hides_no_other_one() {
    let outbox = Outbox::sqlite();
    world::sql(
        &outbox,
        "with recursive n (n) as (select 1 union all select n + 1 from n where n < 2000) \
         insert into outbox_dead (position, id, route, topic, order_key, event_type, schema_version, content_type, headers, payload, \
                                  occurred_at, appended_at, reason, attempts, died_at) \
         select n, randomblob(16), case when n < 2000 then 'default' else 'inbox/billing' end, 'orders', n, 'x', 1, 't', x'', x'', 0, 0, 'exhausted', 1, n \
         from n; \
         with recursive n (n) as (select 1 union all select n + 1 from n where n < 2000) \
         insert into outbox_key (route, topic, key, bucket, version, held, since) \
         select case when n < 2000 then 'default' else 'mails' end, 'orders', n, 0, n, 1, n from n",
    );
    for command in ["status", "doctor"] {
        let found = outbox.run(&[command]).ends(FINDINGS).object()["findings"].to_string();
        for text in [
            "route default: waiting for an operator: 1999 dead letters",
            "route default: waiting for an operator: 1999 held keys",
            "route inbox/billing: waiting for an operator: 1 dead letter",
            "route mails: waiting for an operator: 1 held key",
        ] {
            assert!(found.contains(text), "no {text:?}: {found}");
        }
    }
    // One without a problem is shown if it is asked for.
    world::sql(&outbox, "delete from outbox_dead; delete from outbox_key where route = 'default'");
    let status = outbox.run(&["status"]).ends(FINDINGS).object();
    let routes: Vec<_> = status["routes"].as_array().unwrap().iter().map(|it| it["route"].clone()).collect();
    assert_eq!(routes, ["default", "mails"]);
}

#[test]
fn a_waiting_message_is_found_from_either_end_or_may_still_be_between() {
    let outbox = Outbox::sqlite();
    world::sql(
        &outbox,
        "with recursive n (n) as (select 1 union all select n + 1 from n where n < 20001) \
         insert into outbox_message (id, topic, key, event_type) \
         select unhex(printf('0000000000007000800000000000%04x', n)), 'orders', 'a', 'x' from n",
    );
    let id = |number: u32| format!("00000000-0000-7000-8000-00000000{number:04x}");
    for found in [1, 10_000, 10_002, 20_001] {
        let shown = outbox.run(&["messages", "show", &id(found)]).ends(DONE).object();
        assert_eq!(shown["position"], found);
    }
    outbox.run(&["messages", "show", &id(10_001)]).ends(FAILED).says("it may be one of them");
    world::sql(&outbox, "delete from outbox_message where position <= 1000");
    outbox.run(&["messages", "show", &id(10_001)]).ends(DONE);
    outbox.run(&["messages", "show", &id(1)]).ends(FAILED).says("it neither waits nor is dead");
}

/// A figure that stops at the counting limit says so.
#[test]
fn a_figure_that_is_a_lower_bound_is_shown_as_one() {
    let outbox = Outbox::sqlite();
    world::sql(
        &outbox,
        "with recursive n (n) as (select 1 union all select n + 1 from n where n < 10001) \
         insert into outbox_key (route, topic, key, bucket, version, held, since) \
         select 'default', 'orders', n, 0, n, 1, n from n",
    );
    let limited = ["status", "--set", "sqlite.counting_limit=10000"];
    let status = outbox.run(&limited).ends(FINDINGS).object();
    assert_eq!(
        (&status["routes"][0]["held_keys"], &status["routes"][0]["counting_limit"]),
        (&10_000.into(), &10_000.into())
    );
    let text = outbox.run(&[&limited[..], &["--table"]].concat()).ends(FINDINGS).stdout;
    assert!(text.contains(" 10000+ ") && text.contains("at least 10000 held keys"), "{text}");
    let text = outbox.run(&["status", "--table"]).ends(FINDINGS).stdout;
    assert!(text.contains(" 10001 ") && text.contains("operator: 10001 held keys"), "{text}");
}
