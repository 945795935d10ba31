//! A relay beside a writer that only knows SQL: killed twice, it loses nothing and keeps the order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use outbox_servers::{OrSkip, Postgres, Redis};
use sqlx::{AssertSqlSafe, Connection, Executor};

use crate::daemon::received;
use crate::outbox::{DONE, Daemon, Outbox, until};

const KEYS: u32 = 10;
const MESSAGES: u32 = 600;

/// Returns the statement that appends a numbered message.
fn statement(number: u32, payload: &str) -> AssertSqlSafe<String> {
    // Numbers only: nothing has to be quoted.
    AssertSqlSafe(format!(
        "insert into outbox_message (topic, key, event_type, payload) values ('orders', 'k{}', 'order.placed', {})",
        number % KEYS,
        payload.replace('?', &number.to_string())
    ))
}

/// Writes while relays are killed; then lets one finish, and compares.
fn story(outbox: &Outbox, redis: &str, mut append: impl FnMut(u32)) {
    let mut write = |from: u32| (from..from + MESSAGES / 3).for_each(&mut append);
    let lease =
        ["--set", "relay.lease=3s", "--set", "relay.heartbeat=500ms", "--set", "relay.publish_timeout=1s"];
    for from in [0, MESSAGES / 3] {
        let daemon = Daemon::start(outbox, &[&lease[..], &["--set", "relay.publish_batch=5"]].concat());
        write(from);
        // Somewhere in the middle of what is there now.
        until("some are sent", || {
            outbox.backlog("default")["pending"].as_u64() < Some(u64::from(MESSAGES / 3))
        });
        daemon.signal("-KILL");
        drop(daemon);
    }
    write(MESSAGES / 3 * 2);
    outbox.run(&[&["relay", "--once"][..], &lease].concat()).ends(DONE);

    let all = received(redis, "orders", MESSAGES as usize);
    let (mut first, mut seen) = (BTreeMap::<String, Vec<u32>>::new(), BTreeSet::new());
    for (key, payload) in all {
        let number: u32 = payload.parse().unwrap();
        if seen.insert(number) {
            first.entry(key).or_default().push(number);
        }
    }
    assert_eq!(seen, (0..MESSAGES).collect(), "nothing is lost, and nothing made up");
    for (key, numbers) in first {
        assert!(numbers.is_sorted(), "{key} is out of order: {numbers:?}");
    }
}

/// Operators and a relay change the state of one key at the same time.
#[test]
fn a_key_that_is_held_and_released_while_a_relay_works_on_it_loses_nothing_and_keeps_its_order() {
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    let outbox = Outbox { transport: Some(redis.url()), ..Outbox::sqlite() };
    let daemon = Daemon::start(&outbox, &["--set", "relay.publish_batch=2"]);
    let (began, written) = (AtomicU32::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let mut connection = runtime.block_on(sqlx::SqliteConnection::connect(&outbox.store)).unwrap();
            for number in 0..MESSAGES {
                // Every tenth, so that one key has all of them.
                let statement = statement(number * KEYS, "'?'");
                runtime.block_on(connection.execute(sqlx::query(statement))).unwrap();
                began.store(number, Ordering::Relaxed);
            }
            written.store(true, Ordering::Relaxed);
        });
        until("some are there", || began.load(Ordering::Relaxed) > 5);
        for _ in 0..8 {
            outbox.run(&["hold", "orders", "k0"]).ends(DONE);
            outbox.run(&["release", "orders", "k0"]).ends(DONE);
        }
        until("all are written", || written.load(Ordering::Relaxed));
        outbox.run(&["hold", "orders", "k0"]).ends(DONE);
        outbox.run(&["release", "orders", "k0"]).ends(DONE);
    });
    let all = received(&redis.url(), "orders", MESSAGES as usize);
    let mut seen = BTreeSet::new();
    let first: Vec<u32> = all
        .iter()
        .map(|(_, payload)| payload.parse().unwrap())
        .filter(|number| seen.insert(*number))
        .collect();
    assert_eq!(first, (0..MESSAGES).map(|number| number * KEYS).collect::<Vec<_>>());
    until("nothing is left", || {
        let backlog = outbox.backlog("default");
        (backlog["pending"].as_u64(), backlog["parked"].as_u64()) == (Some(0), Some(0))
    });
    daemon.signal("-TERM");
    assert_eq!(daemon.end(), DONE);
}

#[test]
fn a_relay_of_sqlite_that_is_killed_twice_loses_nothing_and_keeps_the_order() {
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    let outbox = Outbox { transport: Some(redis.url()), ..Outbox::sqlite() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut connection = runtime.block_on(sqlx::SqliteConnection::connect(&outbox.store)).unwrap();
    story(&outbox, &redis.url(), |number| {
        runtime.block_on(connection.execute(sqlx::query(statement(number, "'?'")))).unwrap();
    });
}

#[test]
fn a_relay_of_postgresql_that_is_killed_twice_loses_nothing_and_keeps_the_order() {
    let Some(postgres) = Postgres::newest().shared().or_skip() else { return };
    let Some(redis) = Redis::newest().start().or_skip() else { return };
    let outbox = Outbox { transport: Some(redis.url()), ..Outbox::at(postgres.fresh_database()) };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut connection = runtime.block_on(sqlx::PgConnection::connect(&outbox.store)).unwrap();
    story(&outbox, &redis.url(), |number| {
        let statement = statement(number, "convert_to('?', 'UTF8')");
        runtime.block_on(connection.execute(sqlx::query(statement))).unwrap();
    });
}
