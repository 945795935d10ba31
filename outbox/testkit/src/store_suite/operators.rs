//! Admin operations on keys and routes: hold, release, skip, discard, pause, resume.

use outbox_contract::admin::{FailingKey, Filter};
use outbox_contract::backend::{FetchedRow, RowId, Step, Then, View};
use outbox_contract::{
    Admin, AdminExt, KeyId, MessageId, Outgoing, Store, StoreErrorKind, Timestamp, Transactional,
};

use super::StoreHarness;
use super::support::{
    LATER, NOW, Relay, fail_step, failure, kind_of, message, messages, prepared, route, stored_ids, topic,
    write,
};

async fn failing_keys<S: Store>(store: &S, filter: &Filter) -> Vec<FailingKey> {
    store.failing_keys(filter).await.expect("failing keys are listed")
}

async fn dead<S: Store>(store: &S) -> Vec<(MessageId, String)> {
    let dead = store.dead_letters(&Filter::all_routes()).await.expect("dead letters are listed");
    dead.into_iter().map(|dead| (dead.stored.message.id, dead.reason)).collect()
}

/// Asserts that of the dead letters the oldest, which had failed once, tells its attempts, and no
/// other does.
async fn assert_only_the_first_has_attempts<S: Store>(store: &S) {
    let dead = store.dead_letters(&Filter::all_routes()).await.expect("dead letters are listed");
    for (at, letter) in dead.iter().enumerate() {
        let failed = |words| (at == 0).then(|| failure(words));
        let told = (letter.attempts, letter.first_failure.clone(), letter.last_failure.clone());
        let expected = (u32::from(at == 0), failed("first"), failed("last"));
        assert_eq!(
            told, expected,
            "attempts and failures of dead letter {at}, of which the first had failed"
        );
    }
}

/// A key whose messages are all parked, and their ids.
async fn parked_key<S: Transactional>(
    relay: &Relay<S>,
    key: &str,
    count: usize,
    then: Then,
) -> (KeyId, Vec<MessageId>) {
    let written = messages("orders", key, count);
    let key = written[0].key_id();
    write(&*relay.store, written).await;
    let stored = relay.read_key(&key).await;
    relay.fail(&stored, then).await;
    (key, stored_ids(&stored))
}

/// A flowing key is held: its messages are flagged, parked behind each other, and never due until
/// it is released.
pub async fn a_held_key_waits_for_the_operator<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let written = messages("orders", "a", 2);
    let key = written[0].key_id();
    store.hold(&relay.route, &key).await.expect("a key that flows is held");
    write(&*store, written.clone()).await;
    write(&*store, [message("orders", "b")]).await;

    let rows: Vec<RowId> = relay
        .fetch()
        .await
        .into_iter()
        .filter_map(|row| match row {
            FetchedRow::Failing(row) => Some(row.at),
            _ => None,
        })
        .collect();
    assert_eq!(rows.len(), 2, "the rows of the held key are flagged, the other key's is not");
    relay.step(&key, None, Step::Park { rows }).await.expect("a held key has a state");
    let due = relay.due().await;
    assert!(due.keys.is_empty() && due.next.is_none(), "{due:?}");
    let failing = failing_keys(&*store, &Filter::all_routes()).await;
    assert_eq!((failing.len(), failing[0].held, failing[0].parked), (1, true, 2));
    assert_eq!((failing[0].attempts, failing[0].next_attempt_at), (0, None));

    store.release(&relay.route, &key).await.expect("a held key is released");
    let due = relay.due().await;
    assert_eq!(stored_ids(&due.keys[0].parked), super::support::ids(&written));
    let delivered = due.keys[0].parked.iter().map(|stored| stored.row()).collect();
    relay.step(&key, Some(due.keys[0].version), Step::Resume { delivered }).await;
    relay.assert_flows(&key).await;
}

/// Holding a held or failing key is no error.
pub async fn holding_again_changes_nothing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, ids) = parked_key(&relay, "a", 2, NOW).await;
    store.hold(&relay.route, &key).await.expect("a failing key is held");
    store.hold(&relay.route, &key).await.expect("a held key is held");
    let failing = failing_keys(&*store, &Filter::all_routes()).await;
    assert_eq!(
        (failing.len(), failing[0].held, failing[0].parked, failing[0].first),
        (1, true, 2, Some(ids[0]))
    );
    assert!(relay.due().await.keys.is_empty(), "a hold ends the retries");
}

/// A relay had a message in flight when the operator held the key: its failure does not undo the
/// hold.
pub async fn a_hold_survives_a_failure<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let written = messages("orders", "a", 2);
    let key = written[0].key_id();
    write(&*store, written).await;
    let stored = relay.read_key(&key).await;
    store.hold(&relay.route, &key).await.expect("a key that flows is held");
    relay.step(&key, None, fail_step(&stored, 1, NOW)).await.expect("a held key has a state");
    let failing = failing_keys(&*store, &Filter::all_routes()).await;
    assert_eq!((failing[0].held, failing[0].parked), (true, 2));
    assert!(relay.due().await.keys.is_empty(), "it stays held");
}

/// A key that is held while empty flows again after its release.
pub async fn a_released_key_with_nothing_parked_flows<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let key = message("orders", "a").key_id();
    store.hold(&relay.route, &key).await.expect("a key that flows is held");
    store.release(&relay.route, &key).await.expect("a held key is released");
    relay.assert_flows(&key).await;
}

/// A failing key that would be tried in an hour is tried now, and its attempts count from 0.
pub async fn a_released_key_is_tried_now<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, ids) = parked_key(&relay, "a", 2, LATER).await;
    assert!(relay.due().await.keys.is_empty());
    store.release(&relay.route, &key).await.expect("a failing key is released");
    let due = relay.due().await;
    assert_eq!((due.keys.len(), stored_ids(&due.keys[0].parked), due.keys[0].attempts), (1, ids, 0));
}

/// Operations on a key that is neither held nor failing return an error.
pub async fn admin_operations_on_a_key_that_flows_are_invalid<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let other = parked_key(&relay, "other", 1, LATER).await;
    let key = message("orders", "a").key_id();
    write(&*store, [message("orders", "a")]).await;
    assert_eq!(kind_of(store.release(&relay.route, &key).await), StoreErrorKind::Invalid);
    assert_eq!(kind_of(store.skip(&relay.route, &key).await), StoreErrorKind::Invalid);
    assert_eq!(kind_of(store.discard(&relay.route, &key).await), StoreErrorKind::Invalid);
    // The key that fails, on a route on which it flows.
    assert_eq!(kind_of(store.release(&route("audit"), &other.0).await), StoreErrorKind::Invalid);
    assert_eq!(relay.read_key(&key).await.len(), 1, "and nothing happened");
    assert_eq!(failing_keys(&*store, &Filter::all_routes()).await.len(), 1);
}

/// The first parked message becomes a dead letter, and the next is tried now.
pub async fn a_skipped_message_makes_way_for_the_next<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, ids) = parked_key(&relay, "a", 3, Then::Hold).await;
    assert_eq!(store.skip(&relay.route, &key).await.expect("a held key's message is skipped"), Some(ids[0]));
    assert_eq!(dead(&*store).await, [(ids[0], "skipped".to_owned())]);
    assert_only_the_first_has_attempts(&*store).await;
    let due = relay.due().await;
    assert_eq!(stored_ids(&due.keys[0].parked), ids[1..], "the key goes on at once");
    assert_eq!((due.keys[0].attempts, due.keys[0].failing), (0, None));
    assert!(!failing_keys(&*store, &Filter::all_routes()).await[0].held);
}

/// The same holds if the key was to be tried in an hour: a skip is a decision to continue now.
pub async fn a_skip_does_not_wait_for_the_next_attempt<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, ids) = parked_key(&relay, "a", 2, LATER).await;
    assert_eq!(
        store.skip(&relay.route, &key).await.expect("a failing key's message is skipped"),
        Some(ids[0])
    );
    let due = relay.due().await;
    assert_eq!(due.keys.len(), 1, "the next message is tried now");
    assert_eq!(stored_ids(&due.keys[0].parked), ids[1..]);
}

/// A key whose messages are all skipped flows; before that an empty key has nothing to skip.
pub async fn a_key_skipped_to_its_end_flows<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, ids) = parked_key(&relay, "a", 1, Then::Hold).await;
    assert_eq!(store.skip(&relay.route, &key).await.expect("a held key's message is skipped"), Some(ids[0]));
    relay.assert_flows(&key).await;

    store.hold(&relay.route, &key).await.expect("a key that flows is held");
    assert_eq!(store.skip(&relay.route, &key).await.expect("nothing is parked"), None);
    assert_eq!(dead(&*store).await.len(), 1);
}

/// Everything parked becomes a dead letter, in order, and the key flows.
pub async fn a_discarded_key_flows_again<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, ids) = parked_key(&relay, "a", 3, Then::Hold).await;
    let (_, others) = parked_key(&relay, "b", 1, LATER).await;
    assert_eq!(store.discard(&relay.route, &key).await.expect("a held key is discarded"), 3);
    let expected: Vec<_> = ids.iter().map(|id| (*id, "discarded".to_owned())).collect();
    assert_eq!(dead(&*store).await, expected, "the oldest first");
    assert_only_the_first_has_attempts(&*store).await;
    relay.assert_flows(&key).await;
    let parked = store.parked(&Filter::all_routes()).await.expect("parked messages are listed");
    assert_eq!(stored_ids(&parked), others, "other keys keep theirs");
}

/// Failing keys are listed longest failing first, and filtered by route, topic, key and page.
pub async fn failing_keys_are_filtered_and_paged<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let mut expected = Vec::new();
    for key in ["c", "a", "b"] {
        expected.push(parked_key(&relay, key, 2, LATER).await);
        harness.advance(std::time::Duration::from_millis(5)).await;
    }
    store.hold(&route("audit"), &message("customers", "a").key_id()).await.expect("a key is held");

    let names = |failing: Vec<FailingKey>| failing.into_iter().map(|key| key.key).collect::<Vec<_>>();
    let default = Filter { route: Some(relay.route.clone()), ..Filter::all_routes() };
    let in_order: Vec<KeyId> = expected.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!(names(failing_keys(&*store, &default).await), in_order);
    assert_eq!(failing_keys(&*store, &Filter::all_routes()).await.len(), 4);
    let second = failing_keys(&*store, &default).await[1].since;
    let since = Filter { since: Some(second), ..default.clone() };
    assert_eq!(names(failing_keys(&*store, &since).await), in_order[1..]);
    let before = Filter { before: Some(second), ..default.clone() };
    assert_eq!(names(failing_keys(&*store, &before).await), in_order[..1]);
    let page = Filter { limit: Some(1), offset: 1, ..default.clone() };
    assert_eq!(names(failing_keys(&*store, &page).await), in_order[1..2]);
    let by_topic = Filter { topic: Some(topic("customers")), ..Filter::all_routes() };
    assert_eq!(failing_keys(&*store, &by_topic).await.len(), 1);
    let by_key = Filter { key: Some(in_order[2].key.clone()), ..default };
    assert_eq!(names(failing_keys(&*store, &by_key).await), in_order[2..]);

    let parked = store.parked(&by_key).await.expect("parked messages are listed");
    assert_eq!(stored_ids(&parked), expected[2].1);
    let one = Filter { ids: Some(vec![expected[0].1[1]]), ..Filter::all_routes() };
    assert_eq!(stored_ids(&store.parked(&one).await.expect("listed")), [expected[0].1[1]]);
}

/// Every list is the same from its end, page by page, and what changes something begins with the
/// oldest whatever the filter says.
pub async fn every_list_begins_at_either_end<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    for name in ["c", "a", "b"] {
        let (key, ids) = parked_key(&relay, name, 3, LATER).await;
        harness.advance(std::time::Duration::from_millis(5)).await;
        let skipped = store.skip(&relay.route, &key).await.expect("a message is skipped");
        assert_eq!(skipped, Some(ids[0]));
        let due_at = Timestamp::now().plus(std::time::Duration::from_secs(3_600));
        write(&*store, [Outgoing::from(message("orders", name)).due_at(due_at)]).await;
        write(&*store, [message("orders", &format!("waiting {name}"))]).await;
    }
    let views = [View::Waiting, View::Parked, View::DeadLetters, View::Scheduled];
    for (view, length) in views.into_iter().zip([3, 6, 3, 3]) {
        let list = async |filter: Filter| {
            let listed = store.browse(view, &filter).await.expect("listed");
            listed.into_iter().map(|listed| listed.stored.message.id).collect::<Vec<_>>()
        };
        let mut all = list(Filter::all_routes()).await;
        assert_eq!(all.len(), length, "{view:?}");
        all.reverse();
        let newest = Filter::all_routes().with_newest();
        assert_eq!(list(newest.clone()).await, all, "{view:?}");
        let page = Filter { offset: 1, limit: Some(2), ..newest };
        assert_eq!(list(page).await, all[1..3], "{view:?}");
    }
    let keys = async |filter: Filter| failing_keys(&*store, &filter).await;
    let mut all = keys(Filter::all_routes()).await;
    all.reverse();
    assert_eq!(keys(Filter::all_routes().with_newest()).await, all);
    let page = Filter { offset: 1, limit: Some(1), ..Filter::all_routes().with_newest() };
    assert_eq!(keys(page).await, all[1..2]);
    let dead = store.dead_letters(&Filter::all_routes()).await.expect("listed");
    let one = Filter { limit: Some(1), ..Filter::all_routes().with_newest() };
    assert_eq!(store.purge(&one).await.expect("purged"), 1);
    let left = store.dead_letters(&Filter::all_routes()).await.expect("listed");
    assert_eq!(left, dead[1..], "the oldest is purged first");
    assert_eq!(store.requeue(&one).await.expect("requeued"), 1);
    let left = store.dead_letters(&Filter::all_routes()).await.expect("listed");
    assert_eq!(left, dead[2..], "the oldest is requeued first");
}

/// Pauses of a route and of its topics are separate, each resumed on its own, any number of times.
pub async fn pauses_of_a_route_and_its_topics_are_apart<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut relay = Relay::start(&store).await;
    let (default, orders) = (relay.route.clone(), topic("orders"));
    for _ in 0..2 {
        store.pause(&default, None).await.expect("a route is paused");
        store.pause(&default, Some(&orders)).await.expect("a topic is paused");
    }
    store.pause(&default, Some(&topic("customers"))).await.expect("another topic is paused");
    store.pause(&route("audit"), None).await.expect("another route is paused");

    store.resume(&default, Some(&orders)).await.expect("a topic is resumed");
    let paused = relay.beat().await.paused;
    assert!(
        paused.route && paused.topics == [topic("customers")],
        "a topic's end is not the route's: {paused:?}"
    );
    store.resume(&default, None).await.expect("a route is resumed");
    store.resume(&default, None).await.expect("it may be resumed again");
    let paused = relay.beat().await.paused;
    assert!(
        !paused.route && paused.topics == [topic("customers")],
        "a route's end is not the topic's: {paused:?}"
    );
    store.resume(&default, Some(&topic("customers"))).await.expect("a topic is resumed");
    assert_eq!(relay.beat().await.paused, Default::default(), "the other route's pause is its own");
}
