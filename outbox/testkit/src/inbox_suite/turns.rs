//! Turns: waiting for a transaction, because all are in use, is no failure of a message and makes
//! an inbox forget nothing.

use std::time::Duration;

use outbox_contract::{StoreErrorKind, Transactional};

use super::InboxHarness;
use super::world::{start, worlds};
use crate::store_suite::{Capability, has};

/// More transactions than any pool gives.
const MOST: usize = 64;

/// Handlers that are slow, one for each of several keys: where one writes at a time, the last waits
/// longer than a database waits for a lock.
pub async fn slow_handlers_queue_and_lose_nothing<H: InboxHarness>(harness: &H) {
    for world in worlds(harness).await {
        if world.way.batch > 1 {
            continue;
        }
        let inbox = world.inbox_that(|_, _| {
            Box::pin(async {
                tokio::time::sleep(Duration::from_millis(800)).await;
                Ok(())
            })
        });
        let inbox = start(inbox).await;
        let sent: Vec<_> = (0..10).flat_map(|key| world.send(&format!("key-{key}"), 1)).collect();
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        let stats = inbox.stats();
        assert_eq!((stats.resets, stats.failed), (0, 0), "{:?}: {stats:?}", world.way);
        world.stop(inbox).await;
    }
}

/// Others have every connection of the pool, or are writing where one writes at a time: an inbox
/// stands in line, and says so.
pub async fn others_that_have_every_transaction_are_waited_for<H: InboxHarness>(harness: &H) {
    let world = worlds(harness).await.swap_remove(0);
    let inbox = start(world.inbox().store_timeout(Duration::from_secs(20))).await;
    let mut sent = world.send("a", 1);
    world.done().await;
    let mut held = Vec::new();
    while held.len() < MOST {
        match tokio::time::timeout(Duration::from_secs(6), world.store.begin()).await {
            Ok(Ok(tx)) => held.push(tx),
            Ok(Err(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::Busy, "{error}");
                break;
            }
            Err(_) => break,
        }
    }
    if held.len() < MOST {
        sent.extend(world.send_in_turn(&["a", "b", "c"], 2));
        let said = || {
            inbox.health().reasons.iter().any(|reason| reason.text.contains("could not begin a transaction"))
        };
        world.until("said that it waits", async || said()).await;
    }
    assert_eq!(held.len() < MOST, has::<H>(Capability::TransactionLimit), "of {MOST}, {}", held.len());
    for tx in held {
        world.store.rollback(tx).await.expect("the transaction is rolled back");
    }
    world.done().await;
    world.assert_once_and_in_order(&sent).await;
    assert_eq!((inbox.stats().resets, inbox.stats().failed), (0, 0));
    world.stop(inbox).await;
}
