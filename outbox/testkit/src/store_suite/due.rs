//! Due keys: which failing keys a relay receives, in which order, and how many messages of each.

use std::time::Duration;

use outbox_contract::backend::{Bucket, BucketSet, RelayId, Scope, Step, Then};
use outbox_contract::{Admin, KeyId, Store};

use super::support::{LATER, NOW, OVER, Relay, messages, prepared, stored_ids, topic, write};
use super::{Capability, StoreHarness, has};

/// A failing key with this many parked messages of 1,000 bytes.
async fn failing<S: outbox_contract::Transactional>(
    relay: &Relay<S>,
    topic: &str,
    key: &str,
    count: usize,
    then: Then,
) -> KeyId {
    let written: Vec<_> =
        messages(topic, key, count).into_iter().map(|message| message.with_payload(vec![7; 1_000])).collect();
    let key = written[0].key_id();
    write(&*relay.store, written).await;
    relay.fail(&relay.read_key(&key).await, then).await;
    key
}

fn keys(due: &outbox_contract::backend::Due) -> Vec<KeyId> {
    due.keys.iter().map(|due| due.key.clone()).collect()
}

/// The key that has been due longest comes first, whenever it failed.
pub async fn the_longest_due_key_comes_first<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let third = failing(&relay, "orders", "third", 1, Then::RetryAfter(Duration::from_millis(900))).await;
    let second = failing(&relay, "orders", "second", 1, Then::RetryAfter(Duration::from_millis(500))).await;
    let first = failing(&relay, "orders", "first", 1, NOW).await;
    let later = failing(&relay, "orders", "later", 1, LATER).await;
    harness.advance(Duration::from_secs(2)).await;
    let due = relay.due().await;
    // The due order depends on the duration of the writes in between: the database's due times must
    // decide.
    let order = keys(&due);
    assert_eq!(order.len(), 3, "{order:?}");
    assert!(!order.contains(&later) && [&first, &second, &third].iter().all(|key| order.contains(key)));
    let listed = store
        .failing_keys(&outbox_contract::admin::Filter::all_routes())
        .await
        .expect("failing keys are listed");
    let due_at = |key: &KeyId| {
        listed.iter().find(|listed| listed.key == *key).and_then(|listed| listed.next_attempt_at)
    };
    assert!(order.is_sorted_by_key(due_at), "{order:?}");
    let next = due.next.expect("one is due later");
    assert!(next > Duration::from_secs(3_000) && next <= Duration::from_secs(3_600), "{next:?}");
}

/// Keys that are being worked on are left out, and do not use up the limit.
pub async fn keys_that_are_worked_on_are_left_out<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let a = failing(&relay, "orders", "a", 1, NOW).await;
    let b = failing(&relay, "orders", "b", 1, NOW).await;
    let same_key_of_another_topic = failing(&relay, "customers", "a", 1, NOW).await;
    let mut request = relay.due_request();
    request.except = vec![a.clone()];
    request.keys = 2;
    let mut due = keys(&relay.due_with(&request).await);
    due.sort();
    let mut expected = vec![b, same_key_of_another_topic];
    expected.sort();
    assert_eq!(due, expected);
}

/// Parts that are paused or broken are left out.
pub async fn muted_parts_are_not_due<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let a = failing(&relay, "orders", "a", 1, NOW).await;
    let b = failing(&relay, "orders", "b", 1, NOW).await;
    failing(&relay, "broken", "a", 1, NOW).await;
    let mut request = relay.due_request();
    request.muted = vec![Scope::Topic(topic("broken")), Scope::Key(a)];
    assert_eq!(keys(&relay.due_with(&request).await), [b]);
    request.muted = vec![Scope::Everything];
    assert!(relay.due_with(&request).await.keys.is_empty());
}

/// A key that the request leaves out is none that is due next: a relay would ask again at once, for
/// as long as the key is left out.
pub async fn a_key_that_is_left_out_is_not_due_next<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let a = failing(&relay, "orders", "a", 1, NOW).await;
    let request = relay.due_request();
    let (mut worked_on, mut muted, mut elsewhere, mut unasked) =
        (request.clone(), request.clone(), request.clone(), request.clone());
    worked_on.except = vec![a.clone()];
    muted.muted = vec![Scope::Topic(topic("orders"))];
    elsewhere.relay = RelayId::new();
    unasked.buckets = BucketSet::ALL.without(&BucketSet::from_iter([a.bucket()]));
    for request in [worked_on, muted, elsewhere, unasked] {
        let due = relay.due_with(&request).await;
        assert_eq!((keys(&due), due.next), (Vec::new(), None), "{request:?}");
    }
}

/// The answer holds no more keys than the limit, and reports that there are more.
pub async fn no_more_keys_are_given_than_asked_for<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    for key in ["a", "b", "c"] {
        failing(&relay, "orders", key, 1, NOW).await;
    }
    let mut request = relay.due_request();
    request.keys = 2;
    let due = relay.due_with(&request).await;
    assert_eq!(due.keys.len(), 2);
    assert_eq!(due.next, Some(Duration::ZERO), "there are more now");
    request.keys = 3;
    let due = relay.due_with(&request).await;
    assert_eq!((due.keys.len(), due.next), (3, None));
}

/// Each key comes with its oldest parked messages, up to the limit.
pub async fn the_oldest_parked_messages_are_given<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let written = messages("orders", "a", 5);
    let key = written[0].key_id();
    write(&*store, written).await;
    let stored = relay.read_key(&key).await;
    relay.fail(&stored, NOW).await;
    failing(&relay, "orders", "b", 5, NOW).await;
    let mut request = relay.due_request();
    request.messages = 3;
    let due = relay.due_with(&request).await;
    assert!(due.keys.iter().all(|due| due.parked.len() == 3), "three of each key");
    let of_a = due.keys.iter().find(|due| due.key == key).expect("the key is due");
    assert_eq!(stored_ids(&of_a.parked), stored_ids(&stored[..3]));
}

/// Bytes are bounded over all keys, but the first key gets its first message.
pub async fn due_messages_stop_at_the_limit_of_bytes<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    failing(&relay, "orders", "a", 5, NOW).await;
    failing(&relay, "orders", "b", 5, NOW).await;
    let mut request = relay.due_request();
    request.bytes = 4_500;
    let due = relay.due_with(&request).await;
    let parked: usize = due.keys.iter().map(|due| due.parked.len()).sum();
    assert_eq!((due.keys.len(), parked), (1, 4), "messages of 1,000 bytes with a limit of 4,500");
    assert_eq!(due.next, Some(Duration::ZERO), "another key is due");
    request.bytes = 7_000;
    let due = relay.due_with(&request).await;
    let parked: Vec<usize> = due.keys.iter().map(|due| due.parked.len()).collect();
    assert_eq!((parked, due.next), (vec![5, 2], None), "messages of 1,000 bytes with a limit of 7,000");
    request.bytes = 1;
    let due = relay.due_with(&request).await;
    assert_eq!((due.keys.len(), due.keys[0].parked.len()), (1, 1), "the first comes whatever it has");
    assert_eq!(due.next, Some(Duration::ZERO), "another key is due");
}

/// Keys whose first message alone fills an answer come one by one, the longest due first, and every
/// key gets its turn.
pub async fn keys_of_large_messages_come_one_by_one<H: StoreHarness>(harness: &H) {
    const LARGE: usize = 1024 * 1024;
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    for key in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
        let message = messages("orders", key, 1).remove(0).with_payload(vec![7; LARGE]);
        let key = message.key_id();
        write(&*store, vec![message]).await;
        relay.fail(&relay.read_key(&key).await, NOW).await;
    }
    let mut request = relay.due_request();
    request.bytes = LARGE;
    for left in (0..10).rev() {
        let due = relay.due_with(&request).await;
        assert_eq!((due.keys.len(), due.keys[0].parked.len()), (1, 1), "with {left} behind it");
        assert_eq!(due.next, (left > 0).then_some(Duration::ZERO), "with {left} behind it");
        // A repeated request returns the same: the key due longest has its turn before any other.
        assert_eq!(keys(&relay.due_with(&request).await), keys(&due));
        request.except.extend(keys(&due));
    }
    assert!(relay.due_with(&request).await.keys.is_empty());
}

/// Due keys are returned only under the caller's unexpired lease, only of the requested buckets,
/// and only of its route.
pub async fn only_the_owner_of_a_key_is_given_it<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut relay = Relay::start(&store).await;
    let written = messages("orders", "a", 1);
    let key = written[0].key_id();
    write(&*store, written).await;
    let stored = relay.read_key(&key).await;
    relay.fail(&stored, NOW).await;
    relay.shorten().await;
    harness.advance(OVER).await;
    assert!(relay.due().await.keys.is_empty(), "the lease is over");

    let next = Relay::start(&store).await;
    assert_eq!(keys(&next.due().await), std::slice::from_ref(&key));
    let mut request = next.due_request();
    request.buckets = BucketSet::ALL.without(&BucketSet::from_iter([key.bucket()]));
    assert!(next.due_with(&request).await.keys.is_empty(), "another bucket");
    request.buckets = BucketSet::from_iter([key.bucket(), Bucket(key.bucket().0.wrapping_add(1))]);
    assert_eq!(keys(&next.due_with(&request).await), [key]);
    request.route = super::support::route("audit");
    assert!(store.due(&request).await.expect("answered").keys.is_empty(), "another route");
}

/// A key is due that is neither held nor has a time: somebody has released it in the table. It comes
/// first, and the question for others does not fail by it.
pub async fn a_key_that_was_released_by_hand_is_due<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::ReleaseByHand) {
        return;
    }
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let later = failing(&relay, "orders", "later", 1, LATER).await;
    let held = failing(&relay, "orders", "held", 2, Then::Hold).await;
    harness.release_by_hand().await;
    let due = relay.due().await;
    assert_eq!(keys(&due), std::slice::from_ref(&held));
    assert!(due.next > Some(Duration::from_secs(3_000)), "the other is known: {later}");
    assert_eq!(due.keys[0].parked.len(), 2);
    let (version, delivered) = (due.keys[0].version, due.keys[0].parked.iter().map(|it| it.row()).collect());
    assert_eq!(relay.step(&held, Some(version), Step::Resume { delivered }).await, None);
    relay.assert_flows(&held).await;
}

/// Keys whose messages can't be read hold up no others, however many of them have been due for
/// longer.
pub async fn unreadable_keys_hold_up_no_others<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::SpoiledParked) {
        return;
    }
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    for key in ["a", "b", "c", "d", "e"] {
        failing(&relay, "spoiled", key, 1, NOW).await;
    }
    harness.spoil_parked("spoiled").await;
    harness.advance(Duration::from_millis(5)).await;
    let mut waiting =
        vec![failing(&relay, "orders", "a", 1, NOW).await, failing(&relay, "orders", "b", 1, NOW).await];
    failing(&relay, "orders", "later", 1, LATER).await;
    let mut request = relay.due_request();
    request.keys = 1;
    while let Some(left) = waiting.len().checked_sub(1) {
        let due = relay.due_with(&request).await;
        assert_eq!(due.keys.len(), 1, "with {left} behind it");
        let key = keys(&due).remove(0);
        waiting.retain(|waits| *waits != key);
        assert_eq!(waiting.len(), left, "{key} is due twice");
        assert!(left == 0 || due.next == Some(Duration::ZERO), "{left} more: {:?}", due.next);
        request.except.push(key);
    }
    let due = relay.due_with(&request).await;
    assert!(due.keys.is_empty());
    assert!(due.next > Some(Duration::from_secs(3_000)), "the other is known: {:?}", due.next);
}
