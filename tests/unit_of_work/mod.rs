//! Units of work on databases: the user's own rows and the events commit together, on SQLite and on
//! PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a panic in a test is a failed test")]

mod database;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox_contract::backend::Backlog;
use outbox_contract::{DomainEvent, EventType, Outbox, Route};
use outbox_engine::{HandlerError, Mediator, UnitOfWork, VersionMismatch, WorkError};
use serde::Serialize;
use tokio::sync::Barrier;

use self::database::Database;

/// An event of a count; `key` is its ordering key.
#[derive(Clone, Debug, Serialize)]
struct Counted {
    key: i64,
}

impl DomainEvent for Counted {
    const TYPES: &'static [EventType] = &[EventType::new("counters", "counted", 1)];

    fn event_type(&self) -> &'static EventType {
        &Self::TYPES[0]
    }

    fn key(&self) -> Option<Cow<'_, str>> {
        Some(self.key.to_string().into())
    }
}

/// One named test for each database.
macro_rules! on_every_database {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $test() {
                let Some(store) = super::database::sqlite().await else { return };
                super::$test(store).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let Some(store) = super::database::postgres().await else { return };
                super::$test(store).await;
            })*
        }
    };
}

on_every_database!(
    rows_and_events_commit_together_or_not_at_all,
    writers_with_versions_lose_no_update,
    units_that_raise_events_of_the_same_keys_in_different_orders_never_deadlock,
    units_whose_own_statements_deadlock_begin_again,
);

const COUNT: &str = "update counters set value = value + 1 where id = $1";

async fn count<D: Database>(work: &mut UnitOfWork<D>, id: i64) -> Result<(), HandlerError> {
    D::execute(work.tx(), COUNT, &[id]).await?;
    Ok(())
}

async fn value<D: Database>(store: &D, id: i64) -> i64 {
    let mut tx = store.begin().await.unwrap();
    let value =
        D::number(D::connection(&mut tx), "select value from counters where id = $1", &[id]).await.unwrap();
    store.rollback(tx).await.unwrap();
    value
}

async fn pending<D: Database>(store: &D) -> u64 {
    let Backlog { pending, .. } = store.backlog(&Route::default()).await.unwrap();
    pending
}

/// Counts its events in the database, and refuses the key 9.
async fn counts<D: Database>(event: &Counted, work: &mut UnitOfWork<D>) -> Result<(), HandlerError> {
    count(work, event.key).await?;
    if event.key == 9 { Err("nine is refused".into()) } else { Ok(()) }
}

async fn rows_and_events_commit_together_or_not_at_all<D: Database>(store: D) {
    let mediator = Mediator::new(Outbox::new(store.clone())).on::<Counted, _>(counts::<D>);
    for (keys, commits) in [(vec![1, 2, 1], true), (vec![1, 9], false)] {
        let mut work = mediator.begin().await.unwrap();
        count(&mut work, 0).await.unwrap();
        for key in keys {
            work.publish(Counted { key }).unwrap();
        }
        assert_eq!(work.commit().await.is_ok(), commits);
    }
    let mut dropped = mediator.begin().await.unwrap();
    count(&mut dropped, 0).await.unwrap();
    drop(dropped);
    let mut rolled_back = mediator.begin().await.unwrap();
    count(&mut rolled_back, 0).await.unwrap();
    rolled_back.rollback().await;
    let values =
        [value(&store, 0).await, value(&store, 1).await, value(&store, 2).await, value(&store, 9).await];
    assert_eq!((values, pending(&store).await), ([1, 2, 1, 0], 3));
}

async fn writers_with_versions_lose_no_update<D: Database>(store: D) {
    const WRITERS: i64 = 4;
    const EACH: i64 = 10;
    let mediator = Mediator::new(Outbox::new(store.clone())).max_attempts(10_000);
    let writers = (0..WRITERS).map(|_| {
        let mediator = mediator.clone();
        tokio::spawn(async move {
            for _ in 0..EACH {
                mediator
                    .run(async |work| {
                        let read = "select version from counters where id = $1";
                        let version = D::number(work.tx(), read, &[0]).await?;
                        tokio::task::yield_now().await;
                        let update = "update counters set value = $1 + 1, version = $2 + 1 where id = $3 and version = $4";
                        let rows = D::execute(work.tx(), update, &[version, version, 0, version]).await?;
                        VersionMismatch::check(rows, "counter 0", version)?;
                        work.publish(Counted { key: 0 })?;
                        Ok(())
                    })
                    .await?;
            }
            Ok::<(), WorkError>(())
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap().unwrap();
    }
    assert_eq!(value(&store, 0).await, WRITERS * EACH);
    assert_eq!(pending(&store).await, u64::try_from(WRITERS * EACH).unwrap());
}

async fn units_that_raise_events_of_the_same_keys_in_different_orders_never_deadlock<D: Database>(store: D) {
    let mediator = Mediator::new(Outbox::new(store.clone()));
    let units = (0..4).map(|writer: i64| {
        let mediator = mediator.clone();
        tokio::spawn(async move {
            for round in 0..10_i64 {
                let mut work = mediator.begin().await?;
                let keys: Vec<i64> =
                    if (writer + round) % 2 == 0 { (0..8).collect() } else { (0..8).rev().collect() };
                for key in keys {
                    work.publish(Counted { key })?;
                    tokio::task::yield_now().await;
                }
                work.commit().await?; // not begun again: a conflict fails the test
            }
            Ok::<(), WorkError>(())
        })
    });
    for unit in units.collect::<Vec<_>>() {
        unit.await.unwrap().unwrap();
    }
    assert_eq!(pending(&store).await, 4 * 10 * 8);
}

async fn units_whose_own_statements_deadlock_begin_again<D: Database>(store: D) {
    let mediator = Mediator::new(Outbox::new(store.clone())).max_attempts(10_000);
    // The first time each has one row before either requests the other's: where both can have one,
    // that is a deadlock for certain.
    let both_have_one = Arc::new(Barrier::new(2));
    let units = [(1, 2), (2, 1)].map(|(first, second)| {
        let (mediator, both_have_one) = (mediator.clone(), Arc::clone(&both_have_one));
        let meet = Arc::new(AtomicBool::new(D::SIDE_BY_SIDE));
        tokio::spawn(async move {
            for _ in 0..5 {
                let (both_have_one, meet) = (Arc::clone(&both_have_one), Arc::clone(&meet));
                mediator
                    .run(async move |work| {
                        count(work, first).await?;
                        if meet.swap(false, Ordering::Relaxed) {
                            both_have_one.wait().await;
                        }
                        count(work, second).await?;
                        work.publish(Counted { key: first })?;
                        Ok(())
                    })
                    .await?;
            }
            Ok::<(), WorkError>(())
        })
    });
    for unit in units {
        unit.await.unwrap().unwrap();
    }
    assert_eq!([value(&store, 1).await, value(&store, 2).await], [10, 10]);
    assert_eq!(pending(&store).await, 10);
}
