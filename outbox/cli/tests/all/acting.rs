//! Commands that change something.

use std::collections::BTreeSet;
use std::thread;

use outbox::Exhausted;
use serde_json::json;

use crate::backup::sql;
use crate::outbox::{DONE, FAILED, FINDINGS, Outbox, USAGE};
use crate::world;

/// Returns an outbox with so many dead letters, and their ids.
fn with_dead_letters(number: u64) -> (Outbox, Vec<String>) {
    let outbox = Outbox::sqlite();
    let ids = (0..number)
        .map(|number| outbox.publish(&["orders", "--key", &format!("k{number}"), "--type", "poison"]))
        .collect();
    world::relay(&outbox, Exhausted::DeadLetter, |backlog| backlog.dead == number);
    (outbox, ids)
}

/// Returns an outbox with one held key, behind whose first message others wait.
fn with_held_key(messages: u64) -> Outbox {
    let outbox = Outbox::sqlite();
    outbox.publish(&["orders", "--key", "a", "--type", "poison"]);
    for _ in 1..messages {
        outbox.publish(&["orders", "--key", "a"]);
    }
    world::relay(&outbox, Exhausted::Hold, |backlog| backlog.parked == messages);
    outbox
}

#[test]
fn dead_letters_are_requeued_by_id_and_by_filter() {
    let (outbox, ids) = with_dead_letters(3);
    let tried =
        outbox.run(&["requeue", &ids[0], "--dry-run"]).ends(DONE).says("1 dead letter would be requeued");
    assert_eq!(tried.object()["id"].as_str(), Some(&*ids[0]));
    assert_eq!(outbox.backlog("default")["dead_letters"], 3, "a dry run does nothing");

    let done = outbox.run(&["requeue", &ids[0]]).ends(DONE).object();
    assert_eq!(done, json!({ "operation": "requeue", "done": 1, "gone": 0 }));
    outbox.run(&["requeue"]).ends(USAGE).says("needs a route");
    outbox.run(&["requeue", "--topic", "orders"]).ends(USAGE).says("--all-routes");
    assert_eq!(outbox.run(&["requeue", "--route", "other"]).ends(DONE).object()["done"], 0);
    assert_eq!(outbox.run(&["requeue", "--route", "default"]).ends(DONE).object()["done"], 2);
    let backlog = outbox.backlog("default");
    assert_eq!((&backlog["dead_letters"], &backlog["pending"]), (&0.into(), &3.into()));
}

/// More than one call takes: they are taken in parts, from the front.
#[test]
fn a_selection_of_any_size_is_taken_out_in_parts() {
    let outbox = Outbox::sqlite();
    let died_at = "case when n < 2100 then n else 9000000000000000 end";
    sql(
        &outbox,
        format!(
            "with recursive number (n) as (select 0 union all select n + 1 from number where n < 2100)
             insert into outbox_dead (position, id, route, topic, key, order_key, event_type, schema_version, content_type, headers, payload,
                                      occurred_at, appended_at, reason, attempts, died_at)
             select n + 1, randomblob(16), 'default', 't' || (n % 7), 'k', 'k', 'e', 1, 'text/plain', x'', x'', 0, 0, 'exhausted', 1, {died_at}
             from number"
        ),
    );
    let some = ["requeue", "--route", "default", "--topic", "t0"];
    assert_eq!(
        outbox.run(&some).ends(DONE).object(),
        json!({ "operation": "requeue", "done": 300, "gone": 0 })
    );
    let all = ["purge", "--route", "default", "--yes"];
    assert_eq!(outbox.run(&all).ends(DONE).object()["done"], 1_800);
    let audit = outbox.run(&["audit"]).ends(DONE).objects();
    let messages: Vec<_> = audit.iter().map(|entry| entry["messages"].clone()).collect();
    assert_eq!(messages, [800, 1_000, 300]);
    let left = outbox.backlog("default")["dead_letters"].clone();
    assert_eq!(left, 1, "what dies later, as after another failure, is not taken");
}

/// A filter beside ids is applied: a slip in either changes nothing.
#[test]
fn ids_and_a_filter_apply_together() {
    let (outbox, ids) = with_dead_letters(2);
    let later = outbox.publish(&["orders", "--key", "later", "--due", "1h"]);
    let wrong: [&[&str]; 6] = [
        &["--topic", "bills"],
        &["--key", "k1"],
        &["--type", "other"],
        &["--route", "mails"],
        &["--since", "2100-01-01T00:00:00Z"],
        &["--before", "2000-01-01T00:00:00Z"],
    ];
    for filter in wrong {
        for dry in [&["--dry-run"][..], &[]] {
            for command in ["requeue", "purge"] {
                let run = outbox.run(&[&[command, &ids[0], "--yes"], filter, dry].concat());
                run.ends(FAILED).says("no dead letter has the id").says(&ids[0]);
            }
            let run = outbox.run(&[&["cancel", &later, "--yes"], filter, dry].concat());
            run.ends(FAILED).says("no scheduled message has the id");
        }
    }
    // Of several, one that does not fit is enough.
    let both = ["requeue", &ids[0], &ids[1], "--key", "k0"];
    outbox.run(&both).ends(FAILED).says(&ids[1]);
    let backlog = outbox.backlog("default");
    assert_eq!((&backlog["dead_letters"], &backlog["scheduled"]), (&2.into(), &1.into()));
    let fits = ["requeue", &ids[0], "--key", "k0", "--topic", "orders", "--type", "poison", "--before", "0s"];
    assert_eq!(outbox.run(&fits).ends(DONE).object()["done"], 1);
    let fits = ["cancel", &later, "--key", "later", "--yes"];
    assert_eq!(outbox.run(&fits).ends(DONE).object()["done"], 1);
}

#[test]
fn a_new_identity_is_confirmed_and_stays() {
    let outbox = Outbox::sqlite();
    let source = |arguments: &[&str]| outbox.run(arguments).ends(DONE).object()["source"].clone();
    let first = source(&["identity"]);
    assert!(first.as_str().is_some_and(|source| source.starts_with("urn:uuid:")), "{first}");
    outbox.run(&["identity", "new"]).ends(USAGE).says("add --yes");
    assert_eq!(source(&["identity"]), first);
    let second = source(&["identity", "new", "--yes"]);
    assert_ne!(second, first);
    assert_eq!(source(&["identity"]), second);
}

#[test]
fn a_consumer_forgets_what_is_selected_and_nothing_without_a_confirmation() {
    let outbox = Outbox::sqlite();
    world::handle(&outbox, "invoices", &[("orders", "a"), ("orders", "b"), ("customers", "a")]);
    let forget = |arguments: &[&str]| outbox.run(&[&["forget", "invoices"], arguments].concat());
    forget(&[]).ends(USAGE).says("--all");
    forget(&["--all", "--topic", "orders"]).ends(USAGE).says("cannot be used with");
    let tried = forget(&["--topic", "orders", "--dry-run"]).ends(DONE).object();
    assert_eq!(tried, json!({ "operation": "forget", "consumer": "invoices", "selected": 2 }));
    forget(&["--topic", "orders"])
        .ends(USAGE)
        .says("make invoices forget 2 handled messages")
        .says("add --yes");
    assert_eq!(forget(&["--before", "1h", "--yes"]).ends(DONE).object()["done"], 0);
    let done = forget(&["--topic", "orders", "--key", "a", "--since", "1h", "--yes"]).ends(DONE).object();
    assert_eq!(done, json!({ "operation": "forget", "consumer": "invoices", "done": 1 }));
    assert_eq!(outbox.run(&["forget", "nobody", "--all", "-y"]).ends(DONE).object()["done"], 0);
    assert_eq!(forget(&["--all", "--yes"]).ends(DONE).object()["done"], 2);
}

#[test]
fn nothing_is_removed_without_a_confirmation() {
    let (outbox, ids) = with_dead_letters(2);
    let refused = "no terminal is there to confirm it; add --yes";
    outbox
        .run(&["purge", "--route", "default"])
        .ends(USAGE)
        .says(refused)
        .says("permanently purge 2 dead letters");
    outbox.run_with(&["purge", &ids[0]], "y\n").ends(USAGE).says(refused);
    outbox.publish(&["orders", "--due", "1h"]);
    let scheduled = outbox.run(&["scheduled", "list"]).objects()[0]["id"].as_str().unwrap().to_owned();
    outbox.run(&["cancel", &scheduled]).ends(USAGE).says(refused);
    // Ids and a filter: what has both.
    let of_other_type = ["cancel", &scheduled, "--type", "order.shipped", "-y"];
    outbox.run(&of_other_type).ends(FAILED).says("no scheduled message has the id");
    outbox
        .run(&["purge", &ids[0], "--type", "order.shipped", "-y"])
        .ends(FAILED)
        .says("no dead letter has the id");
    let backlog = outbox.backlog("default");
    assert_eq!((&backlog["dead_letters"], &backlog["scheduled"]), (&2.into(), &1.into()));

    assert_eq!(outbox.run(&["purge", &ids[0], "--yes"]).ends(DONE).object()["done"], 1);
    assert_eq!(outbox.run(&["cancel", &scheduled, "-y"]).ends(DONE).object()["done"], 1);
    assert_eq!(outbox.run(&["purge", "--all-routes", "--yes"]).ends(DONE).object()["done"], 1);
    let backlog = outbox.backlog("default");
    assert_eq!((&backlog["dead_letters"], &backlog["scheduled"]), (&0.into(), &0.into()));

    let held = with_held_key(2);
    for action in ["skip", "discard"] {
        held.run(&[action, "orders", "a"]).ends(USAGE).says(refused);
    }
    assert_eq!(held.backlog("default")["parked"], 2);
}

#[test]
fn a_held_key_is_skipped_released_held_and_discarded() {
    let outbox = with_held_key(4);
    let skipped = outbox.run(&["skip", "orders", "a", "--yes"]).ends(DONE).object();
    assert_eq!((&skipped["dead_lettered"], skipped["skipped"].is_string()), (&1.into(), true));
    outbox.run(&["hold", "orders", "a"]).ends(DONE);
    let key = outbox.run(&["keys", "list"]).object();
    assert_eq!((&key["state"], &key["parked"]), (&"held".into(), &3.into()));
    outbox.run(&["release", "orders", "a"]).ends(DONE);
    assert_eq!(outbox.run(&["keys", "list"]).object()["state"], "retrying");

    let tried = outbox.run(&["discard", "orders", "a", "--dry-run"]).ends(DONE);
    tried.says("3 messages would become dead letters");
    let discarded = outbox.run(&["discard", "--route", "default", "--yes"]).ends(DONE).object();
    assert_eq!((&discarded["keys"], &discarded["dead_lettered"]), (&1.into(), &3.into()));
    let backlog = outbox.backlog("default");
    assert_eq!((&backlog["parked"], &backlog["dead_letters"]), (&0.into(), &4.into()));
    outbox.run(&["release", "--topic", "orders"]).ends(USAGE).says("needs a route");
}

#[test]
fn a_key_that_flows_can_be_held() {
    let outbox = Outbox::sqlite();
    outbox.run(&["hold", "orders", "a", "--dry-run"]).ends(DONE).says("1 key would be held");
    assert!(outbox.run(&["keys", "list"]).objects().is_empty());
    outbox.run(&["hold", "orders", "a"]).ends(DONE);
    assert_eq!(outbox.run(&["keys", "list"]).object()["state"], "held");
    outbox.run(&["status"]).ends(FINDINGS);
}

/// Each skip buries one message; together they bury as many as they say.
#[test]
fn two_operators_on_one_key_do_each_thing_once() {
    let outbox = with_held_key(6);
    let skips: Vec<_> = thread::scope(|scope| {
        let skip = || outbox.run(&["skip", "orders", "a", "--yes"]);
        let both: Vec<_> = (0..2).map(|_| scope.spawn(move || [skip(), skip(), skip()])).collect();
        both.into_iter().flat_map(|it| it.join().unwrap()).collect()
    });
    let skipped: BTreeSet<String> =
        skips.iter().filter_map(|run| run.object()["skipped"].as_str().map(str::to_owned)).collect();
    let dead: BTreeSet<String> = outbox
        .run(&["dead", "list"])
        .objects()
        .iter()
        .map(|letter| letter["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(skipped, dead);
    assert_eq!(outbox.backlog("default")["parked"], 6 - dead.len());

    let discards: Vec<_> = thread::scope(|scope| {
        let discard = || outbox.run(&["discard", "--route", "default", "--yes"]);
        let both: Vec<_> = (0..2).map(|_| scope.spawn(discard)).collect();
        both.into_iter().map(|it| it.join().unwrap().object()).collect()
    });
    let buried: u64 = discards.iter().map(|it| it["dead_lettered"].as_u64().unwrap()).sum();
    assert_eq!(buried, 6 - dead.len() as u64, "{discards:?}");
    assert_eq!(outbox.backlog("default")["dead_letters"], 6);
}

#[test]
fn delivered_messages_are_replayed_from_the_history() {
    let outbox = Outbox::sqlite();
    let id = outbox.publish(&["orders", "--key", "a"]);
    world::relay(&outbox, Exhausted::DeadLetter, |backlog| backlog.pending == 0);
    let past = outbox.run(&["history", "list"]).ends(DONE).object();
    assert_eq!(past["id"].as_str(), Some(&*id));
    outbox.run(&["history", "show", &id]).ends(DONE);
    outbox.run(&["replay"]).ends(USAGE).says("needs a route");
    assert_eq!(outbox.run(&["replay", "--route", "default", "--since", "1h"]).ends(DONE).object()["done"], 1);
    assert_eq!(outbox.backlog("default")["pending"], 1);
    assert_eq!(outbox.run(&["history", "list"]).objects().len(), 1, "it stays in the history");
}

#[test]
fn a_route_or_a_topic_is_paused_and_resumed() {
    let outbox = Outbox::sqlite();
    outbox.run(&["pause"]).ends(USAGE).says("--route");
    outbox.run(&["pause", "--route", "default", "--topic", "orders"]).ends(DONE);
    // The pause of the route is another one: an operator who ends that is told of this one.
    let nothing = outbox.run(&["resume", "--route", "default"]).ends(DONE).says("are still paused: orders");
    assert_eq!(nothing.object()["was_paused"], false);
    let text = outbox.run(&["resume", "--route", "default", "--table"]).ends(DONE).stdout;
    assert_eq!(text, "route default was not paused\n");
    outbox.publish(&["orders", "--key", "a"]);
    outbox.publish(&["mails", "--key", "a"]);
    // Paused messages stay; the rest goes.
    world::relay(&outbox, Exhausted::DeadLetter, |backlog| backlog.pending == 1);
    outbox.run(&["resume", "--route", "default", "--topic", "orders"]).ends(DONE);
    world::relay(&outbox, Exhausted::DeadLetter, |backlog| backlog.pending == 0);
}

#[test]
fn a_message_is_published_with_all_its_parts_or_refused_with_the_reason() {
    let outbox = Outbox::sqlite();
    let stdin =
        outbox.run_with(&["publish", "orders", "--data", "-", "--due", "1h"], r#"{"a":1}"#).ends(DONE);
    let id = stdin.object()["id"].as_str().unwrap().to_owned();
    let shown = outbox.run(&["scheduled", "show", &id]).ends(DONE).object();
    assert_eq!((&shown["payload"]["a"], &shown["type"]), (&1.into(), &"outbox.test".into()));
    for (wrong, words) in [
        (&["orders", "--data", "{"][..], "not JSON"),
        (&["orders", "--header", "ce_id=1"], "reserved"),
        (&["orders", "--header", "x"], "NAME=VALUE"),
        (&["", "--key", "a"], "topic is empty"),
        (&["orders", "--due", "soon"], "RFC 3339"),
    ] {
        outbox.run(&[&["publish"], wrong].concat()).ends(USAGE).says(words);
    }
}

/// An operation on many messages needs only their ids.
#[cfg(target_os = "linux")]
#[test]
fn a_selection_of_any_size_is_not_kept_in_memory() {
    let outbox = Outbox::sqlite();
    world::sql(
        &outbox,
        "with recursive n (n) as (select 1 union all select n + 1 from n where n < 512) \
         insert into outbox_dead (position, id, route, topic, order_key, event_type, schema_version, content_type, headers, payload, \
                                  occurred_at, appended_at, reason, attempts, died_at) \
         select n, randomblob(16), 'default', 'orders', n, 'x', 1, 't', x'', zeroblob(1048576), 0, 0, 'exhausted', 1, n from n",
    );
    // The program may have 384 MiB of data: more than a page of messages, and less than all of them.
    let program = outbox.command(&["requeue", "--route", "default"]);
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -d 393216 && exec \"$@\"", "sh"]).arg(program.get_program());
    limited
        .args(program.get_args())
        .envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let done = crate::outbox::end(limited, "").ends(DONE).object();
    assert_eq!(done["done"], 512);
}
