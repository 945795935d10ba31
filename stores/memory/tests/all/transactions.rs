//! Transactions of either mode: effects at the commit, handles of another store, replays of a run.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap is an assertion")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use crate::support::{append, builder, commit, hot, message, waits, write};
use futures_util::{FutureExt, StreamExt};
use outbox_contract::backend::{Committed, Dedup, Wakeup};
use outbox_contract::{
    Admin, AdminExt, AppendError, Consumer, Outgoing, Route, Store, StoreErrorKind, Transactional,
    inbox_route,
};
use outbox_store_memory::MemoryStore;

#[tokio::test(start_paused = true)]
async fn one_transaction_writes_at_a_time() {
    let store = builder().build();
    let mut first = store.begin().await.unwrap();
    append(&store, &mut first, message("a", 1)).await;
    let mut second = store.begin().await.unwrap();
    let other_key = [message("b", 2).into()];
    let mut appending = store.append(&mut second, &other_key);
    assert!(waits(&mut appending).await);
    commit(&store, first).await;
    appending.await.unwrap();
    commit(&store, second).await;
    assert_eq!(hot(&store), [(1, 1), (2, 2)]);
}

#[tokio::test(start_paused = true)]
async fn writers_wait_in_the_order_in_which_they_came() {
    let store = builder().build();
    let mut first = store.begin().await.unwrap();
    append(&store, &mut first, message("a", 0)).await;
    let waiting: Vec<_> = (1..=5)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { write(&store, message("a", number)).await })
        })
        .collect();
    tokio::task::yield_now().await;
    commit(&store, first).await;
    for writer in waiting {
        writer.await.unwrap();
    }
    assert_eq!(hot(&store).iter().map(|(_, id)| *id).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
}

#[tokio::test(start_paused = true)]
async fn an_effect_happens_with_the_commit_and_never_without() {
    let store = builder().build();
    let happened = Arc::new(AtomicUsize::new(0));
    for commits in [false, true] {
        let mut tx = store.begin().await.unwrap();
        append(&store, &mut tx, message("a", 1)).await;
        let counted = Arc::clone(&happened);
        tx.on_commit(move || {
            counted.fetch_add(1, Relaxed);
        });
        if commits {
            commit(&store, tx).await;
        }
        assert_eq!((happened.load(Relaxed), hot(&store).len()), (usize::from(commits), usize::from(commits)));
    }
}

#[tokio::test(start_paused = true)]
async fn an_effect_that_panics_leaves_nothing_behind() {
    for store in [builder().build(), builder().concurrent_writers().build()] {
        let mut tx = store.begin().await.unwrap();
        append(&store, &mut tx, message("a", 1)).await;
        tx.on_commit(|| panic!("the effect of a test"));
        let ended = std::panic::AssertUnwindSafe(store.commit(tx)).catch_unwind().await;
        assert!(ended.is_err());
        write(&store, message("a", 2)).await;
        assert_eq!(hot(&store).iter().map(|(_, id)| *id).collect::<Vec<_>>(), [2]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_transaction_of_another_store_is_refused() {
    let (store, other) = (builder().build(), builder().build());
    let mut tx = other.begin().await.unwrap();
    let refused = store.append(&mut tx, &[message("a", 1).into()]).await.unwrap_err();
    assert!(
        matches!(&refused, AppendError::Store(error) if error.kind() == StoreErrorKind::NotInTransaction)
    );
    assert!(matches!(store.commit(tx).await, Committed::No(_)));
    assert!(hot(&store).is_empty() && hot(&other).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_commit_wakes_whoever_listens() {
    let store = builder().build();
    let mut wakeups = store.wakeups();
    assert!(waits(&mut wakeups.next()).await);
    let mut tx = store.begin().await.unwrap();
    append(&store, &mut tx, message("a", 1)).await;
    assert_eq!(wakeups.next().await, Some(Wakeup::Soon));
    commit(&store, tx).await;
    assert_eq!(wakeups.next().await, Some(Wakeup::Now));
}

#[tokio::test(start_paused = true)]
async fn an_inbox_message_goes_behind_those_of_its_key_that_wait() {
    let store = builder().build();
    let consumer = Consumer::new("inventory").unwrap();
    let route = inbox_route(&consumer);
    write(&store, message("a", 9)).await;
    assert_eq!(
        deduplicate(&store, &consumer, &[1]).await,
        [Dedup::New],
        "what waits for another route is no matter"
    );

    let mut tx = store.begin().await.unwrap();
    store.append(&mut tx, &[2, 3].map(|number| to(&route, number))).await.unwrap();
    assert_eq!(
        deduplicate_in(&store, &mut tx, &consumer, &[4]).await,
        [Dedup::OutOfTurn],
        "a transaction sees its own"
    );
    commit(&store, tx).await;
    assert_eq!(deduplicate(&store, &consumer, &[3, 4]).await, [Dedup::OutOfTurn; 2], "3 waits, behind 2");

    // Drained from the store: each is first when those before it are handled, settled or not.
    assert_eq!(deduplicate(&store, &consumer, &[2, 3, 4]).await, [Dedup::New; 3]);
    assert_eq!(deduplicate(&store, &consumer, &[2, 3, 4]).await, [Dedup::Duplicate; 3]);
    assert_eq!(deduplicate(&store, &Consumer::new("billing").unwrap(), &[3]).await, [Dedup::New]);
}

fn to(route: &Route, number: u128) -> Outgoing {
    Outgoing::from(message("a", number)).by(route.clone())
}

async fn deduplicate(store: &MemoryStore, consumer: &Consumer, numbers: &[u128]) -> Vec<Dedup> {
    let mut tx = store.begin().await.unwrap();
    let handled_ids = deduplicate_in(store, &mut tx, consumer, numbers).await;
    commit(store, tx).await;
    handled_ids
}

async fn deduplicate_in(
    store: &MemoryStore,
    tx: &mut outbox_store_memory::MemoryTx,
    consumer: &Consumer,
    numbers: &[u128],
) -> Vec<Dedup> {
    let messages: Vec<_> = numbers.iter().map(|number| message("a", *number)).collect();
    store.deduplicate(tx, consumer, &messages.iter().collect::<Vec<_>>()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_inbox_message_of_a_held_key_is_stored_even_if_it_is_the_first() {
    let store = builder().build();
    let consumer = Consumer::new("inventory").unwrap();
    let (route, key) = (inbox_route(&consumer), message("a", 1).key_id());
    store.hold(&route, &key).await.unwrap();
    assert_eq!(deduplicate(&store, &consumer, &[1]).await, [Dedup::OutOfTurn]);
    AdminExt::release(&store, &route, &key).await.unwrap();
    assert_eq!(deduplicate(&store, &consumer, &[1]).await, [Dedup::New]);
}

#[tokio::test(start_paused = true)]
async fn what_is_over_its_time_is_removed_in_small_rounds() {
    let kept = Duration::from_secs(60);
    let store = builder().history(kept).handled_ids_kept(kept * 2).handled_ids_max_age(kept * 2).build();
    let consumer = Consumer::new("inventory").unwrap();
    for number in 1..=3 {
        write(&store, message("a", number)).await;
        deduplicate(&store, &consumer, &[number]).await;
    }
    let rows: Vec<_> = store.snapshot().hot.iter().map(|(_, row)| row.row()).collect();
    store.settle(&Route::default(), &rows).await.unwrap();
    assert_eq!(store.snapshot().history, 3);

    tokio::time::sleep(kept).await;
    let first = store.maintain(2).await.unwrap();
    assert_eq!((first.history_removed, first.more), (2, true));
    let second = store.maintain(2).await.unwrap();
    assert_eq!((second.history_removed, second.handled_ids_removed, second.more), (1, 0, false));
    tokio::time::sleep(kept).await;
    assert_eq!(store.maintain(10).await.unwrap().handled_ids_removed, 3);
    let left = store.snapshot();
    assert_eq!((left.history, left.handled_ids), (0, 0));
    assert_eq!(deduplicate(&store, &consumer, &[1]).await, [Dedup::New], "its time is over");
}

#[tokio::test]
async fn a_retention_that_is_too_short_is_reported_by_check() {
    builder().history(Duration::from_secs(1)).build().check().await.unwrap();
    let short =
        builder().history(Duration::ZERO).audit_kept(Duration::ZERO).handled_ids_max_age(Duration::ZERO);
    let error = short.handled_ids_kept(Duration::ZERO).build().check().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Invalid);
    for option in ["memory.history", "memory.handled_ids_kept", "memory.audit_kept"] {
        assert!(error.to_string().contains(option), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn recorded_operations_are_removed_at_the_end_of_their_retention() {
    let kept = Duration::from_secs(60);
    let store = builder().audit_kept(kept).build();
    for number in 1..=3 {
        store.hold(&Route::default(), &message("a", number).key_id()).await.unwrap();
    }
    tokio::time::sleep(kept / 2).await;
    store.pause(&Route::default(), None).await.unwrap();
    tokio::time::sleep(kept / 2).await;
    let (first, second) = (store.maintain(2).await.unwrap(), store.maintain(2).await.unwrap());
    assert_eq!((first.audit_removed, first.more), (2, true));
    assert_eq!((second.audit_removed, second.more), (1, false));
    let left = store.audit(&outbox_contract::admin::Filter::all_routes()).await.unwrap();
    assert_eq!(left.iter().map(|entry| entry.operation.as_str()).collect::<Vec<_>>(), ["pause"]);
}

/// Writers, a relay that fails and settles, and an operator, all at once; what each of them saw,
/// and what is left.
async fn run() -> String {
    let store = builder().concurrent_writers().history(Duration::from_secs(60)).build();
    let trace = Arc::new(std::sync::Mutex::new(Vec::new()));
    let writers: Vec<_> = (0..6_u64)
        .map(|writer| {
            let (store, trace) = (store.clone(), Arc::clone(&trace));
            tokio::spawn(async move {
                for turn in 0..20_u64 {
                    let number = u128::from(writer * 100 + turn);
                    let mut tx = store.begin().await.unwrap();
                    for nth in 0..2 {
                        tokio::time::sleep(Duration::from_millis((writer * 7 + turn * 3) % 5)).await;
                        let key = format!("k{}", (writer + turn * (nth + 1)) % 3);
                        let appended = store.append(&mut tx, &[message(&key, number).into()]).await;
                        if let Err(error) = appended {
                            trace.lock().unwrap().push(format!("{number}: {error}"));
                            break;
                        }
                    }
                    if store.commit(tx).await.into_result().is_ok() {
                        trace.lock().unwrap().push(format!("{number}: committed"));
                    }
                }
            })
        })
        .collect();
    let relays: Vec<_> = (1..=2)
        .map(|number| {
            let (store, trace) = (store.clone(), Arc::clone(&trace));
            tokio::spawn(async move {
                for _ in 0..30 {
                    let leased = crate::support::beat(&store, crate::support::relay(number)).await;
                    let fetched = crate::support::fetch(&store, crate::support::relay(number)).await;
                    let (read, writers) =
                        (crate::support::published(&fetched), store.frontier().writers().await.unwrap());
                    trace
                        .lock()
                        .unwrap()
                        .push(format!("{number}: {} {read:?} {writers:?}", leased.leases.len()));
                    tokio::time::sleep(Duration::from_millis(7)).await;
                }
            })
        })
        .collect();
    for task in writers.into_iter().chain(relays) {
        task.await.unwrap();
    }
    let trace = trace.lock().unwrap();
    assert!(trace.iter().any(|line| line.contains("deadlock")), "the run has everything in it");
    format!("{trace:#?} {:#?}", store.snapshot())
}

#[test]
fn two_runs_in_paused_time_are_the_same() {
    let run = || {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(run())
    };
    assert_eq!(run(), run());
}
