//! Promise P4 in the store: a consumer's handling of a message is committed once, however often it
//! is redelivered and whichever process handles it.

use std::sync::Arc;

use outbox_contract::backend::{Committed, Dedup};
use outbox_contract::{
    AdminExt, Consumer, Message, Outgoing, StoreError, StoreErrorKind, Transactional, inbox_route,
};

use super::StoreHarness;
use super::support::{
    LATER, LONG, MAX_ATTEMPTS, Relay, back_off, message, messages, prepared, stored_ids, write,
};

pub(super) fn consumer(name: &str) -> Consumer {
    Consumer::new(name).expect("a consumer of the suite is valid")
}

/// Deduplicates in a transaction of its own that commits; restarts it on a conflict.
pub(super) async fn deduplicate<S: Transactional>(
    store: &S,
    consumer: &Consumer,
    messages: &[&Message],
) -> Vec<Dedup> {
    for _ in 0..MAX_ATTEMPTS {
        match try_deduplicate(store, consumer, messages).await {
            Ok(handled_ids) => return handled_ids,
            Err(error) if error.is_retryable() => back_off().await,
            Err(error) => panic!("a message is recorded as handled or not: {error}"),
        }
    }
    panic!("{MAX_ATTEMPTS} transactions in a row ended in a conflict");
}

async fn try_deduplicate<S: Transactional>(
    store: &S,
    consumer: &Consumer,
    messages: &[&Message],
) -> Result<Vec<Dedup>, StoreError> {
    let mut tx = store.begin().await?;
    match store.deduplicate(&mut tx, consumer, messages).await {
        Ok(handled_ids) => store.commit(tx).await.into_result().map(|()| handled_ids),
        Err(error) => {
            // The result of the rollback does not matter: the error of the deduplication is the
            // cause.
            let _ = store.rollback(tx).await;
            Err(error)
        }
    }
}

pub(super) async fn is_handled<S: Transactional>(store: &S, consumer: &Consumer, message: &Message) -> bool {
    store.is_handled(consumer, message.id).await.expect("the question is answered")
}

/// A message is new, and once that is committed, it is always a duplicate.
pub async fn a_message_is_new_once<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let (inventory, message) = (consumer("inventory"), message("orders", "a"));
    assert!(!is_handled(&*store, &inventory, &message).await);
    assert_eq!(deduplicate(&*store, &inventory, &[&message]).await, [Dedup::New]);
    assert!(is_handled(&*store, &inventory, &message).await);
    for _ in 0..2 {
        assert_eq!(deduplicate(&*store, &inventory, &[&message]).await, [Dedup::Duplicate]);
    }
    let other_process = harness.as_another_process().await;
    assert_eq!(deduplicate(&*other_process, &inventory, &[&message]).await, [Dedup::Duplicate]);
}

/// A message whose deduplication was rolled back or dropped was not handled, so it is new again.
pub async fn a_deduplication_that_was_rolled_back_never_was<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let (inventory, message) = (consumer("inventory"), message("orders", "a"));
    for dropped in [false, true] {
        let mut tx = store.begin().await.expect("a transaction begins");
        let handled_ids = store.deduplicate(&mut tx, &inventory, &[&message]).await.expect("is_handled");
        assert_eq!(handled_ids, [Dedup::New]);
        if dropped {
            drop(tx);
        } else {
            store.rollback(tx).await.expect("the transaction is rolled back");
            assert!(!is_handled(&*store, &inventory, &message).await);
        }
    }
    assert_eq!(deduplicate(&*store, &inventory, &[&message]).await, [Dedup::New]);
}

/// A message handled by one consumer is still new to another.
pub async fn each_consumer_handles_a_message_itself<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let message = message("orders", "a");
    // Names that a careless database treats as equal, and the longest possible ones.
    let names = ["inventory".to_owned(), "Inventory".to_owned(), "inventory ".to_owned(), "é".repeat(64)];
    for name in &names {
        assert_eq!(deduplicate(&*store, &consumer(name), &[&message]).await, [Dedup::New], "{name:?}");
    }
    for name in &names {
        assert_eq!(deduplicate(&*store, &consumer(name), &[&message]).await, [Dedup::Duplicate], "{name:?}");
    }
}

/// A batch is answered one by one, in its order, and only new messages are recorded.
pub async fn a_batch_is_answered_one_by_one<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let inventory = consumer("inventory");
    let batch: Vec<Message> = (0..300).map(|at| message("orders", &format!("key-{at}"))).collect();
    let known: Vec<&Message> = batch.iter().step_by(3).collect();
    deduplicate(&*store, &inventory, &known).await;
    let all: Vec<&Message> = batch.iter().collect();
    let handled_ids = deduplicate(&*store, &inventory, &all).await;
    assert_eq!(handled_ids.len(), batch.len());
    for (at, deduplication) in handled_ids.into_iter().enumerate() {
        let expected = if at % 3 == 0 { Dedup::Duplicate } else { Dedup::New };
        assert_eq!(deduplication, expected, "message {at} of the batch");
    }
    assert_eq!(deduplicate(&*store, &inventory, &[]).await, []);
}

/// The same message twice in one batch is new the first time.
pub async fn a_message_given_twice_in_one_call_is_new_the_first_time<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let (inventory, twice, once) = (consumer("inventory"), message("orders", "a"), message("orders", "b"));
    let handled_ids = deduplicate(&*store, &inventory, &[&twice, &once, &twice]).await;
    assert_eq!(handled_ids, [Dedup::New, Dedup::New, Dedup::Duplicate]);
}

/// However many handlers run at once, exactly one commits the message as new; the others learn of
/// it only from committed data.
pub async fn of_handlers_at_once_exactly_one_commits<H: StoreHarness>(harness: &H) {
    const HANDLERS: usize = 8;
    let store = prepared(harness).await;
    let other_process = harness.as_another_process().await;
    let relay = Relay::start(&store).await;
    for round in 0..5 {
        let handled = Arc::new(message("orders", &format!("key-{round}")));
        let handlers: Vec<_> = (0..HANDLERS)
            .map(|at| {
                let store = Arc::clone(if at % 2 == 0 { &store } else { &other_process });
                let handled = Arc::clone(&handled);
                tokio::spawn(async move { handle(&*store, &handled).await })
            })
            .collect();
        let mut news = 0;
        for handler in handlers {
            news += usize::from(handler.await.expect("a handler finishes") == Dedup::New);
        }
        assert_eq!(news, 1, "one of {HANDLERS} handlers committed it as new");
        let effects = relay.read().await;
        assert_eq!(effects.len(), 1, "and its effect is there once");
        relay.settle(&effects).await;
    }
}

/// Handles as the inbox does: deduplicate, an effect if the message is new, commit; restarts on a
/// conflict.
async fn handle<S: Transactional>(store: &S, handled: &Message) -> Dedup {
    for _ in 0..MAX_ATTEMPTS {
        match try_handle(store, handled).await {
            Ok(deduplication) => return deduplication,
            Err(error) => {
                assert!(error.is_retryable(), "a conflict is no duplicate and no other error: {error}")
            }
        }
        back_off().await;
    }
    panic!("{MAX_ATTEMPTS} handlers in a row ended in a conflict");
}

async fn try_handle<S: Transactional>(store: &S, handled: &Message) -> Result<Dedup, StoreError> {
    let mut tx = store.begin().await?;
    let deduplication = match store.deduplicate(&mut tx, &consumer("inventory"), &[handled]).await {
        Ok(handled_ids) => handled_ids[0],
        Err(error) => {
            let _ = store.rollback(tx).await;
            return Err(error);
        }
    };
    if deduplication != Dedup::New {
        store.rollback(tx).await?;
        return Ok(deduplication);
    }
    if let Err(error) = store.append(&mut tx, &[message("effects", "of-it").into()]).await {
        let _ = store.rollback(tx).await;
        return Err(StoreError::new(StoreErrorKind::Conflict, "append", error.to_string()));
    }
    match store.commit(tx).await {
        Committed::Yes => Ok(Dedup::New),
        Committed::No(error) => Err(error),
        Committed::Unknown(error) => panic!("no connection was cut, so the result is known: {error}"),
    }
}

/// Dedup, effects and emitted messages are one transaction.
pub async fn what_a_handler_emits_commits_with_its_deduplication<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (inventory, handled, emitted) =
        (consumer("inventory"), message("orders", "a"), message("stock", "a"));
    for commits in [false, true] {
        let mut tx = store.begin().await.expect("a transaction begins");
        let handled_ids = store.deduplicate(&mut tx, &inventory, &[&handled]).await.expect("is_handled");
        assert_eq!(handled_ids, [Dedup::New]);
        store.append(&mut tx, &[emitted.clone().into()]).await.expect("a valid message is appended");
        if commits {
            store.commit(tx).await.into_result().expect("the transaction commits");
        } else {
            store.rollback(tx).await.expect("the transaction is rolled back");
        }
        assert_eq!(is_handled(&*store, &inventory, &handled).await, commits);
        assert_eq!(relay.read().await.len(), usize::from(commits));
    }
}

/// A message must not overtake earlier ones of its key that wait for this consumer in the store.
pub async fn a_message_goes_behind_those_that_wait_for_its_consumer<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let inventory = consumer("inventory");
    let all = messages("orders", "a", 2);
    let (waiting, follower) = (&all[0], &all[1]);
    let other_key = message("orders", "b");
    let waits = Outgoing::from(waiting.clone()).by(inbox_route(&inventory));
    write(&*store, [waits]).await;

    let handled_ids = deduplicate(&*store, &inventory, &[follower, &other_key]).await;
    assert_eq!(handled_ids, [Dedup::OutOfTurn, Dedup::New], "another key does not wait");
    assert!(!is_handled(&*store, &inventory, follower).await, "what must wait was not noted");
    assert_eq!(
        deduplicate(&*store, &consumer("billing"), &[follower]).await,
        [Dedup::New],
        "another consumer does not wait"
    );

    let relay = Relay::on(&store, inbox_route(&inventory), LONG).await;
    let read = relay.read().await;
    assert_eq!(stored_ids(&read), [waiting.id]);
    relay.settle(&read).await;
    assert_eq!(
        deduplicate(&*store, &inventory, &[follower]).await,
        [Dedup::New],
        "nothing is before it any more"
    );
}

/// A repeat of the waiting message is recorded as handled, and unblocks only later messages: those
/// in front of it in the same call keep waiting.
pub async fn a_repeat_further_back_lets_nothing_in_front_of_it_pass<H: StoreHarness>(harness: &H) {
    use Dedup::{New, OutOfTurn};
    let store = prepared(harness).await;
    let inventory = consumer("inventory");
    let all = messages("orders", "a", 4);
    let other_key = message("orders", "b");
    write(&*store, [Outgoing::from(all[0].clone()).by(inbox_route(&inventory))]).await;

    let asked = [&all[1], &other_key, &all[2], &all[0], &all[3]];
    assert_eq!(deduplicate(&*store, &inventory, &asked).await, [OutOfTurn, New, OutOfTurn, New, New]);
}

/// The same holds if they are parked because the handler fails.
pub async fn a_message_goes_behind_those_that_are_parked_for_its_consumer<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let inventory = consumer("inventory");
    let all = messages("orders", "a", 2);
    let relay = Relay::on(&store, inbox_route(&inventory), LONG).await;
    write(&*store, [Outgoing::from(all[0].clone()).by(inbox_route(&inventory))]).await;
    relay.fail(&relay.read().await, LATER).await;
    assert!(relay.fetch().await.is_empty(), "it is parked");
    assert_eq!(deduplicate(&*store, &inventory, &[&all[1]]).await, [Dedup::OutOfTurn]);
}

/// A repeat of the first message of a key that an operator holds waits too: only a release lets it
/// pass.
pub async fn a_repeat_of_a_held_message_is_not_handled<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let inventory = consumer("inventory");
    let route = inbox_route(&inventory);
    let held = message("orders", "a");
    let relay = Relay::on(&store, route.clone(), LONG).await;
    write(&*store, [Outgoing::from(held.clone()).by(route.clone())]).await;
    relay.fail(&relay.read().await, LATER).await;
    store.hold(&route, &held.key_id()).await.expect("the key fails");
    assert_eq!(deduplicate(&*store, &inventory, &[&held]).await, [Dedup::OutOfTurn]);
    store.release(&route, &held.key_id()).await.expect("the key is held");
    assert_eq!(deduplicate(&*store, &inventory, &[&held]).await, [Dedup::New]);
}

/// A message that was handled is a duplicate, whatever waits.
pub async fn a_handled_message_is_a_duplicate_even_when_others_wait<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let inventory = consumer("inventory");
    let all = messages("orders", "a", 2);
    assert_eq!(deduplicate(&*store, &inventory, &[&all[0]]).await, [Dedup::New]);
    write(&*store, [Outgoing::from(all[1].clone()).by(inbox_route(&inventory))]).await;
    assert_eq!(deduplicate(&*store, &inventory, &[&all[0]]).await, [Dedup::Duplicate]);
}
