//! Calls that are dropped half-way (a timeout, an aborted task): their transactions happen whole or
//! not at all, and hinder nobody.

use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::backend::{Dedup, FetchedRow, Scope, Transitioned};
use outbox_contract::{AdminExt, KeyId, Store, Transactional};
use tokio::time::{sleep, timeout};

use super::StoreHarness;
use super::inbox::{consumer, deduplicate};
use super::support::{LATER, Relay, fail_step, message, messages, prepared, stored_ids, write};

/// A step whose call is dropped half-way (a timeout, an aborted task) happens whole or not at all,
/// and leaves no transaction open: the next step of the key is done.
pub async fn a_step_that_is_dropped_half_way_is_whole_or_nothing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    for round in 0..20 {
        let written = messages("orders", &format!("key-{round}"), 3);
        let key = written[0].key_id();
        write(&*store, written).await;
        let fail = fail_step(&relay.read_key(&key).await, 1, LATER);
        let fail = relay.key_transition(&key, None, fail);
        // It is polled once, or a little longer.
        let wait = Duration::from_micros(round * 100);
        let _ = timeout(wait, store.transition(std::slice::from_ref(&fail))).await;
        // The database may still be at it. A step that is half done stays so.
        let mut seen = places(&relay, &key).await;
        for _ in 0..100 {
            if seen == PARKED || seen == FLOWING {
                break;
            }
            sleep(Duration::from_millis(20)).await;
            seen = places(&relay, &key).await;
        }
        assert!(
            seen == PARKED || seen == FLOWING,
            "a step with 3 messages that was dropped in round {round} has left {seen:?}"
        );
        let again = relay.transition(fail).await;
        assert!(matches!(again, Transitioned::Done(Some(_)) | Transitioned::Stale), "{again:?}");
        assert_eq!(places(&relay, &key).await, PARKED, "repeated, it is done in round {round}");
    }
}

const PARKED: Places = Places { parked: 3, flowing: 0, behind: 0 };
const FLOWING: Places = Places { parked: 0, flowing: 3, behind: 0 };

/// Number of messages of a key by where they stand.
#[derive(Debug, PartialEq, Eq)]
struct Places {
    parked: usize,
    flowing: usize,
    /// In the hot table, behind a failing message.
    behind: usize,
}

async fn places<S: Store>(relay: &Relay<S>, key: &KeyId) -> Places {
    let filter = Filter { key: Some(key.key.clone()), ..Filter::all_routes() };
    let parked = relay.store.parked(&filter).await.expect("parked messages are listed").len();
    let mut request = relay.fetch_request();
    request.scope = Scope::Key(key.clone());
    let rows = relay.fetch_with(&request).await.rows;
    let flowing = rows.iter().filter(|row| matches!(row, FetchedRow::Message(_))).count();
    Places { parked, flowing, behind: rows.len() - flowing }
}

/// A commit that is dropped half-way (a timeout, an aborted task) happened or not, for all that was
/// in the transaction, and leaves no lock: others write to the key and handle the message.
pub async fn a_commit_that_is_dropped_half_way_is_whole_or_nothing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let inventory = consumer("inventory");
    for round in 0..20 {
        let (handled, emitted) = (message("orders", "a"), message("stock", "a"));
        let mut tx = store.begin().await.expect("a transaction begins");
        let dedup = store.deduplicate(&mut tx, &inventory, &[&handled]).await.expect("it is looked up");
        assert_eq!(dedup, [Dedup::New]);
        store.append(&mut tx, &[emitted.clone().into()]).await.expect("a valid message is appended");
        // It is polled once, or a little longer.
        let wait = Duration::from_micros(round * 100);
        let _ = tokio::time::timeout(wait, store.commit(tx)).await;

        // Behind it, as it holds the lock of the key and that of the id.
        let next = message("stock", "a");
        write(&*store, [next.clone()]).await;
        let dedup = deduplicate(&*store, &inventory, &[&handled]).await;
        let read = relay.read().await;
        let expected = if dedup == [Dedup::Duplicate] { vec![emitted.id, next.id] } else { vec![next.id] };
        assert_eq!(stored_ids(&read), expected, "{dedup:?} after a commit that was dropped in round {round}");
        relay.settle(&read).await;
    }
}
