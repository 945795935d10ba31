//! Ids of handled messages: how long they are kept, and that an operator can remove them.

use std::time::Duration;

use outbox_contract::admin::{Filter, HandledFilter, MAX_PER_CALL};
use outbox_contract::backend::Dedup;
use outbox_contract::{Admin, Consumer, Message, NameError, Outgoing, Store, Transactional, inbox_route};

use super::inbox::{consumer, deduplicate, is_handled};
use super::support::{LONG, Relay, database_now, message, messages, prepared, write};
use super::{Capability, StoreHarness, has};

const DAY: Duration = Duration::from_secs(24 * 3_600);

/// Removes what is over its time, to the last.
async fn maintain<S: Store>(store: &S) {
    while store.maintain(1_000).await.expect("a round of maintenance is done").more {}
}

/// Handles a message in a transaction of its own.
async fn handle<S: Transactional>(store: &S, consumer: &Consumer, message: &Message) {
    assert_eq!(deduplicate(store, consumer, &[message]).await, [Dedup::New]);
}

/// Lives through these days: the consumer handles a message on each of them.
async fn live<H: StoreHarness>(harness: &H, store: &H::Store, consumer: &Consumer, days: u32) {
    for _ in 0..days {
        handle(store, consumer, &message("orders", "daily")).await;
        harness.age_handled_ids(DAY).await;
    }
    handle(store, consumer, &message("orders", "daily")).await;
    maintain(store).await;
}

fn handled_by(consumer: impl TryInto<Consumer, Error: Into<NameError>>) -> HandledFilter {
    HandledFilter::of(consumer).expect("a valid consumer")
}

async fn count<S: Admin>(store: &S, filter: &HandledFilter) -> u64 {
    store.count_handled(filter).await.expect("what was handled is counted")
}

/// Forgets all that a filter selects. Returns their number.
async fn forget<S: Admin>(store: &S, filter: &HandledFilter) -> u64 {
    let mut forgotten = 0;
    loop {
        match store.forget(filter).await.expect("what was handled is forgotten") {
            0 => return forgotten,
            some => forgotten += some,
        }
    }
}

/// The retention counts while a consumer handles messages, and not while it is away: when it comes
/// back after a month, it knows what it handled before. A consumer that was there all the time has
/// forgotten what it handled a month ago. Stores under test keep ids for 7 days.
pub async fn ids_outlive_the_absence_of_their_consumer<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let (away, busy) = (consumer("away"), consumer("busy"));
    let (before, meanwhile) = (message("orders", "a"), message("orders", "b"));
    handle(&*store, &away, &before).await;
    handle(&*store, &busy, &meanwhile).await;
    live(harness, &store, &busy, 30).await;
    assert!(is_handled(&*store, &away, &before).await, "its consumer was away");
    assert!(!is_handled(&*store, &busy, &meanwhile).await, "its consumer was there for a month");

    // Back, and the broker repeats what it had: the first new message must not be the end of the
    // ids.
    handle(&*store, &away, &message("orders", "new")).await;
    maintain(&*store).await;
    assert_eq!(deduplicate(&*store, &away, &[&before]).await, [Dedup::Duplicate], "it has just come back");
    live(harness, &store, &away, 4).await;
    assert_eq!(deduplicate(&*store, &away, &[&before]).await, [Dedup::Duplicate], "back for four days");
    live(harness, &store, &away, 5).await;
    assert!(!is_handled(&*store, &away, &before).await, "back for longer than the retention");
}

/// A consumer that is gone does not keep its ids forever: they have a maximum age. Stores under
/// test set it to 90 days.
pub async fn ids_have_a_maximum_age<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let (gone, last) = (consumer("gone"), message("orders", "a"));
    handle(&*store, &gone, &last).await;
    harness.age_handled_ids(DAY * 89).await;
    maintain(&*store).await;
    assert!(is_handled(&*store, &gone, &last).await, "not as old as that");
    harness.age_handled_ids(DAY * 2).await;
    maintain(&*store).await;
    assert!(!is_handled(&*store, &gone, &last).await);
}

/// One process removes the ids of all. The longest retention that any process has recorded counts,
/// whichever process that is: its own is 7 days here, and another has recorded 30.
pub async fn the_longest_recorded_retention_counts<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::OtherRetention) {
        return;
    }
    let store = prepared(harness).await;
    let longer = harness.as_another_process_that_keeps_ids(DAY * 30).await;
    for of_process in [&longer, &store] {
        of_process.record_retention().await.expect("a retention is recorded");
    }
    let (busy, first) = (consumer("busy"), message("orders", "a"));
    handle(&*store, &busy, &first).await;
    live(harness, &store, &busy, 20).await;
    assert!(is_handled(&*store, &busy, &first).await, "the shorter one removed what the longer one keeps");
    assert_eq!(deduplicate(&*longer, &busy, &[&first]).await, [Dedup::Duplicate]);
    maintain(&*longer).await;
    assert!(is_handled(&*store, &busy, &first).await, "the longer one removed what it keeps");
    live(harness, &store, &busy, 15).await;
    assert!(!is_handled(&*store, &busy, &first).await, "over the longer retention, too");
}

/// A recorded retention counts for its maximum age (90 days here) and a day after its last renewal:
/// what was handled until then is over that age. After that the retention of the process that
/// removes ids counts, until the longer one is recorded again.
pub async fn a_recorded_retention_counts_until_its_ids_are_over_their_age<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::OtherRetention) {
        return;
    }
    let store = prepared(harness).await;
    let longer = harness.as_another_process_that_keeps_ids(DAY * 30).await;
    longer.record_retention().await.expect("a retention is recorded");
    let busy = consumer("busy");
    let all = messages("orders", "a", 3);
    harness.age_handled_ids(DAY * 70).await;
    handle(&*store, &busy, &all[0]).await;
    live(harness, &store, &busy, 20).await;
    assert!(is_handled(&*store, &busy, &all[0]).await, "recorded 90 days ago");
    handle(&*store, &busy, &all[1]).await;
    live(harness, &store, &busy, 12).await;
    assert!(!is_handled(&*store, &busy, &all[1]).await, "not renewed for 102 days");

    longer.record_retention().await.expect("a retention is recorded");
    handle(&*store, &busy, &all[2]).await;
    live(harness, &store, &busy, 12).await;
    assert!(is_handled(&*store, &busy, &all[2]).await, "recorded again");
}

/// A forgotten message is new to its consumer once more, and then a duplicate again. Everything
/// that was not selected stays handled: other topics, keys, times and consumers.
pub async fn a_forgotten_message_is_new_once_more<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let (inventory, invoices) = (consumer("inventory"), consumer("invoices"));
    let (a, b, other) = (message("orders", "a"), message("orders", "b"), message("customers", "a"));
    let keyless = Message::new(a.topic.clone(), "suite.event").expect("a valid topic");
    let all = [&a, &b, &other, &keyless];
    for consumer in [&inventory, &invoices] {
        assert_eq!(deduplicate(&*store, consumer, &all).await, [Dedup::New; 4]);
    }
    let of_inventory = handled_by(inventory.clone());
    let (orders, of_a) = (a.topic.clone(), a.key_id().key);
    assert_eq!(count(&*store, &of_inventory).await, 4);
    assert_eq!(count(&*store, &handled_by("nobody")).await, 0);

    let topic = of_inventory.clone().with_topic(orders).expect("a valid topic");
    let key = topic.clone().with_key(of_a).expect("a valid key");
    assert_eq!((count(&*store, &key).await, forget(&*store, &key).await), (1, 1));
    assert_eq!(forget(&*store, &key).await, 0, "forgotten once");
    assert!(!is_handled(&*store, &inventory, &a).await);
    assert_eq!(deduplicate(&*store, &inventory, &all).await[..2], [Dedup::New, Dedup::Duplicate]);
    assert_eq!(deduplicate(&*store, &inventory, &all).await, [Dedup::Duplicate; 4], "handled again");

    assert_eq!((count(&*store, &topic).await, forget(&*store, &topic).await), (3, 3));
    let answers = [Dedup::New, Dedup::New, Dedup::Duplicate, Dedup::New];
    assert_eq!(deduplicate(&*store, &inventory, &all).await, answers);
    assert_eq!(deduplicate(&*store, &invoices, &all).await, [Dedup::Duplicate; 4], "of another consumer");
    assert_eq!(forget(&*store, &of_inventory).await, 4, "a consumer is forgotten");
    assert_eq!(count(&*store, &handled_by(invoices)).await, 4);

    let entries = store.audit(&Filter::all_routes()).await.expect("recorded operations are listed");
    let recorded: Vec<_> = entries.iter().map(|entry| (entry.operation.as_str(), entry.affected)).collect();
    assert_eq!(recorded, [("forget", 1), ("forget", 3), ("forget", 4)]);
    let first = &entries[0];
    let key = (first.topic.as_ref(), first.key.as_ref(), first.ids.as_slice());
    assert_eq!(key, (Some(&a.topic), Some(&a.key_id().key), [a.id].as_slice()));
    assert!(first.detail.contains("inventory"), "{}", first.detail);
}

/// A filter's instants are those of the handling, by the database's clock: from `since` on, and
/// before `before`.
pub async fn messages_are_forgotten_by_the_time_of_their_handling<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let (inventory, all) = (consumer("inventory"), messages("orders", "a", 3));
    let mut between = Vec::new();
    for message in &all {
        harness.advance(Duration::from_millis(5)).await;
        between.push(database_now(&store).await);
        harness.advance(Duration::from_millis(5)).await;
        handle(&*store, &inventory, message).await;
    }
    let filter = handled_by(inventory.clone());
    let second = filter.clone().with_since(between[1]).with_before(between[2]);
    assert_eq!((count(&*store, &second).await, forget(&*store, &second).await), (1, 1));
    let refs: Vec<&Message> = all.iter().collect();
    let answers = [Dedup::Duplicate, Dedup::New, Dedup::Duplicate];
    assert_eq!(deduplicate(&*store, &inventory, &refs).await, answers);
    let none = filter.clone().with_before(between[0]);
    assert_eq!((count(&*store, &none).await, forget(&*store, &none).await), (0, 0));
    // The second was handled again, after the third.
    assert_eq!(count(&*store, &filter.with_since(between[2])).await, 2);
}

/// A forgotten message takes its turn like any other of its key: at once where none waits,
/// whichever later ones were handled before; else behind those that wait for the consumer.
pub async fn a_forgotten_message_takes_its_turn<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let inventory = consumer("inventory");
    let all = messages("orders", "a", 3);
    for message in &all {
        handle(&*store, &inventory, message).await;
    }
    let key = handled_by(inventory.clone()).with_key(all[0].key_id().key).expect("a valid key");
    assert_eq!(forget(&*store, &key).await, 3);
    // The last comes first: a broker repeats in its own order.
    handle(&*store, &inventory, &all[2]).await;
    handle(&*store, &inventory, &all[0]).await;

    let (waiting, route) = (message("orders", "a"), inbox_route(&inventory));
    write(&*store, [Outgoing::from(waiting.clone()).by(route.clone())]).await;
    assert_eq!(deduplicate(&*store, &inventory, &[&all[1]]).await, [Dedup::OutOfTurn]);
    assert_eq!(deduplicate(&*store, &inventory, &[&all[0]]).await, [Dedup::Duplicate]);
    handle(&*store, &inventory, &waiting).await;
    let relay = Relay::on(&store, route, LONG).await;
    relay.settle(&relay.read().await).await;
    handle(&*store, &inventory, &all[1]).await;
    assert_eq!(count(&*store, &key).await, 4);
}

/// A call forgets a limited number, the oldest first; a repeated one reaches all.
pub async fn thousands_are_forgotten_call_by_call<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let inventory = consumer("inventory");
    let all = messages("orders", "a", MAX_PER_CALL + 5);
    let refs: Vec<&Message> = all.iter().collect();
    let (first, last) = refs.split_at(5);
    assert!(deduplicate(&*store, &inventory, first).await.iter().all(|dedup| *dedup == Dedup::New));
    harness.advance(Duration::from_millis(5)).await;
    assert!(deduplicate(&*store, &inventory, last).await.iter().all(|dedup| *dedup == Dedup::New));
    let filter = handled_by(inventory.clone());
    assert_eq!(count(&*store, &filter).await, refs.len() as u64);
    assert_eq!(store.forget(&filter).await.expect("some are forgotten"), MAX_PER_CALL as u64);
    assert!(!is_handled(&*store, &inventory, first[0]).await, "the oldest go first");
    assert_eq!(count(&*store, &filter).await, 5);
    assert_eq!(store.forget(&filter).await.expect("the rest is forgotten"), 5);
    assert_eq!(store.forget(&filter).await.expect("none is left"), 0);
}
