//! Scheduled messages: rows that a round of due ones scans, and transactions that it waits for.

use std::time::Duration;

use outbox_contract::{Outgoing, Store, Transactional};

use super::plans::PINNED;
use super::support::{Fixture, fetch, message, messages, number, relay, run};

/// Schedules messages by hand, `count` of them, this far from now.
fn schedule(count: usize, key: &str, from_now: &str) -> String {
    format!(
        "set session_replication_role = replica; \
         insert into outbox_scheduled (due_at, topic, key, event_type) \
         select outbox_now() + (extract(epoch from interval '{from_now}') * 1000000)::bigint + n, 'orders', {key}, 'x' \
         from generate_series(1, {count}) n; \
         set session_replication_role = origin;"
    )
}

/// Scheduled messages that this transaction has touched: entries of their indexes, and pages of
/// them all.
const TOUCHED: &str = "
    select (select sum(pg_stat_get_xact_tuples_returned(i.indexrelid) + pg_stat_get_xact_blocks_fetched(i.indexrelid))
            from pg_index i where i.indrelid = 'outbox_scheduled'::regclass)::bigint
         + pg_stat_get_xact_tuples_returned('outbox_scheduled'::regclass)
         + pg_stat_get_xact_blocks_fetched('outbox_scheduled'::regclass)";

#[tokio::test]
async fn a_round_walks_over_nothing_that_is_not_due() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.run(&schedule(200_000, "'key-' || n", "1 day")).await;
    fixture.run(&schedule(1, "'due'", "-1 minute")).await;
    let mut connection = fixture.connection().await;
    run(&mut connection, &format!("{PINNED}; begin")).await;
    let moved =
        number(&mut connection, "select promoted::bigint from outbox_maintain(1000, null, 1, 1, 1)").await;
    assert_eq!(moved, 1);
    let touched = number(&mut connection, TOUCHED).await;
    assert!(touched < 300, "{touched} entries and pages");
    // And when nothing is due.
    run(&mut connection, "commit; begin").await;
    number(&mut connection, "select promoted::bigint from outbox_maintain(1000, null, 1, 1, 1)").await;
    let touched = number(&mut connection, TOUCHED).await;
    assert!(touched < 300, "{touched} entries and pages");
}

#[tokio::test]
async fn a_key_that_is_being_written_to_holds_up_no_other_key() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.run(&schedule(2_500, "'busy'", "-1 hour")).await;
    fixture.run(&schedule(2, "'free-' || n", "-1 minute")).await;
    let mut writer = fixture.connection().await;
    let append = "begin; insert into outbox_message (topic, key, event_type) values ('orders', 'busy', 'x')";
    run(&mut writer, append).await;

    // However few a round may move.
    assert_eq!(fixture.store.maintain(1).await.unwrap().promoted, 1);
    let done = fixture.store.maintain(1_000).await.unwrap();
    assert_eq!((done.promoted, done.more), (1, true));
    let relay = relay(&fixture.store).await;
    let moved = messages(&fetch(&fixture.store, relay).await);
    let keys: Vec<_> = moved.iter().filter_map(|stored| stored.message.key.as_ref()).collect();
    assert_eq!(keys.iter().map(|key| key.as_str()).collect::<Vec<_>>(), ["free-1", "free-2"]);

    // The rest waits for the writer: no relay needs to look again at once.
    let done = fixture.store.maintain(1_000).await.unwrap();
    assert_eq!((done.promoted, done.more), (0, false));
    assert!(done.next_due.is_some_and(|wait| wait >= Duration::from_millis(10)), "{done:?}");
    run(&mut writer, "rollback").await;
    let mut moved = 0;
    while moved < 2_500 {
        let done = fixture.store.maintain(1_000).await.unwrap();
        assert!(done.promoted > 0, "{done:?}");
        moved += done.promoted;
        assert_eq!(done.more, moved < 2_500);
    }
    let in_order = "select (bool_and(m.occurred_at >= m.before))::int::bigint from (
        select occurred_at, lag(occurred_at, 1, occurred_at) over (order by position) as before from outbox_message where key = 'busy') m";
    assert_eq!(fixture.number(in_order).await, 1);
}

#[tokio::test]
async fn a_round_locks_a_bounded_number_of_keys() {
    let Some(fixture) = Fixture::new().await else { return };
    fixture.run(&schedule(300, "'key-' || n", "-1 minute")).await;
    let done = fixture.store.maintain(1_000).await.unwrap();
    assert_eq!((done.promoted, done.more), (256, true));
    let done = fixture.store.maintain(1_000).await.unwrap();
    assert_eq!((done.promoted, done.more, done.next_due), (44, false, None));
}

/// Sets the database's clock, as the outbox reads it, to so many hours beside this machine's.
async fn set_clock(fixture: &Fixture, hours: i64) {
    let clock = format!(
        "create or replace function outbox_now() returns bigint language sql volatile as \
         $$ select (date_part('epoch', clock_timestamp()) * 1000000)::bigint + {hours} * 3600000000 $$"
    );
    fixture.run(&clock).await;
}

/// Two machines whose clocks are two hours apart: the delay is an hour all the same.
#[tokio::test]
async fn a_delay_is_counted_by_the_database_whatever_the_senders_clock_says() {
    for hours in [2, -2] {
        let Some(fixture) = Fixture::new().await else { return };
        set_clock(&fixture, hours).await;
        let mut tx = fixture.store.begin().await.unwrap();
        let delayed = Outgoing::from(message("a")).after(Duration::from_secs(3_600));
        fixture.store.append(&mut tx, &[delayed]).await.unwrap();
        fixture.store.commit(tx).await.into_result().unwrap();
        let left = fixture.number("select (due_at - outbox_now()) / 60000000 from outbox_scheduled").await;
        assert!((50..=60).contains(&left), "{left} minutes");
        assert_eq!(fixture.store.maintain(10).await.unwrap().promoted, 0);
        set_clock(&fixture, hours + 1).await;
        assert_eq!(fixture.store.maintain(10).await.unwrap().promoted, 1);
    }
}
