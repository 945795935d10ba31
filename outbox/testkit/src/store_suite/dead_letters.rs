//! Dead letters and history: browse, requeue, purge, replay.

use outbox_contract::admin::{Edit, Filter};
use outbox_contract::{
    Admin, AdminExt, Headers, Key, KeyId, MessageId, Outgoing, Store, StoreErrorKind, Timestamp,
    Transactional,
};

use super::support::{
    LONG, Relay, bury_step, ids, message, messages, prepared, route, stored_ids, topic, write,
};
use super::{Capability, StoreHarness, has};

async fn dead<S: Store>(store: &S, filter: &Filter) -> Vec<MessageId> {
    let dead = store.dead_letters(filter).await.expect("dead letters are listed");
    dead.into_iter().map(|dead| dead.stored.message.id).collect()
}

/// Appends this many messages of a key and buries them, one after the other.
async fn buried<S: Transactional>(
    relay: &Relay<S>,
    topic: &str,
    key: &str,
    count: usize,
) -> (KeyId, Vec<MessageId>) {
    let written = messages(topic, key, count);
    let key = written[0].key_id();
    write(&*relay.store, written.into_iter().map(|message| Outgoing::from(message).by(relay.route.clone())))
        .await;
    let stored = relay.read_key(&key).await;
    for stored in &stored {
        relay.step(&key, None, bury_step(stored, "rejected")).await;
    }
    (key, stored_ids(&stored))
}

/// Dead letters are listed oldest first, and filtered by every field of the filter.
pub async fn dead_letters_are_filtered_and_paged<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let audit = Relay::on(&store, route("audit"), LONG).await;
    let (key, of_key) = buried(&relay, "orders", "a", 3).await;
    harness.advance(std::time::Duration::from_millis(20)).await;
    let (_, of_topic) = buried(&relay, "customers", "a", 1).await;
    let (_, of_route) = buried(&audit, "orders", "b", 1).await;

    let all: Vec<_> = of_key.iter().chain(&of_topic).chain(&of_route).copied().collect();
    assert_eq!(dead(&*store, &Filter::all_routes()).await, all);
    assert_eq!(
        dead(&*store, &Filter { route: Some(route("audit")), ..Filter::all_routes() }).await,
        of_route
    );
    assert_eq!(
        dead(&*store, &Filter { topic: Some(topic("customers")), ..Filter::all_routes() }).await,
        of_topic
    );
    let by_key =
        Filter { topic: Some(key.topic.clone()), key: Some(key.key.clone()), ..Filter::all_routes() };
    assert_eq!(dead(&*store, &by_key).await, of_key);
    assert_eq!(
        dead(&*store, &Filter { ids: Some(vec![all[1], all[3]]), ..Filter::all_routes() }).await,
        [all[1], all[3]]
    );
    assert_eq!(dead(&*store, &Filter { limit: Some(2), offset: 1, ..Filter::all_routes() }).await, all[1..3]);

    let letters = store.dead_letters(&Filter::all_routes()).await.expect("dead letters are listed");
    let since = letters[3].died_at;
    assert!(since > letters[2].died_at);
    assert_eq!(dead(&*store, &Filter { since: Some(since), ..Filter::all_routes() }).await, all[3..]);
    assert_eq!(dead(&*store, &Filter { before: Some(since), ..Filter::all_routes() }).await, all[..3]);
}

/// Requeued dead letters join the end of their key, in their old order and unchanged.
pub async fn requeued_dead_letters_join_at_the_end_in_their_old_order<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, old) = buried(&relay, "orders", "a", 3).await;
    let before = store.dead_letters(&Filter::all_routes()).await.expect("dead letters are listed");
    let newer = messages("orders", "a", 2);
    write(&*store, newer.clone()).await;

    let filter =
        Filter { topic: Some(key.topic.clone()), key: Some(key.key.clone()), ..Filter::all_routes() };
    assert_eq!(store.requeue(&filter).await.expect("dead letters are requeued"), 3);
    let read = relay.read_key(&key).await;
    let expected: Vec<_> = ids(&newer).into_iter().chain(old).collect();
    assert_eq!(stored_ids(&read), expected);
    for (letter, again) in before.iter().zip(&read[2..]) {
        assert_eq!(again.message, letter.stored.message, "with its old id and in every field");
        assert!(again.position > letter.stored.position, "an append takes a new position");
    }
    assert!(dead(&*store, &Filter::all_routes()).await.is_empty());
    assert_eq!(store.requeue(&filter).await.expect("nothing is left to requeue"), 0);
}

/// Dead letters are requeued to the route of each, and only those that the filter matches.
pub async fn dead_letters_are_requeued_to_their_own_route<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let audit = Relay::on(&store, route("audit"), LONG).await;
    let (_, by_default) = buried(&relay, "orders", "a", 2).await;
    let (_, by_audit) = buried(&audit, "orders", "a", 1).await;
    assert_eq!(
        store
            .requeue(&Filter { ids: Some(by_audit.clone()), ..Filter::all_routes() })
            .await
            .expect("requeued"),
        1
    );
    assert_eq!(stored_ids(&audit.read().await), by_audit);
    assert!(relay.fetch().await.is_empty());
    assert_eq!(dead(&*store, &Filter::all_routes()).await, by_default);
    assert_eq!(store.requeue(&Filter { limit: Some(1), ..Filter::all_routes() }).await.expect("requeued"), 1);
    assert_eq!(stored_ids(&relay.read().await), by_default[..1], "the oldest first");
}

/// Purged dead letters are deleted permanently; others stay.
pub async fn purged_dead_letters_are_gone<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (_, ids) = buried(&relay, "orders", "a", 3).await;
    assert_eq!(
        store.purge(&Filter { ids: Some(vec![ids[1]]), ..Filter::all_routes() }).await.expect("purged"),
        1
    );
    assert_eq!(dead(&*store, &Filter::all_routes()).await, [ids[0], ids[2]]);
    assert_eq!(store.purge(&Filter { limit: Some(1), ..Filter::all_routes() }).await.expect("purged"), 1);
    assert_eq!(dead(&*store, &Filter::all_routes()).await, [ids[2]], "the oldest first");
    assert_eq!(store.purge(&Filter::all_routes()).await.expect("purged"), 1);
    assert_eq!(store.requeue(&Filter::all_routes()).await.expect("nothing is left"), 0);
    assert!(relay.fetch().await.is_empty());
}

/// A message that dies again after a requeue is one dead letter, not two.
pub async fn a_requeued_message_can_die_again<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (key, ids) = buried(&relay, "orders", "a", 1).await;
    for _ in 0..2 {
        assert_eq!(store.requeue(&Filter::all_routes()).await.expect("requeued"), 1);
        let stored = relay.read_key(&key).await;
        assert_eq!(stored_ids(&stored), ids);
        relay.step(&key, None, bury_step(&stored[0], "exhausted")).await;
        assert_eq!(dead(&*store, &Filter::all_routes()).await, ids);
    }
}

/// A dead letter that is corrected in every field joins the end of its new key, on its own route.
pub async fn an_edited_dead_letter_joins_its_new_key_at_the_end<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::on(&store, route("audit"), LONG).await;
    let (_, dead_ids) = buried(&relay, "orders", "a", 1).await;
    let there = messages("refunds", "b", 2);
    write(&*store, there.iter().cloned().map(|message| Outgoing::from(message).by(relay.route.clone())))
        .await;

    let mut headers = Headers::new();
    headers.insert("tenant", "acme").expect("a header");
    let mut edit = Edit {
        topic: Some(topic("refunds")),
        key: Some(Some(Key::new("b").expect("a key"))),
        event_type: Some("order.refunded".to_owned()),
        schema_version: Some(7),
        content_type: Some("text/plain".to_owned()),
        headers: Some(headers.clone()),
        payload: Some("right".into()),
        occurred_at: Some(Timestamp::from_micros(1)),
        id: None,
    };
    let id = store.requeue_edited(&Filter::all_routes(), &edit).await.expect("it is corrected");
    assert_eq!(id, Some(dead_ids[0]), "it keeps its id");
    assert!(dead(&*store, &Filter::all_routes()).await.is_empty());
    let read = relay.read_key(&there[0].key_id()).await;
    let expected: Vec<_> = ids(&there).into_iter().chain(dead_ids).collect();
    assert_eq!(stored_ids(&read), expected, "at the end of its new key");
    let message = &read[2].message;
    assert_eq!((&*message.event_type, message.schema_version), ("order.refunded", 7));
    assert_eq!((&*message.content_type, &message.headers), ("text/plain", &headers));
    assert_eq!((&message.payload[..], message.occurred_at), (&b"right"[..], Timestamp::from_micros(1)));

    // Another id, and no longer a key.
    relay.step(&there[0].key_id(), None, bury_step(&read[0], "rejected")).await;
    let other = MessageId::new();
    edit = Edit { id: Some(other), key: Some(None), ..Edit::default() };
    let id = store.requeue_edited(&Filter::all_routes(), &edit).await.expect("it is corrected");
    assert_eq!(id, Some(other));
    let again = relay.read().await;
    let alone = again.iter().find(|stored| stored.message.id == other).expect("it is there");
    assert_eq!((alone.message.key.as_ref(), alone.message.topic.as_str()), (None, "refunds"));
}

/// An edit that leaves an invalid message fails with the reason, and the dead letter stays.
pub async fn an_edit_that_makes_no_message_changes_nothing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (_, ids) = buried(&relay, "orders", "a", 1).await;
    for (edit, says) in [
        (Edit { event_type: Some("a\nb".to_owned()), ..Edit::default() }, "event type"),
        (Edit { content_type: Some(String::new()), ..Edit::default() }, "content type"),
        (Edit { schema_version: Some(0), ..Edit::default() }, "schema version"),
    ] {
        let refused = store.requeue_edited(&Filter::all_routes(), &edit).await.expect_err(says);
        assert_eq!(refused.kind(), StoreErrorKind::Invalid, "{refused}");
        assert!(refused.to_string().contains(says), "{refused}");
        assert_eq!(dead(&*store, &Filter::all_routes()).await, ids);
        assert!(relay.fetch().await.is_empty());
    }
}

/// The oldest dead letter that the filter matches is edited; if it matches none, nothing happens.
pub async fn the_oldest_dead_letter_is_edited_and_no_other<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (_, ids) = buried(&relay, "orders", "a", 3).await;
    let edit = Edit { payload: Some("right".into()), ..Edit::default() };
    let none = Filter { ids: Some(Vec::new()), ..Filter::all_routes() };
    let unknown = Filter { ids: Some(vec![MessageId::new()]), ..Filter::all_routes() };
    for filter in [none, unknown, Filter { limit: Some(0), ..Filter::all_routes() }] {
        assert_eq!(store.requeue_edited(&filter, &edit).await.expect("nothing is meant"), None);
    }
    let second = Filter { ids: Some(vec![ids[1]]), ..Filter::all_routes() };
    assert_eq!(store.requeue_edited(&second, &edit).await.expect("corrected"), Some(ids[1]));
    let any = Filter { offset: 5, ..Filter::all_routes() };
    assert_eq!(store.requeue_edited(&any, &edit).await.expect("corrected"), Some(ids[0]));
    assert_eq!(dead(&*store, &Filter::all_routes()).await, ids[2..]);
    let read = relay.read().await;
    assert_eq!(stored_ids(&read), [ids[1], ids[0]]);
    assert!(read.iter().all(|stored| &stored.message.payload[..] == b"right"));
}

/// Where a history is kept, delivered messages are appended again on request, and stay in the
/// history.
pub async fn replayed_messages_join_at_the_end_in_their_old_order<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 4);
    let other = message("customers", "a");
    write(&*store, all.iter().cloned().chain([other])).await;
    let read = relay.read().await;
    relay.settle(&read).await;
    let newer = message("orders", "a");
    write(&*store, [newer.clone()]).await;

    let filter = Filter { topic: Some(topic("orders")), limit: Some(3), ..Filter::all_routes() };
    assert_eq!(store.history_kept().is_some(), has::<H>(Capability::History), "it says so");
    let replayed = store.replay(&filter).await.expect("the history is replayed");
    if !has::<H>(Capability::History) {
        assert_eq!(replayed, 0, "there is no history");
        return;
    }
    assert_eq!(replayed, 3);
    let again = relay.read_key(&newer.key_id()).await;
    let expected: Vec<_> = [newer.id].into_iter().chain(ids(&all[..3])).collect();
    assert_eq!(stored_ids(&again), expected, "the oldest first, behind what is there");
    assert!(again[1..].iter().zip(&all).all(|(again, old)| again.message == *old), "in every field");
}

/// A history of more than one call's limit is replayed call by call. Each call skips the messages
/// of the earlier calls, though all of them stay in the history.
pub async fn a_long_history_is_replayed_call_by_call<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::History) {
        return;
    }
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 5);
    write(&*store, all.clone()).await;
    relay.settle(&relay.read().await).await;
    let mut filter = Filter { topic: Some(topic("orders")), limit: Some(2), ..Filter::all_routes() };
    let mut calls = Vec::new();
    while calls.last() != Some(&0) && calls.len() < 10 {
        let replayed = store.replay(&filter).await.expect("the history is replayed");
        filter.offset += usize::try_from(replayed).expect("a few");
        calls.push(replayed);
    }
    assert_eq!(calls, [2, 2, 1, 0]);
    assert_eq!(stored_ids(&relay.read_key(&all[0].key_id()).await), ids(&all), "each once");
}

/// A limit of 0 means no message, and so does an empty list: neither means all.
pub async fn a_filter_that_means_nothing_changes_nothing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (_, all) = buried(&relay, "orders", "a", 3).await;
    let nothing = [
        Filter { limit: Some(0), ..Filter::all_routes() },
        Filter { ids: Some(Vec::new()), ..Filter::all_routes() },
    ];
    for filter in nothing {
        assert!(dead(&*store, &filter).await.is_empty());
        assert_eq!(store.purge(&filter).await.expect("purged"), 0);
        assert_eq!(store.requeue(&filter).await.expect("requeued"), 0);
        assert_eq!(store.replay(&filter).await.expect("replayed"), 0);
        assert!(store.failing_keys(&filter).await.expect("listed").is_empty());
    }
    assert_eq!(dead(&*store, &Filter::all_routes()).await, all);
}

/// The history is filtered by route, topic, key, id, time and page.
pub async fn the_history_is_filtered_and_paged<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::History) {
        return;
    }
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (orders, customers) = (messages("orders", "a", 3), messages("customers", "b", 2));
    for part in [&orders, &customers] {
        write(&*store, part.iter().cloned()).await;
        relay.settle(&relay.read().await).await;
        harness.advance(std::time::Duration::from_millis(20)).await;
    }
    let past = async |filter: Filter| -> Vec<MessageId> {
        let past = store.history(&filter).await.expect("the history is listed");
        past.into_iter().map(|past| past.message.message.id).collect()
    };
    let all: Vec<_> = ids(orders.iter().chain(&customers));
    assert_eq!(past(Filter::all_routes()).await, all);
    assert_eq!(past(Filter { topic: Some(topic("customers")), ..Filter::all_routes() }).await, all[3..]);
    assert_eq!(past(Filter { key: orders[0].key.clone(), ..Filter::all_routes() }).await, all[..3]);
    assert_eq!(
        past(Filter { ids: Some(vec![all[4], all[0]]), ..Filter::all_routes() }).await,
        [all[0], all[4]]
    );
    assert_eq!(past(Filter { limit: Some(2), offset: 2, ..Filter::all_routes() }).await, all[2..4]);
    let newest: Vec<_> = all.iter().rev().copied().collect();
    assert_eq!(past(Filter::all_routes().with_newest()).await, newest);
    let page = Filter { limit: Some(2), offset: 1, ..Filter::all_routes().with_newest() };
    assert_eq!(past(page).await, newest[1..3]);
    assert!(past(Filter { route: Some(route("audit")), ..Filter::all_routes() }).await.is_empty());
    let since = store.history(&Filter::all_routes()).await.expect("listed")[3].delivered_at;
    assert_eq!(past(Filter { since: Some(since), ..Filter::all_routes() }).await, all[3..]);
    assert_eq!(past(Filter { before: Some(since), ..Filter::all_routes() }).await, all[..3]);
}
