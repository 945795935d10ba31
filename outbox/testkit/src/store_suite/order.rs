//! Promise P3 in the store: within a key, the order of positions is the order in which transactions
//! committed.
//!
//! Real time decides order: one transaction is before another if its commit had returned before the
//! other's append began. Positions never decide, because they are under test.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{FetchedRow, Ordering, Position};
use outbox_contract::{KeyId, Message, Outgoing, Store, Transactional};

use super::StoreHarness;
use super::support::{
    MAX_ATTEMPTS, Relay, back_off, ids, in_key_order, message, messages, prepared, published, stored_ids,
    try_write, write,
};
use crate::history::History;

/// The order within one call is the order of the list.
pub async fn messages_of_one_append_keep_their_order<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    // Two keys interleaved, so that sorting by key would show.
    let (a, b) = (messages("orders", "a", 20), messages("orders", "b", 20));
    let interleaved = b.iter().zip(&a).flat_map(|(b, a)| [b.clone(), a.clone()]);
    write(&*store, interleaved).await;
    assert_eq!(stored_ids(&relay.read_key(&a[0].key_id()).await), ids(&a));
    assert_eq!(stored_ids(&relay.read_key(&b[0].key_id()).await), ids(&b));
}

/// The order within one transaction is the order of the calls.
pub async fn several_appends_of_one_transaction_keep_their_order<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 12);
    let mut tx = store.begin().await.expect("a transaction begins");
    for part in all.chunks(3) {
        let part: Vec<Outgoing> = part.iter().cloned().map(Outgoing::from).collect();
        store.append(&mut tx, &part).await.expect("valid messages are appended");
    }
    store.commit(tx).await.into_result().expect("the transaction commits");
    assert_eq!(stored_ids(&relay.read_key(&all[0].key_id()).await), ids(&all));
}

/// Positions ascend along a key, one transaction after another.
pub async fn positions_ascend_along_a_key<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 30);
    for message in &all {
        write(&*store, [message.clone()]).await;
    }
    assert_eq!(stored_ids(&relay.read_key(&all[0].key_id()).await), ids(&all));
}

/// A position is not reused when its row is gone: a relay that reads on from it would miss the new
/// row.
pub async fn positions_do_not_come_back_when_everything_is_settled<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    write(&*store, messages("orders", "a", 3)).await;
    let before = relay.read().await;
    relay.settle(&before).await;
    write(&*store, messages("orders", "a", 3)).await;
    let after = relay.read().await;
    let (last, first) = (&before[2], &after[0]);
    assert!(first.position > Position::START, "positions start at 1, got {}", first.position);
    assert!(first.position > last.position, "{} was used after {}", first.position, last.position);
    if let (Some(last), Some(first)) = (last.stripe, first.stripe) {
        assert_eq!(first.number, last.number + 1, "the numbers of a stripe have no gaps");
    }
}

/// Many writers without locks of their own append to few keys.
pub async fn concurrent_writers_of_a_key_are_in_commit_order<H: StoreHarness>(harness: &H) {
    const WRITERS: usize = 8;
    const TRANSACTIONS: usize = 12;
    let store = prepared(harness).await;
    let other_process = harness.as_another_process().await;
    let relay = Relay::start(&store).await;
    let history = Arc::new(History::new());

    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let store = Arc::clone(if writer % 2 == 0 { &store } else { &other_process });
            let history = Arc::clone(&history);
            tokio::spawn(async move {
                for turn in 0..TRANSACTIONS {
                    let key = format!("key-{}", (writer + turn) % 3);
                    let batch = messages("orders", &key, 1 + turn % 3);
                    write_recorded(&*store, &history, &batch).await;
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.expect("a writer finishes");
    }

    let consumer = history.consumer("reader");
    for stored in in_key_order(relay.read().await) {
        history.delivered(consumer, &stored.message);
    }
    history.check().assert_exactly_once();
}

/// Like `write`, with each attempt recorded: rolled back messages must not be read, and committed
/// ones must be in order.
async fn write_recorded<S: Transactional>(store: &S, history: &History, batch: &[Message]) {
    let outgoing: Vec<Outgoing> = batch.iter().cloned().map(Outgoing::from).collect();
    for _ in 0..MAX_ATTEMPTS {
        let mut writing = history.begin();
        for message in batch {
            writing.append(message);
        }
        match try_write(store, &outgoing).await {
            Ok(()) => return writing.committed(),
            Err(error) if error.is_retryable() => {
                writing.rolled_back();
                back_off().await;
            }
            Err(error) => panic!("a valid message was not committed: {error}"),
        }
    }
    panic!("{MAX_ATTEMPTS} transactions in a row ended in a conflict");
}

/// A writer of a key to which an open transaction has appended waits for its end, or conflicts; it
/// does not overtake.
pub async fn a_second_writer_of_a_key_does_not_overtake_the_first<H: StoreHarness>(harness: &H) {
    for commits in [true, false] {
        second_writer(harness, commits).await;
    }
}

async fn second_writer<H: StoreHarness>(harness: &H, first_commits: bool) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let key = if first_commits { "committed" } else { "rolled-back" };
    let (first, second) = (message("orders", key), message("orders", key));

    let other_process = harness.as_another_process().await;
    let mut tx = store.begin().await.expect("a transaction begins");
    store.append(&mut tx, &[first.clone().into()]).await.expect("a valid message is appended");
    let to_write = [Outgoing::from(second.clone())];
    let mut writer = tokio::spawn(async move { try_write(&*other_process, &to_write).await });
    // Time enough to overtake, for one that doesn't wait.
    let early = tokio::time::timeout(Duration::from_millis(300), &mut writer).await;
    assert!(
        !matches!(early, Ok(Ok(Ok(())))),
        "a second writer of the key committed while the first was still open: its message is ahead of one committed later"
    );
    if first_commits {
        store.commit(tx).await.into_result().expect("the first transaction commits");
    } else {
        store.rollback(tx).await.expect("the first transaction is rolled back");
    }
    let outcome = match early {
        Ok(ended) => ended,
        Err(_) => writer.await,
    };
    match outcome.expect("the second writer ends") {
        Ok(()) => {}
        Err(error) => {
            assert!(error.is_retryable(), "the second writer may conflict, and nothing else: {error}");
            write(&*store, [second.clone()]).await;
        }
    }
    let expected = if first_commits { vec![first.id, second.id] } else { vec![second.id] };
    assert_eq!(stored_ids(&relay.read_key(&first.key_id()).await), expected);
    relay.leave().await;
}

/// Keys do not wait for each other, where a store has more than one writer at a time.
pub async fn an_open_transaction_hides_nothing_that_others_commit<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    if store.frontier().ordering() == Ordering::Single {
        return;
    }
    let relay = Relay::start(&store).await;
    let (slow, quick) = keys_apart();
    let mut tx = store.begin().await.expect("a transaction begins");
    store.append(&mut tx, &[slow.clone().into()]).await.expect("a valid message is appended");
    write(&*store, [quick.clone()]).await;
    assert_eq!(stored_ids(&relay.read().await), [quick.id], "what is committed is fetched at once");

    if store.frontier().ordering() == Ordering::Writers {
        let writers = store.frontier().writers().await.expect("writers are listed");
        assert!(!writers.open.is_empty(), "an open transaction that has a position is among the writers");
        store.commit(tx).await.into_result().expect("the transaction commits");
        let after = store.frontier().writers().await.expect("writers are listed");
        assert!(
            !writers.open.is_subset(&after.open),
            "a transaction that is over is no longer among the writers"
        );
    } else {
        store.commit(tx).await.into_result().expect("the transaction commits");
    }
    let mut both = stored_ids(&relay.read().await);
    let mut expected = vec![slow.id, quick.id];
    both.sort();
    expected.sort();
    assert_eq!(both, expected, "a late commit is fetched, wherever its position is");
}

/// Two messages of different topics, keys and buckets.
fn keys_apart() -> (Message, Message) {
    let slow = message("slow", "a");
    let quick = (0..).map(|at| message("quick", &format!("b-{at}")));
    let quick =
        quick.into_iter().find(|quick| quick.bucket() != slow.bucket()).expect("there are 256 buckets");
    (slow, quick)
}

/// A rolled back transaction had taken positions; no reader waits for them.
pub async fn a_rollback_leaves_no_hole_that_blocks<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (before, after) = (message("orders", "a"), message("orders", "a"));
    write(&*store, [before.clone()]).await;
    let mut tx = store.begin().await.expect("a transaction begins");
    let lost: Vec<Outgoing> = messages("orders", "a", 5).into_iter().map(Outgoing::from).collect();
    store.append(&mut tx, &lost).await.expect("valid messages are appended");
    store.rollback(tx).await.expect("the transaction is rolled back");
    write(&*store, [after.clone()]).await;

    let read = relay.read_key(&before.key_id()).await;
    assert_eq!(stored_ids(&read), [before.id, after.id]);
    if let (Some(first), Some(second)) = (read[0].stripe, read[1].stripe) {
        assert_eq!(second.number, first.number + 1, "the numbers of a stripe have no gaps");
    }
    let writers = store.frontier().writers().await.expect("writers are listed");
    assert!(writers.open.is_empty(), "no transaction is open, so none may still commit: {writers:?}");
}

/// Readers stop reading below the last position once its writers are done: later appends must not
/// land there.
pub async fn what_is_appended_later_stands_above_the_last_position<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    if store.frontier().ordering() != Ordering::Writers {
        return;
    }
    let relay = Relay::start(&store).await;
    // The first time, no position was ever assigned.
    for _ in 0..3 {
        let writers = store.frontier().writers().await.expect("writers are listed");
        assert!(writers.open.is_empty(), "no transaction is open: {writers:?}");
        let later = message("orders", "a");
        write(&*store, [later.clone()]).await;
        let read = relay.read().await;
        let at = read.iter().find(|stored| stored.message.id == later.id).map(|stored| stored.position);
        let at = at.expect("a committed message is fetched");
        assert!(at > writers.last, "{at} was given out after {} was said to be the last", writers.last);
        let last = store.frontier().writers().await.expect("writers are listed").last;
        assert!(
            last == Position::START || last >= at,
            "{at} was given out before {last} was said to be the last"
        );
    }
}

/// In a store with one writer, a reader that continues from the last position it saw misses
/// nothing, whatever is written meanwhile.
pub async fn a_reader_that_follows_the_last_position_misses_nothing<H: StoreHarness>(harness: &H) {
    const WRITERS: usize = 4;
    const EACH: usize = 40;
    let store = prepared(harness).await;
    if store.frontier().ordering() != Ordering::Single {
        return;
    }
    let relay = Relay::start(&store).await;
    for writer in 0..WRITERS {
        let store = Arc::clone(&store);
        // Owned by the test's runtime: the reader below waits for all their writes.
        tokio::spawn(async move {
            for turn in 0..EACH {
                write(&*store, [message("orders", &format!("key-{}", (writer + turn) % 5))]).await;
            }
        });
    }
    let mut request = relay.fetch_request();
    request.limit = 7;
    let mut seen = Vec::new();
    while seen.len() < WRITERS * EACH {
        let fetched = relay.fetch_with(&request).await;
        if let Some(last) = fetched.rows.last() {
            request.after = last.position();
        } else {
            back_off().await;
        }
        seen.extend(fetched.rows.iter().map(FetchedRow::position));
    }
    assert_eq!(seen.len(), relay.fetch().await.len(), "every row was seen, once");
}

/// Keys that read almost the same are different keys, with different orders.
pub async fn keys_that_read_alike_are_different_keys<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let keys = ["a", "A", "a ", " a", "á", "a\u{301}", "ａ", "1", "01", "1.0", "a%", "a_"];
    let written: Vec<Message> = keys.iter().map(|key| message("orders", key)).collect();
    write(&*store, written.iter().cloned()).await;
    for message in &written {
        let key: KeyId = message.key_id();
        assert_eq!(
            stored_ids(&relay.read_key(&key).await),
            [message.id],
            "only its own message is of {key:?}"
        );
    }
    // A failing key is that key alone.
    let failing = relay.read_key(&written[0].key_id()).await;
    relay.fail(&failing, super::support::LATER).await;
    let others: Vec<_> = relay.fetch().await.into_iter().map(published).collect();
    assert_eq!(others.len(), keys.len() - 1, "no other key is flagged as failing");
}
