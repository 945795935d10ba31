//! The audit: each operation that changes something is recorded, in its own transaction.

use std::time::Duration;

use futures_util::future::join_all;
use outbox_contract::admin::{Actor, AuditEntry, Edit, Filter};
use outbox_contract::backend::Transitioned;
use outbox_contract::{
    Admin, AdminExt, KeyId, MessageId, Outgoing, Store, StoreErrorKind, Timestamp, Transactional,
};

use super::support::{
    LATER, NOW, Relay, bury_step, discard_step, kind_of, message, messages, prepared, stored_ids, topic,
    write,
};
use super::{Capability, StoreHarness, has};

async fn audit<S: Store + ?Sized>(store: &S, filter: &Filter) -> Vec<AuditEntry> {
    store.audit(filter).await.expect("recorded operations are listed")
}

/// Operation, number of messages and ids of each entry, the oldest first.
async fn recorded<S: Store>(store: &S) -> Vec<(String, u64, Vec<MessageId>)> {
    let entries = audit(store, &Filter::all_routes()).await;
    entries.into_iter().map(|entry| (entry.operation, entry.affected, entry.ids)).collect()
}

/// A key whose messages are all parked, and their ids.
async fn parked<S: Transactional>(relay: &Relay<S>, key: &str, count: usize) -> (KeyId, Vec<MessageId>) {
    let written = messages("orders", key, count);
    let key = written[0].key_id();
    write(&*relay.store, written).await;
    let stored = relay.read_key(&key).await;
    relay.fail(&stored, LATER).await;
    (key, stored_ids(&stored))
}

/// Dead letters of a key of their own, and their ids.
async fn dead<S: Transactional>(relay: &Relay<S>, key: &str, count: usize) -> Vec<MessageId> {
    let written = messages("orders", key, count);
    let key = written[0].key_id();
    write(&*relay.store, written).await;
    let stored = relay.read_key(&key).await;
    for stored in &stored {
        relay.step(&key, None, bury_step(stored, "rejected")).await;
    }
    stored_ids(&stored)
}

fn of(ids: &[MessageId]) -> Filter {
    Filter { ids: Some(ids.to_vec()), ..Filter::all_routes() }
}

/// Every operation on a key is recorded: who, what, on which key, and which messages it buried.
pub async fn operations_on_a_key_are_recorded<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, ids) = parked(&relay, "a", 4).await;
    let ann = store.acting_as(Actor::new("ann"));
    let before = Timestamp::from_micros(0);
    ann.hold(&relay.route, &key).await.expect("a failing key is held");
    ann.release(&relay.route, &key).await.expect("a held key is released");
    assert_eq!(ann.skip(&relay.route, &key).await.expect("a message is skipped"), Some(ids[0]));
    let bob = store.acting_as(Actor::new("bob"));
    assert_eq!(bob.discard(&relay.route, &key).await.expect("messages are discarded"), 3);

    let entries = audit(&*store, &Filter::all_routes()).await;
    let told: Vec<_> = entries
        .iter()
        .map(|entry| (entry.actor.as_str(), entry.operation.as_str(), entry.affected, &entry.ids[..]))
        .collect();
    assert_eq!(
        told,
        [
            ("ann", "hold", 0, &[][..]),
            ("ann", "release", 0, &[][..]),
            ("ann", "skip", 1, &ids[..1]),
            ("bob", "discard", 3, &ids[1..]),
        ]
    );
    for entry in &entries {
        assert_eq!(entry.route.as_ref(), Some(&relay.route));
        assert_eq!((entry.topic.as_ref(), entry.key.as_ref()), (Some(&key.topic), Some(&key.key)));
        assert!(entry.at > before && entry.detail == "{}", "{entry:?}");
    }
    assert!(entries.windows(2).all(|pair| pair[0].at <= pair[1].at), "by the database's clock");
}

/// A message that a relay discards leaves no dead letter and no history, and is recorded with its
/// id, hot or parked. Its key continues behind it. A refused step records nothing.
pub async fn a_discarded_message_is_gone_and_recorded<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let written = messages("orders", "a", 4);
    let key = written[0].key_id();
    write(&*store, written).await;
    let stored = relay.read_key(&key).await;
    let ids = stored_ids(&stored);

    assert_eq!(relay.step(&key, None, discard_step(&stored[0])).await, None, "the key flows on");
    assert_eq!(stored_ids(&relay.read_key(&key).await), ids[1..]);
    let again = relay.transition(relay.key_transition(&key, None, discard_step(&stored[0]))).await;
    assert_eq!(again, Transitioned::Stale, "it is gone");

    let version = relay.fail(&stored[1..], NOW).await;
    let other =
        relay.transition(relay.key_transition(&key, Some(version - 1), discard_step(&stored[1]))).await;
    assert_eq!(other, Transitioned::Stale, "it names another version");
    relay.step(&key, Some(version), discard_step(&stored[1])).await;
    let due = relay.due().await.keys.pop().expect("the key is due with its next message");
    assert_eq!((due.failing, due.attempts), (None, 0));
    assert_eq!(stored_ids(&due.parked), ids[2..]);

    assert!(store.dead_letters(&Filter::all_routes()).await.expect("listed").is_empty());
    assert!(store.history(&Filter::all_routes()).await.expect("listed").is_empty());
    let entries = audit(&*store, &Filter::all_routes()).await;
    assert_eq!(entries.len(), 2, "{entries:?}");
    for (entry, id) in entries.iter().zip(&ids) {
        assert_eq!((entry.operation.as_str(), entry.affected, &entry.ids[..]), ("drop", 1, &[*id][..]));
        assert_eq!(entry.actor, Actor::process());
        assert_eq!(entry.route.as_ref(), Some(&relay.route));
        assert_eq!((entry.topic.as_ref(), entry.key.as_ref()), (Some(&key.topic), Some(&key.key)));
        assert_eq!(entry.detail, r#"{"attempts":3,"class":"suite","reason":"exhausted"}"#);
    }
}

/// Every operation on messages is recorded, with their number and ids.
pub async fn operations_on_messages_are_recorded<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (requeued, edited, purged) =
        (dead(&relay, "a", 2).await, dead(&relay, "b", 1).await, dead(&relay, "c", 2).await);
    assert_eq!(store.requeue(&of(&requeued)).await.expect("requeued"), 2);
    let edit = Edit { event_type: Some("corrected".to_owned()), ..Edit::default() };
    let id = store.requeue_edited(&of(&edited), &edit).await.expect("edited");
    assert_eq!(id, Some(edited[0]));
    assert_eq!(
        store.purge(&of(&purged).with_topic("orders").expect("a valid topic")).await.expect("purged"),
        2
    );
    let scheduled = message("orders", "d");
    let due_at = Timestamp::now().plus(Duration::from_secs(3_600));
    write(&*store, [Outgoing::from(scheduled.clone()).due_at(due_at)]).await;
    assert_eq!(store.cancel_scheduled(&[scheduled.id]).await.expect("canceled"), 1);

    let sorted = |ids: &[MessageId]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids
    };
    let told: Vec<_> =
        recorded(&*store).await.into_iter().map(|(name, count, ids)| (name, count, sorted(&ids))).collect();
    assert_eq!(
        told,
        [
            ("requeue".to_owned(), 2, sorted(&requeued)),
            ("requeue_edited".to_owned(), 1, edited),
            ("purge".to_owned(), 2, sorted(&purged)),
            ("cancel_scheduled".to_owned(), 1, vec![scheduled.id]),
        ]
    );
    let entries = audit(&*store, &Filter::all_routes()).await;
    assert_eq!(entries[1].detail, r#"{"edited":["event_type"],"ids":1}"#, "fields by name, without values");
    assert_eq!(
        (entries[2].topic.clone(), entries[2].detail.as_str()),
        (Some(topic("orders")), r#"{"ids":2}"#)
    );
    assert!(entries.iter().all(|entry| entry.actor == Actor::process()), "nobody was named");
}

/// A replay is recorded like a requeue.
pub async fn a_replay_is_recorded<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::History) {
        return;
    }
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    write(&*store, messages("orders", "a", 2)).await;
    let read = relay.read().await;
    relay.settle(&read).await;
    assert_eq!(store.replay(&Filter::all_routes()).await.expect("replayed"), 2);
    let told = recorded(&*store).await;
    assert_eq!(told, [("replay".to_owned(), 2, stored_ids(&read))]);
}

/// A pause, its end and a new identity are recorded once each: repeated, a pause changes nothing.
pub async fn pauses_and_a_new_identity_are_recorded<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let (route, orders) = (outbox_contract::Route::default(), topic("orders"));
    for _ in 0..2 {
        store.pause(&route, None).await.expect("paused");
        store.pause(&route, Some(&orders)).await.expect("paused");
    }
    for _ in 0..2 {
        store.resume(&route, None).await.expect("resumed");
    }
    let identity = store.renew_identity().await.expect("the identity is renewed");
    let entries = audit(&*store, &Filter::all_routes()).await;
    let told: Vec<_> =
        entries.iter().map(|entry| (entry.operation.as_str(), entry.topic.clone(), entry.affected)).collect();
    assert_eq!(
        told,
        [("pause", None, 0), ("pause", Some(orders), 0), ("resume", None, 0), ("renew_identity", None, 0)]
    );
    assert!(entries[3].detail.contains(&identity.to_string()), "{}", entries[3].detail);
}

/// Refused operations, and those that find nothing, leave no entry.
pub async fn what_changes_nothing_is_not_recorded<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let flowing = message("orders", "flowing").key_id();
    for refused in [
        store.release(&relay.route, &flowing).await,
        store.skip(&relay.route, &flowing).await.map(drop),
        store.discard(&relay.route, &flowing).await.map(drop),
    ] {
        assert_eq!(kind_of(refused), StoreErrorKind::Invalid);
    }
    let unknown = [MessageId::new()];
    assert_eq!(store.requeue(&of(&unknown)).await.expect("nothing is there"), 0);
    assert_eq!(store.replay(&of(&unknown)).await.expect("nothing is there"), 0);
    assert_eq!(store.purge(&of(&unknown)).await.expect("nothing is there"), 0);
    assert_eq!(store.cancel_scheduled(&unknown).await.expect("nothing is there"), 0);
    assert_eq!(store.requeue_edited(&of(&unknown), &Edit::default()).await.expect("nothing is there"), None);
    let ids = dead(&relay, "a", 1).await;
    let wrong = Edit { event_type: Some(String::new()), ..Edit::default() };
    let edited = store.requeue_edited(&of(&ids), &wrong).await;
    assert_eq!(kind_of(edited), StoreErrorKind::Invalid);
    store.resume(&relay.route, None).await.expect("a route that is not paused is resumed");
    assert!(recorded(&*store).await.is_empty(), "{:?}", recorded(&*store).await);
}

/// An operation and its entry are one transaction: where no entry can be written, nothing changes.
pub async fn an_operation_that_can_not_be_recorded_has_no_effect<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::RefusedAudit) {
        return;
    }
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, parked) = parked(&relay, "a", 2).await;
    let ids = dead(&relay, "b", 2).await;
    let scheduled = message("orders", "c");
    let due_at = Timestamp::now().plus(Duration::from_secs(3_600));
    write(&*store, [Outgoing::from(scheduled.clone()).due_at(due_at)]).await;
    write(&*store, messages("orders", "d", 1)).await;
    let waiting = relay.read().await;
    let identity = store.identity().await.expect("an outbox has an identity");
    harness.refuse_audit().await;
    let all = Filter::all_routes();
    for stored in store.parked(&all).await.expect("parked messages are listed").iter().chain(&waiting) {
        let step = relay.key_transition(&stored.message.key_id(), None, discard_step(stored));
        store.transition(&[step]).await.expect_err("a relay discards without an entry");
    }
    let flowing = message("orders", "flowing").key_id();
    let failed = [
        ("hold", store.hold(&relay.route, &flowing).await.is_err()),
        ("release", store.release(&relay.route, &key).await.is_err()),
        ("skip", store.skip(&relay.route, &key).await.is_err()),
        ("discard", store.discard(&relay.route, &key).await.is_err()),
        ("requeue", store.requeue(&of(&ids)).await.is_err()),
        ("requeue_edited", store.requeue_edited(&of(&ids), &Edit::default()).await.is_err()),
        ("purge", store.purge(&of(&ids)).await.is_err()),
        ("pause", store.pause(&relay.route, None).await.is_err()),
        ("cancel_scheduled", store.cancel_scheduled(&[scheduled.id]).await.is_err()),
        ("renew_identity", store.renew_identity().await.is_err()),
    ];
    for (operation, failed) in failed {
        assert!(failed, "{operation} succeeded without an entry");
    }
    let failing = store.failing_keys(&all).await.expect("failing keys are listed");
    assert_eq!(failing.len(), 1, "no other key is held");
    assert!(!failing[0].held && failing[0].attempts == 1, "neither held nor released: {failing:?}");
    assert_eq!(stored_ids(&store.parked(&all).await.expect("parked messages are listed")), parked);
    let letters = store.dead_letters(&all).await.expect("dead letters are listed");
    assert_eq!(letters.iter().map(|letter| letter.stored.message.id).collect::<Vec<_>>(), ids);
    assert_eq!(store.scheduled(&all).await.expect("scheduled messages are listed").len(), 1);
    assert_eq!(relay.read().await, waiting, "nothing was appended again, nor discarded");
    let ownership = store.ownership(&relay.route).await.expect("owners are told");
    assert!(!ownership.paused.route, "the route is not paused");
    assert_eq!(store.identity().await.expect("the identity stays"), identity);
}

/// Entries are selected by route, topic, key, ids and time, from either end, page by page.
pub async fn recorded_operations_are_filtered_and_paged<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let ids = dead(&relay, "a", 3).await;
    let key = message("orders", "b").key_id();
    store.purge(&of(&ids[..1])).await.expect("purged");
    store.hold(&relay.route, &key).await.expect("held");
    harness.advance(Duration::from_millis(20)).await;
    store.pause(&relay.route, Some(&topic("customers"))).await.expect("paused");
    store.purge(&of(&ids[1..])).await.expect("purged");

    let names = async |filter: Filter| -> Vec<String> {
        audit(&*store, &filter).await.into_iter().map(|entry| entry.operation).collect()
    };
    let all = Filter::all_routes();
    assert_eq!(names(all.clone()).await, ["purge", "hold", "pause", "purge"]);
    assert_eq!(names(all.clone().with_newest()).await, ["purge", "pause", "hold", "purge"]);
    assert_eq!(names(Filter::route(relay.route.clone()).expect("a valid route")).await, ["hold", "pause"]);
    assert_eq!(names(all.clone().with_topic("customers").expect("a valid topic")).await, ["pause"]);
    assert_eq!(names(Filter { key: Some(key.key.clone()), ..all.clone() }).await, ["hold"]);
    assert_eq!(names(of(&ids[2..])).await, ["purge"], "one that names the message");
    assert_eq!(names(of(&[])).await, [""; 0]);
    assert_eq!(names(Filter { limit: Some(2), offset: 1, ..all.clone() }).await, ["hold", "pause"]);
    let last = Filter { limit: Some(1), ..all.clone().with_newest() };
    assert_eq!(audit(&*store, &last).await[0].ids.len(), 2, "the last purge");
    let third = audit(&*store, &all).await[2].at;
    assert_eq!(names(Filter { since: Some(third), ..all.clone() }).await, ["pause", "purge"]);
    assert_eq!(names(all.with_before(third)).await, ["purge", "hold"]);
}

/// Any text makes an actor, and comes back as it was taken: too long, to be read from the right,
/// with quotes, or with what a terminal obeys.
pub async fn any_text_names_an_actor<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let route = outbox_contract::Route::default();
    let long = "é".repeat(1 << 20);
    let names =
        ["", "a\u{1b}[2Jb\u{7f}", "\u{202e}nna", "O'Brien\"; drop table outbox_audit; --\\", "\u{0}", &long];
    for name in names {
        let admin = store.acting_as(Actor::new(name));
        admin.pause(&route, None).await.expect("paused");
        admin.resume(&route, None).await.expect("resumed");
    }
    let entries = audit(&*store, &Filter::all_routes()).await;
    let told: Vec<&str> = entries.iter().step_by(2).map(|entry| entry.actor.as_str()).collect();
    let taken: Vec<Actor> = names.iter().map(Actor::new).collect();
    assert_eq!(told, taken.iter().map(Actor::as_str).collect::<Vec<_>>());
    assert!(told.iter().all(|name| !name.contains(char::is_control)), "{told:?}");
}

/// Of operators at once, each is recorded with what it did itself: every message is in one entry.
pub async fn operators_at_once_are_recorded_apart<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, mut ids) = parked(&relay, "a", 6).await;
    let skips = (0..4).map(|at| {
        let admin = store.acting_as(Actor::new(format!("operator {at}")));
        let (route, key) = (relay.route.clone(), key.clone());
        async move { admin.skip(&route, &key).await.ok().flatten() }
    });
    let mut skipped: Vec<MessageId> = join_all(skips).await.into_iter().flatten().collect();
    let mut named: Vec<MessageId> = Vec::new();
    for (operation, affected, ids) in recorded(&*store).await {
        assert_eq!((operation.as_str(), affected, ids.len()), ("skip", 1, 1));
        named.extend(ids);
    }
    for list in [&mut skipped, &mut named, &mut ids] {
        list.sort_unstable();
    }
    assert_eq!(named, skipped, "each skip that took a message is recorded with it");
    let dead = store.dead_letters(&Filter::all_routes()).await.expect("dead letters are listed");
    assert_eq!(dead.len(), skipped.len());
    assert!(skipped.iter().all(|id| ids.contains(id)));
}
