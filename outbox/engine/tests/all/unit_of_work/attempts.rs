//! Conflicts, errors of all kinds, and retries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use outbox_contract::{Outbox, StoreErrorKind};
use outbox_engine::{Mediator, VersionMismatch, WorkError};
use outbox_store_memory::{MemoryStore, MemoryTx};
use outbox_testkit::{ChaosStore, StoreCall, StoreFault};

use crate::unit_of_work::support::{appended, mediator, placed};

/// Table of versions beside the store. A statement checks, and a commit writes.
#[derive(Clone, Default)]
struct Versions(Arc<Mutex<BTreeMap<u32, i64>>>);

impl Versions {
    fn read(&self, id: u32) -> i64 {
        *self.0.lock().unwrap().entry(id).or_default()
    }

    /// Runs `update … set version = version + 1 where id = ? and version = ?`. Returns the number
    /// of rows.
    fn update(&self, tx: &mut MemoryTx, id: u32, expected: i64) -> u64 {
        if self.read(id) != expected {
            return 0;
        }
        let table = self.clone();
        tx.on_commit(move || _ = table.0.lock().unwrap().insert(id, expected + 1));
        1
    }
}

#[tokio::test(start_paused = true)]
async fn who_meets_another_version_begins_again_with_what_is_there_now() {
    let (mediator, versions, attempts) = (mediator(), Versions::default(), AtomicU32::new(0));
    mediator
        .run(async |work| {
            let read = versions.read(7);
            if attempts.fetch_add(1, Ordering::SeqCst) < 2 {
                // Another writer is faster.
                *versions.0.lock().unwrap().get_mut(&7).unwrap() += 1;
            }
            work.publish(placed("a"))?;
            VersionMismatch::check(versions.update(work.tx(), 7, read), "contact 7", read)?;
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!((attempts.into_inner(), versions.read(7)), (3, 3));
    assert_eq!(appended(mediator.outbox().store()).len(), 1, "what was rolled back is not there");
}

#[tokio::test(start_paused = true)]
async fn a_version_that_never_matches_is_given_up_and_told() {
    let (mediator, attempts) = (mediator().max_attempts(4), AtomicU32::new(0));
    let error = mediator
        .run(async |_| {
            attempts.fetch_add(1, Ordering::SeqCst);
            Ok(VersionMismatch::check(0, "contact 7", 3)?)
        })
        .await
        .unwrap_err();
    assert!(matches!(error, WorkError::Conflict(_)) && error.is_retryable(), "{error}");
    let mismatch = error.find::<VersionMismatch>().unwrap();
    assert_eq!((mismatch.what.as_str(), mismatch.expected), ("contact 7", 3));
    assert!(error.to_string().contains("contact 7 is no longer at version 3"), "{error}");
    assert_eq!(attempts.into_inner(), 4);
}

#[tokio::test]
async fn a_statement_that_changes_several_rows_is_a_mistake_and_not_tried_again() {
    let (mediator, attempts) = (mediator(), AtomicU32::new(0));
    let error = mediator
        .run(async |_| {
            attempts.fetch_add(1, Ordering::SeqCst);
            Ok(VersionMismatch::check(2, "contact 7", 3)?)
        })
        .await
        .unwrap_err();
    assert!(matches!(error, WorkError::Failed(_)), "{error}");
    assert_eq!(attempts.into_inner(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deadlock_begins_again_as_a_whole() {
    // Appends in between lock keys early. So these can deadlock, and the store aborts one of the
    // two.
    let store = MemoryStore::builder().concurrent_writers().build();
    let mediator = Mediator::new(Outbox::new(store.clone()));
    let attempts = AtomicU32::new(0);
    let met = tokio::sync::Barrier::new(2);
    let unit = |first: &'static str, second: &'static str| {
        let (mediator, attempts, met) = (mediator.clone(), &attempts, &met);
        async move {
            let mut meets = true;
            mediator
                .run(async |work| {
                    attempts.fetch_add(1, Ordering::SeqCst);
                    let outbox = mediator.outbox();
                    outbox.append(work.transaction(), &placed(first)).await?;
                    if std::mem::take(&mut meets) {
                        met.wait().await;
                    }
                    outbox.append(work.transaction(), &placed(second)).await?;
                    Ok(())
                })
                .await
        }
    };
    let (one, other) = tokio::join!(unit("a", "b"), unit("b", "a"));
    one.unwrap();
    other.unwrap();
    assert_eq!(attempts.into_inner(), 3);
    assert_eq!(appended(&store).len(), 4);
}

#[tokio::test]
async fn the_closures_own_error_comes_out_as_it_went_in_and_is_not_tried_again() {
    #[derive(Debug, PartialEq)]
    struct OutOfStock(u32);
    impl std::fmt::Display for OutOfStock {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{} is out of stock", self.0)
        }
    }
    impl std::error::Error for OutOfStock {}

    let mediator = mediator();
    let error = mediator
        .run(async |work| {
            work.publish(placed("a"))?;
            Err::<(), _>(OutOfStock(7).into())
        })
        .await
        .unwrap_err();
    assert_eq!(error.find(), Some(&OutOfStock(7)));
    assert_eq!(appended(mediator.outbox().store()), []);
}

type Chaos = ChaosStore<MemoryStore>;

fn chaotic() -> (MemoryStore, Mediator<Chaos>) {
    let store = MemoryStore::new();
    (store.clone(), Mediator::new(Outbox::new(ChaosStore::new(Arc::new(store), 1))))
}

#[tokio::test]
async fn a_commit_whose_result_is_unknown_is_told_as_such_and_never_done_again() {
    let (store, mediator) = chaotic();
    mediator.outbox().store().inject(StoreCall::Commit, StoreFault::After, 1);
    let attempts = AtomicU32::new(0);
    let error = mediator
        .run(async |work| {
            attempts.fetch_add(1, Ordering::SeqCst);
            Ok(work.publish(placed("a"))?)
        })
        .await
        .unwrap_err();
    assert!(matches!(error, WorkError::Unknown(_)) && !error.is_retryable(), "{error}");
    assert!(error.to_string().contains("result of the commit is unknown"), "{error}");
    assert_eq!((attempts.into_inner(), appended(&store).len()), (1, 1));
}

#[tokio::test]
async fn a_store_that_fails_is_told_and_nothing_is_committed() {
    let (store, mediator) = chaotic();
    for call in [StoreCall::Begin, StoreCall::Append] {
        mediator.outbox().store().inject(call, StoreFault::Before, 1);
        let error = mediator.run(async |work| Ok(work.publish(placed("a"))?)).await.unwrap_err();
        assert!(error.is_retryable() && !matches!(error, WorkError::Conflict(_)), "{call:?}: {error}");
        let cause = error.find::<outbox_contract::StoreError>().unwrap();
        assert_eq!(cause.kind(), StoreErrorKind::Unavailable, "{call:?}");
        assert_eq!(appended(&store), [], "{call:?}");
    }
}
