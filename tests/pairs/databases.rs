//! Faults of the database, and unusual transactions of writers.

use std::collections::HashSet;

use outbox_contract::{Outgoing, Transactional as _};
use outbox_tests::ledger::Written;
use outbox_tests::record::PATIENCE;
use sqlx::{Connection as _, Executor as _, PgConnection};

use crate::world::{Servers, Wishes};

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_restarted_and_killed_loses_nothing() {
    let wishes = Wishes { own_postgres: true, ..Wishes::default() };
    let Some(mut world) = Servers::new(wishes).await else { return };
    world.consume().await;
    world.write(4, 20);
    let relay = world.relay();
    world.more(300).await;
    world.postgres.restart();
    world.more(300).await;
    world.postgres.kill();
    world.postgres.start_again();
    world.more(300).await;
    world.finish().await;
    relay.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_writers_of_ten_keys_that_lock_nothing_are_delivered_in_the_order_of_their_commits() {
    let Some(mut world) = Servers::new(Wishes::default()).await else { return };
    world.consume().await;
    let relays = [world.relay(), world.relay()];
    world.write(100, 10);
    world.more(3_000).await;
    world.finish().await;
    relays.into_iter().for_each(|relay| relay.stop());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_stays_open_holds_nobody_up_and_is_delivered_when_it_commits() {
    let Some(mut world) = Servers::new(Wishes::default()).await else { return };
    world.consume().await;
    let relay = world.relay();
    let late = world.message("late");
    let mut open = world.store.pool().begin().await.unwrap();
    let began = world.record.now();
    world.store.append(&mut open, &[late.clone().into()]).await.unwrap();
    // More than relays fetch at once, several times, so that they read past it; and a new relay.
    world.write(8, 20);
    world.more(3_000).await;
    let second = world.relay();
    world.more(2_000).await;
    relay.kill();
    world.more(1_000).await;
    assert!(!world.record.is_delivered(late.id), "it is not committed");
    let committing = world.record.now();
    open.commit().await.unwrap();
    world.record.wrote(&[(began, &late)], Some(committing), &Written::Yes);
    world.finish().await;
    second.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_is_delivered_when_it_commits_and_never_when_it_is_rolled_back() {
    let Some(mut world) = Servers::new(Wishes::default()).await else { return };
    world.consume().await;
    let relay = world.relay();
    let (kept, dropped) = (world.message("kept"), world.message("dropped"));
    let mut recorded = Vec::new();
    for message in [&kept, &dropped] {
        let mut tx = world.store.pool().begin().await.unwrap();
        let began = world.record.now();
        world.store.append(&mut tx, &[message.clone().into()]).await.unwrap();
        // The name is the server's, not the database's.
        tx.execute(sqlx::AssertSqlSafe(format!("prepare transaction '{}'", message.id))).await.unwrap();
        // The transaction no longer belongs to the connection: this ends nothing.
        tx.commit().await.unwrap();
        recorded.push((began, message));
    }
    world.write(4, 20);
    world.more(1_500).await;
    assert!(
        !world.record.is_delivered(kept.id) && !world.record.is_delivered(dropped.id),
        "they are not committed"
    );
    let finish = |how: &str, message| sqlx::AssertSqlSafe(format!("{how} prepared '{message}'"));
    let committing = world.record.now();
    world.store.pool().execute(finish("commit", kept.id)).await.unwrap();
    world.record.wrote(&recorded[..1], Some(committing), &Written::Yes);
    world.store.pool().execute(finish("rollback", dropped.id)).await.unwrap();
    world.record.wrote(&recorded[1..], None, &Written::No("rolled back".into()));
    world.more(300).await;
    world.finish().await;
    relay.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_that_come_back_after_lost_commits_confuse_nobody() {
    let wishes = Wishes { own_postgres: true, ..Wishes::default() };
    let Some(mut world) = Servers::new(wishes).await else { return };
    world.consume().await;
    let relay = world.relay();
    let pool = world.store.pool();
    pool.execute("create table written (id text primary key)").await.unwrap();
    // Asynchronous commits stay unsafe for long; synchronous ones, the relay's heartbeats, make the
    // earlier ones safe.
    pool.execute("alter system set wal_writer_delay = '10s'").await.unwrap();
    pool.execute("alter system set wal_writer_flush_after = '64MB'").await.unwrap();
    pool.execute("select pg_reload_conf()").await.unwrap();
    // Messages with a position whose commit was lost, and durable ones at one of these positions
    // later.
    let (mut lost_at, mut lost, mut reused) = (HashSet::new(), 0, 0);
    for round in 0..4 {
        // Commits that return before they are safe, until the server is ended under them.
        let mut recorded = Vec::new();
        let mut connection = PgConnection::connect(&world.pair.database).await.unwrap();
        behind_a_heartbeat(&mut connection).await;
        for number in 0..100 {
            let messages = [0, 1, 2].map(|at| world.message(&format!("key-{}", (number + at) % 5)));
            let mut tx = connection.begin().await.unwrap();
            tx.execute("set local synchronous_commit = off").await.unwrap();
            let began: Vec<_> = messages.into_iter().map(|message| (world.record.now(), message)).collect();
            let outgoing: Vec<Outgoing> = began.iter().map(|(_, message)| message.clone().into()).collect();
            world.store.append(&mut tx, &outgoing).await.unwrap();
            // In one order, and the last one has the last position of all.
            let last: i64 = sqlx::query_scalar("select last_value from outbox_message_position")
                .fetch_one(&mut *tx)
                .await
                .unwrap();
            let id = began[0].1.id.to_string();
            sqlx::query("insert into written values ($1)").bind(id).execute(&mut *tx).await.unwrap();
            let committing = world.record.now();
            tx.commit().await.unwrap();
            recorded.push((began, last, committing));
        }
        // The last round only checks that positions come back.
        if round < 3 {
            world.postgres.stop_at_once();
            world.postgres.start_again();
        }
        // The messages that exist now are durable. A message whose commit was lost may have been
        // sent before, and may be missing.
        let mut connection = PgConnection::connect(&world.pair.database).await.unwrap();
        let written: HashSet<String> = sqlx::query_scalar("select id from written")
            .fetch_all(&mut connection)
            .await
            .unwrap()
            .into_iter()
            .collect();
        for (began, last, committing) in &recorded {
            let committed = written.contains(&began[0].1.id.to_string());
            let positions = last - 2..=*last;
            reused += usize::from(positions.clone().any(|position| lost_at.contains(&position)));
            if !committed {
                lost += 1;
                lost_at.extend(positions);
            }
            let written = if committed { Written::Yes } else { Written::Unknown("lost".into()) };
            let appended: Vec<_> = began.iter().map(|(began, message)| (*began, message)).collect();
            world.record.wrote(&appended, Some(*committing), &written);
        }
    }
    println!("{lost} commits were lost, {reused} transactions had positions of lost ones");
    assert!(lost > 0 && reused > 0, "{lost} lost, {reused} reused: nothing was shown");
    world.write(4, 5);
    world.more(500).await;
    world.finish().await;
    relay.stop();
}

/// Waits until a relay has just renewed its leases: the next heartbeat makes no commits of the next
/// half second safe.
async fn behind_a_heartbeat(connection: &mut PgConnection) {
    let ask = "select coalesce(max(expires_at), 0) from outbox_relay";
    let before: i64 = sqlx::query_scalar(ask).fetch_one(&mut *connection).await.unwrap();
    let beat = async {
        while before == sqlx::query_scalar::<_, i64>(ask).fetch_one(&mut *connection).await.unwrap() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, beat).await.expect("a relay lives");
}
