//! Tests that need the mode with concurrent writers: late commits, locks held to the end,
//! deadlocks.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{
    START, append, beat, builder, commit, fetch, hot, key, message, published, relay, waits, write,
};
use outbox_contract::admin::Filter;
use outbox_contract::backend::{Committed, KeyTransition, Ordering, Position, Step, Transitioned};
use outbox_contract::{
    AdminExt, AppendError, Failure, Outgoing, Route, Store, StoreErrorKind, Transactional,
};
use outbox_store_memory::MemoryStore;

fn store() -> MemoryStore {
    builder().concurrent_writers().build()
}

#[tokio::test(start_paused = true)]
async fn a_lower_position_of_another_key_is_committed_later() {
    let store = store();
    assert_eq!(store.frontier().ordering(), Ordering::Writers);
    let mut slow = store.begin().await.unwrap();
    assert!(store.frontier().writers().await.unwrap().open.is_empty(), "it has no position yet");
    append(&store, &mut slow, message("a", 1)).await;
    write(&store, message("b", 2)).await;
    assert_eq!(hot(&store), [(2, 2)]);

    let writers = store.frontier().writers().await.unwrap();
    assert_eq!(writers.open.len(), 1, "the quick one is over");
    assert_eq!(writers.last, Position(2), "it has given out two positions");
    commit(&store, slow).await;
    assert_eq!(hot(&store), [(1, 1), (2, 2)]);
    assert!(store.frontier().writers().await.unwrap().open.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_rollback_leaves_a_gap_and_no_writer() {
    let store = store();
    let mut tx = store.begin().await.unwrap();
    append(&store, &mut tx, message("a", 1)).await;
    drop(tx);
    assert!(store.frontier().writers().await.unwrap().open.is_empty());
    assert_eq!(store.frontier().writers().await.unwrap().last, Position(1), "what was rolled back had it");
    write(&store, message("a", 2)).await;
    assert_eq!(hot(&store), [(2, 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_locked_until_the_transaction_ends() {
    let store = store();
    let mut first = store.begin().await.unwrap();
    append(&store, &mut first, message("a", 1)).await;
    let mut second = store.begin().await.unwrap();
    let behind = [message("a", 2).into()];
    let mut appending = store.append(&mut second, &behind);
    assert!(waits(&mut appending).await);
    append(&store, &mut first, message("a", 3)).await;
    commit(&store, first).await;
    appending.await.unwrap();
    commit(&store, second).await;
    assert_eq!(hot(&store), [(1, 1), (2, 3), (3, 2)], "the position is taken under the lock");
}

#[tokio::test(start_paused = true)]
async fn messages_without_a_key_wait_for_nobody() {
    let store = store();
    let unordered = |number| {
        let mut message = message("a", number);
        message.key = None;
        Outgoing::from(message)
    };
    let mut first = store.begin().await.unwrap();
    store.append(&mut first, &[unordered(1)]).await.unwrap();
    let mut second = store.begin().await.unwrap();
    store.append(&mut second, &[unordered(1)]).await.unwrap();
    commit(&store, second).await;
    commit(&store, first).await;
}

#[tokio::test(start_paused = true)]
async fn one_of_two_that_lock_keys_in_opposite_order_is_rolled_back() {
    let store = store();
    let (mut one, mut two) = (store.begin().await.unwrap(), store.begin().await.unwrap());
    append(&store, &mut one, message("a", 1)).await;
    append(&store, &mut two, message("b", 2)).await;
    let of_b = [message("b", 3).into()];
    let mut waiting = store.append(&mut one, &of_b);
    assert!(waits(&mut waiting).await);

    let refused = store.append(&mut two, &[message("a", 4).into()]).await.unwrap_err();
    assert!(matches!(refused, AppendError::Conflict(_)), "{refused}");
    waiting.await.unwrap();

    // It is over: nothing can be appended, deduplicated or committed in it any more.
    assert!(matches!(store.append(&mut two, &[message("c", 5).into()]).await, Err(AppendError::Conflict(_))));
    let consumer = "c".parse().unwrap();
    assert!(store.deduplicate(&mut two, &consumer, &[&message("c", 5)]).await.unwrap_err().is_retryable());
    assert!(
        matches!(store.commit(two).await, Committed::No(error) if error.kind() == StoreErrorKind::Conflict)
    );
    commit(&store, one).await;
    assert_eq!(hot(&store), [(1, 1), (3, 3)]);
}

#[tokio::test(start_paused = true)]
async fn an_append_that_is_cancelled_while_it_waits_blocks_nobody() {
    let store = store();
    let mut first = store.begin().await.unwrap();
    append(&store, &mut first, message("a", 1)).await;
    let mut cancelled = store.begin().await.unwrap();
    append(&store, &mut cancelled, message("b", 2)).await;
    {
        let of_a = [message("a", 3).into()];
        let mut waiting = store.append(&mut cancelled, &of_a);
        assert!(waits(&mut waiting).await);
    }
    // Still open, and it waits for nothing any more: asking for its key is no deadlock.
    let of_b = [message("b", 4).into()];
    let mut waiting = store.append(&mut first, &of_b);
    assert!(waits(&mut waiting).await);
    store.rollback(cancelled).await.unwrap();
    waiting.await.unwrap();
    commit(&store, first).await;
    write(&store, message("a", 5)).await;
    assert_eq!(hot(&store).iter().map(|(_, id)| *id).collect::<Vec<_>>(), [1, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn a_requeued_message_waits_for_an_open_writer_of_its_key() {
    let store = store();
    let owner = beat(&store, relay(1)).await;
    write(&store, message("a", 1)).await;
    let fetched = fetch(&store, relay(1)).await;
    let row = match &fetched.rows[..] {
        [outbox_contract::backend::FetchedRow::Message(stored)] => stored.row(),
        other => panic!("{other:?}"),
    };
    let bury = KeyTransition::new(
        Route::default(),
        relay(1),
        (key("a").bucket(), owner.leases[0].epoch),
        key("a"),
        None,
        Step::Bury {
            discard: false,
            row,
            reason: "rejected",
            attempts: 1,
            first: Failure::new("c", "m"),
            last: Failure::new("c", "m"),
        },
    );
    assert_eq!(store.transition(&[bury]).await.unwrap(), [Transitioned::Done(None)]);

    let mut open = store.begin().await.unwrap();
    append(&store, &mut open, message("a", 2)).await;
    let all = Filter::all_routes();
    let mut requeue = store.requeue(&all);
    assert!(waits(&mut requeue).await);
    commit(&store, open).await;
    assert_eq!(requeue.await.unwrap(), 1);
    assert_eq!(published(&fetch(&store, relay(1)).await), [2, 1], "it joins its key at the end");
    assert_eq!(store.snapshot().dead, 0);
}

#[tokio::test(start_paused = true)]
async fn a_due_message_waits_for_an_open_writer_of_its_key() {
    let store = store();
    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, &[Outgoing::from(message("a", 1)).due_at(START)]).await.unwrap();
    commit(&store, tx).await;

    let mut open = store.begin().await.unwrap();
    append(&store, &mut open, message("a", 2)).await;
    let mut maintain = store.maintain(10);
    assert!(waits(&mut maintain).await);
    commit(&store, open).await;
    assert_eq!(maintain.await.unwrap().promoted, 1);
    assert_eq!(hot(&store), [(1, 2), (2, 1)]);
}

#[tokio::test(start_paused = true)]
async fn the_second_to_handle_a_message_waits_and_finds_it_handled() {
    let store = store();
    let consumer = "inventory".parse().unwrap();
    for (commits, then) in [(false, "New"), (true, "Duplicate")] {
        let mut first = store.begin().await.unwrap();
        store.deduplicate(&mut first, &consumer, &[&message("a", 1)]).await.unwrap();
        let mut second = store.begin().await.unwrap();
        let again = message("a", 1);
        let again = [&again];
        let mut deduplicating = store.deduplicate(&mut second, &consumer, &again);
        assert!(waits(&mut deduplicating).await);
        if commits {
            commit(&store, first).await;
        } else {
            store.rollback(first).await.unwrap();
        }
        assert_eq!(format!("{:?}", deduplicating.await.unwrap()), format!("[{then}]"));
    }
}

/// Real threads, keys locked in whatever order; each commit says what it wrote at the very instant
/// at which it happens.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_order_of_positions_is_the_order_of_commits() {
    const KEYS: [&str; 4] = ["a", "b", "c", "d"];
    for store in [store(), builder().build()] {
        let committed: Arc<Mutex<BTreeMap<&str, Vec<u128>>>> = Arc::default();
        let writers = (0..8_u128).map(|writer| {
            let (store, committed) = (store.clone(), Arc::clone(&committed));
            tokio::spawn(async move {
                let mut conflicts = 0;
                for turn in 0..200_u128 {
                    let number = writer * 1_000 + turn;
                    // Each writer has an order of its own.
                    let keys = [0, 1].map(|nth| KEYS[((number * 7 + writer * 3 + nth * 5) % 4) as usize]);
                    while !write_both(&store, &committed, keys, number).await {
                        conflicts += 1;
                        tokio::task::yield_now().await;
                    }
                }
                conflicts
            })
        });
        let writers: Vec<_> = writers.collect();
        let mut conflicts = 0;
        for writer in writers {
            conflicts += tokio::time::timeout(Duration::from_secs(60), writer).await.unwrap().unwrap();
        }
        assert_eq!(conflicts == 0, store.frontier().ordering() == Ordering::Single, "{conflicts} conflicts");

        let mut positions: BTreeMap<&str, Vec<u128>> = BTreeMap::new();
        for (_, row) in store.snapshot().hot {
            let of_key =
                KEYS.iter().find(|key| row.message.key.as_ref().is_some_and(|own| own == *key)).unwrap();
            positions.entry(of_key).or_default().push(row.message.id.as_uuid().as_u128());
        }
        assert_eq!(positions, *committed.lock().unwrap());
        assert_eq!(positions.values().map(Vec::len).sum::<usize>(), 3_200);
        assert!(store.frontier().writers().await.unwrap().open.is_empty());
    }
}

/// Writes one message to each of two keys. False: a conflict has ended it.
async fn write_both(
    store: &MemoryStore,
    committed: &Arc<Mutex<BTreeMap<&'static str, Vec<u128>>>>,
    keys: [&'static str; 2],
    number: u128,
) -> bool {
    let mut tx = store.begin().await.unwrap();
    for key in keys {
        match store.append(&mut tx, &[message(key, number).into()]).await {
            Ok(()) => tokio::task::yield_now().await,
            Err(AppendError::Conflict(_)) => return false,
            Err(other) => panic!("{other}"),
        }
    }
    let committed = Arc::clone(committed);
    tx.on_commit(move || {
        let mut committed = committed.lock().unwrap();
        for key in keys {
            committed.entry(key).or_default().push(number);
        }
    });
    commit(store, tx).await;
    true
}
