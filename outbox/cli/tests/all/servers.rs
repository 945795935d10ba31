//! The main commands on every kind of database, and with every kind of broker.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use outbox::Exhausted;
use outbox_servers::{Kafka, MongoDb, MySql, OrSkip, PgBouncer, Postgres, RabbitMq};
use sqlx::{AssertSqlSafe, Connection, Executor};

use crate::outbox::{DONE, FAILED, FINDINGS, Outbox, USAGE};
use crate::world;

/// An outage on a database: a poisoned key is held, looked at, skipped, and its message sent again.
fn outage(outbox: &Outbox) {
    outbox.run(&["check"]).ends(DONE);
    outbox.run(&["status"]).ends(DONE);
    let report = outbox.run(&["doctor"]).ends(FINDINGS).object();
    assert_eq!(
        report["checked"],
        serde_json::json!(["settings", "store", "backlog", "positions", "database"])
    );
    // The servers of tests do without fsync.
    let expected = ["no-transport", "durability"];
    let mut codes = report["findings"].as_array().unwrap().iter().map(|it| it["code"].as_str().unwrap());
    assert!(codes.all(|code| expected.contains(&code)), "{report}");
    let first = outbox.publish(&["orders", "--key", "a", "--type", "poison", "--data", r#"{"total":42}"#]);
    outbox.publish(&["orders", "--key", "a"]);
    let scheduled = outbox.publish(&["orders", "--key", "a", "--due", "2h"]);
    world::relay(outbox, Exhausted::Hold, |backlog| backlog.held_keys == 1 && backlog.parked == 2);

    outbox.run(&["status"]).ends(FINDINGS);
    let story = outbox.run(&["explain", "orders", "a"]).ends(FINDINGS).object();
    assert_eq!((&story["state"], &story["failing"]["parked"]), (&"held".into(), &2.into()));
    assert_eq!(outbox.run(&["parked", "show", &first]).ends(DONE).object()["payload"]["total"], 42);
    assert_eq!(
        outbox.run(&["skip", "orders", "a", "--yes"]).ends(DONE).object()["skipped"].as_str(),
        Some(&*first)
    );
    assert_eq!(outbox.run(&["dead", "list"]).ends(DONE).object()["id"].as_str(), Some(&*first));
    assert_eq!(outbox.run(&["requeue", &first]).ends(DONE).object()["done"], 1);
    world::relay(outbox, Exhausted::DeadLetter, |backlog| backlog.dead == 1 && backlog.pending == 0);
    outbox.run(&["requeue", &first, "--edit", r#"{"payload":{"total":43}}"#]).ends(DONE);
    assert_eq!(outbox.run(&["messages", "list", "--type", "order.placed"]).ends(DONE).objects().len(), 0);
    world::relay(outbox, Exhausted::DeadLetter, |backlog| backlog.dead == 1 && backlog.pending == 0);
    assert_eq!(
        outbox.run(&["dead", "list", "--type", "poison"]).ends(DONE).object()["id"].as_str(),
        Some(&*first)
    );
    assert_eq!(outbox.run(&["dead", "show", &first]).ends(DONE).object()["payload"]["total"], 43);
    assert_eq!(outbox.run(&["purge", "--route", "default", "--yes"]).ends(DONE).object()["done"], 1);
    assert_eq!(outbox.run(&["cancel", &scheduled, "--yes"]).ends(DONE).object()["done"], 1);
    outbox.run(&["hold", "orders", "a"]).ends(DONE);
    outbox.run(&["release", "orders", "a"]).ends(DONE);
    outbox.run(&["hold", "orders", "a"]).ends(DONE);
    outbox.run(&["discard", "orders", "a", "--yes"]).ends(DONE);
    outbox.run(&["pause", "--route", "default"]).ends(DONE);
    outbox.run(&["resume", "--route", "default"]).ends(DONE);
    outbox.run(&["status"]).ends(DONE);
    assert_eq!(outbox.run(&["history", "list"]).ends(DONE).objects().len(), 1);
    assert_eq!(outbox.run(&["replay", "--route", "default"]).ends(DONE).object()["done"], 1);
    let audit = outbox.run(&["audit", "--oldest"]).ends(DONE).objects();
    let told: Vec<&str> = audit.iter().map(|entry| entry["operation"].as_str().unwrap()).collect();
    let done = [
        "skip",
        "requeue",
        "requeue_edited",
        "purge",
        "cancel_scheduled",
        "hold",
        "release",
        "hold",
        "discard",
        "pause",
        "resume",
        "replay",
    ];
    assert_eq!(told, done, "each is recorded");
    for looked in [&["routes"][..], &["topics"], &["relays"], &["messages", "list"], &["tail", "--once"]] {
        outbox.run(looked).ends(DONE);
    }
}

#[test]
fn an_outage_on_sqlite_is_repaired_with_the_program_alone() {
    outage(&Outbox::sqlite());
}

#[test]
fn an_outage_on_postgresql_is_repaired_with_the_program_alone() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    outage(&Outbox::at(server.fresh_database()));
}

#[test]
fn an_outage_on_mysql_is_repaired_with_the_program_alone() {
    let Some(server) = MySql::newest().shared().or_skip() else { return };
    outage(&Outbox::at(server.fresh_database()));
}

#[test]
fn an_outage_on_mongodb_is_repaired_with_the_program_alone() {
    let Some(server) = MongoDb::newest().shared().or_skip() else { return };
    outage(&Outbox::at(server.url().replacen("/?", &format!("/{}?", server.fresh_database()), 1)));
}

/// Runs statements on a database of PostgreSQL.
fn sql(url: &str, statements: impl Into<String>) {
    let statements = AssertSqlSafe(statements.into());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut connection = sqlx::PgConnection::connect(url).await.unwrap();
        connection.execute(sqlx::raw_sql(statements)).await.unwrap();
    });
}

#[test]
fn a_user_without_rights_is_told_which_to_grant_and_changes_nothing() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let outbox = Outbox::at(server.fresh_database());
    outbox.publish(&["orders", "--key", "a", "--type", "poison"]);
    world::relay(&outbox, Exhausted::DeadLetter, |backlog| backlog.dead == 1);
    let user = format!("looks_{}", std::process::id());
    let grants = "grant select on all tables in schema public to";
    sql(&outbox.store, format!("create role {user} login; {grants} {user}"));
    let (scheme, rest) = outbox.store.split_once("://").unwrap();
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    let looks = Outbox { store: format!("{scheme}://{user}@{host}"), ..Outbox::missing() };
    for refused in [
        &["check"][..],
        &["dead", "list"],
        &["requeue", "--route", "default"],
        &["purge", "--route", "default", "--yes"],
        &["pause", "--route", "default"],
        &["publish", "orders"],
    ] {
        let run = looks.run(refused).ends(FAILED).says("OBX-STORE-NOT-PERMITTED").says("\nremedy: ");
        run.says("this role may not insert on outbox_pause: grant insert on outbox_pause to it");
    }
    let found = looks.run(&["doctor"]).ends(FINDINGS).object()["findings"].to_string();
    assert!(found.contains("grant insert on outbox_pause") && !found.contains("outbox migrate"), "{found}");
    assert_eq!(outbox.backlog("default")["dead_letters"], 1);
    assert_eq!(outbox.run(&["audit"]).ends(DONE).objects().len(), 0);
}

#[test]
fn doctor_reports_the_state_of_the_database_and_what_it_may_not_see() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let outbox = Outbox::at(server.fresh_database());
    let user = format!("doctor_{}", std::process::id());
    sql(
        &outbox.store,
        format!(
            "alter table outbox_dead set (autovacuum_enabled = off); create role {user} login; \
             grant all on all tables in schema public to {user}; grant all on all sequences in schema public to {user}"
        ),
    );
    let (scheme, rest) = outbox.store.split_once("://").unwrap();
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    let low = Outbox { store: format!("{scheme}://{user}@{host}"), ..Outbox::missing() };
    // A session whose transactions are hidden from that role.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _other = runtime.block_on(sqlx::PgConnection::connect(&outbox.store)).unwrap();
    let report = low.run(&["doctor"]).ends(FINDINGS).object();
    let codes = |list: &str| -> Vec<String> {
        let list = report[list].as_array().unwrap();
        list.iter().map(|it| it["code"].as_str().unwrap().to_owned()).collect()
    };
    // The servers of tests do without fsync.
    assert_eq!(codes("findings"), ["no-transport", "durability", "bloat"]);
    assert_eq!(codes("unchecked"), ["unseen"]);
    assert_eq!(report["healthy"], false);
    let text = low.run(&["doctor", "--table"]).ends(FINDINGS).stdout;
    assert!(text.contains("! database: autovacuum is off for outbox_dead"), "{text}");
    assert!(text.contains("\n  remedy: alter table outbox_dead reset (autovacuum_enabled)"), "{text}");
    assert!(text.contains("not checked: database: the age of transactions in "), "{text}");
}

/// The list up to there is whole, and its end is an error.
#[test]
fn a_database_that_goes_away_in_the_middle_of_a_list_is_an_error() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let outbox = Outbox::at(server.fresh_database());
    let text = "x".repeat(500);
    sql(
        &outbox.store,
        format!(
            "insert into outbox_dead (position, id, route, bucket, topic, key, order_key, event_type, schema_version, content_type, headers, \
                                      payload, occurred_at, appended_at, reason, attempts, first_failure, last_failure, died_at) \
             select n, gen_random_uuid(), 'default', 0, 'orders', '{text}', '{text}', 'x', 1, 'text/plain', '', '', 0, 0, 'exhausted', 1, null, null, n \
             from generate_series(1, 5000) n"
        ),
    );
    let mut list = outbox.command(&["dead", "list", "--limit", "5000"]);
    let mut list = list.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut listed = BufReader::new(list.stdout.take().unwrap());
    let mut first = String::new();
    listed.read_line(&mut first).unwrap();
    // The rest of the page waits for the reader, and the next page is not read yet.
    let (server, database) = outbox.store.rsplit_once('/').unwrap();
    sql(&format!("{server}/postgres"), format!("drop database {database} with (force)"));
    let mut rest = String::new();
    listed.read_to_string(&mut rest).unwrap();
    let end = list.wait_with_output().unwrap();
    let said = String::from_utf8(end.stderr).unwrap();
    assert!(end.status.code() == FAILED && said.contains("remedy: "), "{:?}: {said}", end.status);
    for line in first.lines().chain(rest.lines()) {
        let letter: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(letter["topic"], "orders");
    }
    assert!(rest.lines().count() < 4_999, "all were listed");
}

/// Numbered messages arrive once and in order through a broker.
fn verified(transport: String, topic: &str) {
    let outbox = Outbox { transport: Some(transport), ..Outbox::sqlite() };
    let run = outbox.run(&["verify", "--with-relay", "-n", "50", "--topic", topic]).ends(DONE).object();
    assert_eq!((&run["arrived"], &run["out_of_order"]), (&50.into(), &0.into()), "{run}");
    outbox.run(&["check"]).ends(DONE);
}

#[test]
fn messages_are_verified_through_kafka() {
    let Some(server) = Kafka::newest().shared().or_skip() else { return };
    let topic = format!("canary-{}", std::process::id());
    let address = server.internal_url();
    let make = ["--bootstrap-server", &address, "--create", "--topic", &topic, "--partitions", "3"];
    server.tool("org.apache.kafka.tools.TopicCommand", &make).unwrap();
    verified(format!("kafka://{}", server.url()), &topic);
}

#[test]
fn messages_are_verified_through_rabbitmq() {
    let Some(server) = RabbitMq::newest().shared().or_skip() else { return };
    verified(server.fresh_vhost(), "canary");
}

/// An outbox in a schema of its own, behind a pooler: both are settings.
#[test]
fn options_of_a_store_are_settings() {
    let Some(server) = Postgres::newest().shared().or_skip() else { return };
    let Some(pooler) = PgBouncer::newest(&server).start().or_skip() else { return };
    let direct = server.fresh_database();
    let outbox = Outbox { store: pooler.url(&direct), ..Outbox::missing() };
    outbox.run(&["check"]).ends(FAILED).says("--set postgres.transaction_pooler=true");
    server.query(&direct, "create schema shop");
    let settings = "[postgres]\nschema = 'shop'\ntransaction_pooler = true\nnotify_interval = 'none'\n";
    std::fs::write(outbox.folder.path().join("outbox.toml"), settings).unwrap();
    for command in ["migrate", "check", "status"] {
        outbox.run(&[command, "--config", "outbox.toml"]).ends(DONE);
    }
    assert_eq!(server.query(&direct, "select count(*) from shop.outbox_message"), "0");
    let wrong = ["check", "--config", "outbox.toml", "--set", "postgres.lock_timeout=1ms"];
    outbox.run(&wrong).ends(FAILED).says("postgres.lock_timeout");
    let unknown = ["check", "--set", "postgres.lock_time=1s"];
    outbox.run(&unknown).ends(USAGE).says("lock_timeout");
}
