//! Locks: what relays do is in no writer's way, and no open writer is in theirs. Under the server's
//! default isolation each of these tests fails.

use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::backend::{BucketSet, DueRequest, Position, RowId};
use outbox_contract::{
    Admin, AdminExt, Message, MessageId, Outgoing, Route, Store, Timestamp, Transactional,
};
use outbox_servers::{MySql, OrSkip};
use outbox_store_mysql::MySqlStore;
use sqlx::Connection;
use tokio::time::timeout;

use super::support::{Fixture, LONG, append, both, both_with, fetch, message, messages, options, relay, run};

/// A settlement that waits for one row, after it looked for one that is not there any more. Under
/// REPEATABLE READ it would have locked the gap in which that one stood, and whoever appends there
/// would wait as well.
#[tokio::test]
async fn a_settlement_that_waits_is_in_no_writers_way() {
    let mut hasty = options();
    hasty.lock_timeout = Duration::from_secs(4);
    for fixture in both_with(hasty).await {
        // One in 2001 and one in 2033: what is appended now stands between.
        let mut connection = fixture.connection().await;
        for (clock, key) in [(1_000_000_000, "a"), (2_000_000_000, "b")] {
            let mut tx = connection.begin().await.unwrap();
            run(&mut tx, &format!("set timestamp = {clock}")).await;
            fixture.store.append(&mut tx, &[message(key).into()]).await.unwrap();
            tx.commit().await.unwrap();
        }
        let relay = relay(&fixture.store).await;
        let last = messages(&fetch(&fixture.store, relay).await)[1].row();
        let gone = RowId { position: Position(last.position.0 / 4 * 3), id: MessageId::new() };

        let mut holder = fixture.connection().await;
        let mut holder = holder.begin().await.unwrap();
        run(
            &mut holder,
            &format!(
                "select * from outbox_message where route = 'default' and position = {} for update",
                last.position.0
            ),
        )
        .await;
        let settling = tokio::spawn({
            let patient = super::support::open(&fixture.url, options()).await;
            async move { patient.settle(&Route::default(), &[gone, last]).await }
        });
        fixture.until_waiting("%delete m").await;
        append(&fixture.store, [message("c")]).await;
        assert!(!settling.is_finished(), "it waits for the row that is held");
        holder.rollback().await.unwrap();
        settling.await.unwrap().unwrap();
        assert_eq!(messages(&fetch(&fixture.store, relay).await).len(), 2);
    }
}

/// A transaction that has appended to hot and scheduled messages and stays open: everything that
/// relays and operators do is done all the same.
#[tokio::test]
async fn an_open_writer_is_in_no_relays_way() {
    let mut hasty = options();
    hasty.lock_timeout = Duration::from_secs(4);
    hasty.history = Some(Duration::from_secs(3_600));
    for fixture in both_with(hasty).await {
        let store = &fixture.store;
        append(store, [message("a"), message("a"), message("b"), message("c")]).await;
        let past = Timestamp::from_micros(1);
        let due = message("due");
        schedule(store, [message("busy"), due.clone()]).await;

        let mut connection = fixture.connection().await;
        let mut open = connection.begin().await.unwrap();
        let written: Vec<Outgoing> = (0..50).map(|n| message(&format!("open-{n}")).into()).collect();
        store.append(&mut open, &written).await.unwrap();
        store.append(&mut open, &[message("busy").into()]).await.unwrap();
        store.append(&mut open, &[Outgoing::from(message("open")).due_at(past)]).await.unwrap();

        let relay = relay(store).await;
        let read = messages(&fetch(store, relay).await);
        assert_eq!(read.len(), 4, "nothing of the open one");
        let route = Route::default();
        store.settle(&route, &[read[2].row()]).await.unwrap();
        store.hold(&route, &read[0].message.key_id()).await.unwrap();
        store.release(&route, &read[0].message.key_id()).await.unwrap();
        let mut request = DueRequest::new(route.clone(), relay, BucketSet::ALL);
        request.keys = 10;
        request.messages = 10;
        request.bytes = 1_000_000;
        assert_eq!(store.due(&request).await.unwrap().keys.len(), 1);
        let done = store.maintain(100).await.unwrap();
        assert_eq!(done.promoted, 1, "the one that is committed, of a key that nobody is writing to");
        assert_eq!(store.backlog(&route).await.unwrap().pending, 4);
        assert_eq!(store.purge(&Filter::all_routes()).await.unwrap(), 0);
        assert_eq!(store.cancel_scheduled(&[due.id]).await.unwrap(), 0);
        store.elect("janitor", relay, Duration::from_secs(60)).await.unwrap();
        store.frontier().stripes(&route, &BucketSet::ALL).await.unwrap();
        store.give_back(relay, &route, &[], &Default::default(), true).await.unwrap();
        open.commit().await.unwrap();
        assert_eq!(store.maintain(100).await.unwrap().promoted, 2, "those that were passed over");
    }
}

/// Schedules messages that are due, and commits.
/// The server gives its optimizer little memory for lists. Without ranges of single rows, a
/// settlement would read the whole route, and wait for the row that is not committed.
#[tokio::test]
async fn a_large_settlement_waits_for_no_open_writer() {
    let mut hasty = options();
    hasty.lock_timeout = Duration::from_secs(4);
    let wish = MySql::newest().config("range-optimizer-max-mem-size = 4K");
    let Some(server) = wish.start().or_skip() else { return };
    let fixture = Fixture::on(server, hasty).await;
    let store = &fixture.store;
    let half = || (0..300).map(|n| message(&format!("key-{n}")));
    append(store, half()).await;
    let mut connection = fixture.connection().await;
    let mut open = connection.begin().await.unwrap();
    store.append(&mut open, &[message("open").into()]).await.unwrap();
    append(store, half().skip(1)).await;

    let relay = relay(store).await;
    let read = messages(&fetch(store, relay).await);
    assert_eq!(read.len(), 599);
    let rows: Vec<RowId> = read.iter().map(|stored| stored.row()).collect();
    store.settle(&Route::default(), &rows).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(messages(&fetch(store, relay).await).len(), 1);
}

async fn schedule(store: &MySqlStore, messages: impl IntoIterator<Item = Message>) {
    let past = Timestamp::from_micros(1);
    let outgoing: Vec<Outgoing> =
        messages.into_iter().map(|message| Outgoing::from(message).due_at(past)).collect();
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, &outgoing).await.unwrap();
    store.commit(tx).await.into_result().unwrap();
}

/// As many due messages as one round moves, all of a key with an open writer, in front of one of a
/// free key.
#[tokio::test]
async fn what_waits_for_an_open_writer_leaves_room_for_others() {
    for fixture in both().await {
        let store = &fixture.store;
        schedule(store, (0..1_000).map(|_| message("busy"))).await;
        schedule(store, [message("free")]).await;
        let mut open = store.begin().await.unwrap();
        store.append(&mut open, &[message("busy").into()]).await.unwrap();

        // A lock is waited for for longer than that.
        let done = timeout(LONG / 2, store.maintain(1_000)).await.expect("it waits for nobody").unwrap();
        assert_eq!(done.promoted, 1);
        store.rollback(open).await.unwrap();
        let done = store.maintain(1_000).await.unwrap();
        assert!(done.promoted == 1_000 && done.more, "{done:?}");
    }
}

/// Where writers of a key stand in line all the time its stripe is never free: who promotes stands
/// in line as well, shortly.
#[tokio::test]
async fn a_stripe_that_is_never_free_is_waited_for() {
    for fixture in both().await {
        let store = &fixture.store;
        schedule(store, [message("busy")]).await;
        let mut open = store.begin().await.unwrap();
        store.append(&mut open, &[message("busy").into()]).await.unwrap();
        let promoting = tokio::spawn({
            let store = store.clone();
            async move { while store.maintain(100).await.unwrap().promoted == 0 {} }
        });
        fixture.until_waiting("%from outbox_stripe%").await;
        store.commit(open).await.into_result().unwrap();
        timeout(LONG, promoting).await.unwrap().unwrap();
        let relay = relay(store).await;
        assert_eq!(messages(&fetch(store, relay).await).len(), 2);
    }
}

/// Appends to three keys and commits; starts again when the server says conflict.
async fn write(store: &MySqlStore, first: usize) {
    let outgoing: Vec<Outgoing> =
        (0..3).map(|n| message(&format!("key-{}", (first + n) % 7)).into()).collect();
    loop {
        let mut tx = store.begin().await.unwrap();
        match store.append(&mut tx, &outgoing).await {
            Ok(()) => return store.commit(tx).await.into_result().unwrap(),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        store.rollback(tx).await.unwrap();
    }
}

/// Writers, a relay that fetches and settles, and an operator, all at once: every deadlock is
/// reported, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_and_a_relay_at_once_lose_nothing() {
    const WRITERS: usize = 4;
    const TURNS: usize = 15;
    for fixture in both().await {
        let relay = relay(&fixture.store).await;
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let store = fixture.store.clone();
                tokio::spawn(async move {
                    for turn in 0..TURNS {
                        write(&store, (writer + turn) % 7).await;
                    }
                })
            })
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < WRITERS * TURNS * 3 {
            tokio::task::yield_now().await;
            let read = messages(&fetch(&fixture.store, relay).await);
            let rows: Vec<RowId> = read.iter().map(|stored| stored.row()).collect();
            fixture.store.settle(&Route::default(), &rows).await.unwrap();
            for row in rows {
                assert!(seen.insert(row), "{row:?} was settled, and came again");
            }
        }
        for writer in writers {
            writer.await.unwrap();
        }
        assert_eq!(fixture.number("select count(*) from outbox_message").await, 0);
    }
}
