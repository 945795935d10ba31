//! Overview for operators: waiting messages, relays and buckets, routes, topics.

use std::time::Duration;

use outbox_contract::admin::{Edit, Filter, RouteStatus, TopicFigures};
use outbox_contract::backend::{BUCKETS, Epoch, Then, View};
use outbox_contract::{Admin, AdminExt, Key, MessageId, Outgoing, Route, Store, Timestamp, Transactional};

use super::support::{
    LATER, LONG, Relay, bury_step, message, messages, prepared, route, stored_ids, topic, write,
};
use super::{Capability, StoreHarness, has};

async fn waiting<S: Store>(store: &S, filter: &Filter) -> Vec<MessageId> {
    let waiting = store.waiting(filter).await.expect("waiting messages are listed");
    waiting.into_iter().map(|listed| listed.stored.message.id).collect()
}

/// Waiting messages are listed in their order or backwards, page by page, and filtered by every
/// field.
pub async fn waiting_messages_are_filtered_and_paged<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut written = Vec::new();
    for at in 0..4 {
        let next = message("orders", &format!("key {at}"));
        write(&*store, [next.clone()]).await;
        written.push(next.id);
        harness.advance(Duration::from_millis(20)).await;
    }
    let (mut keyless, other) = (message("customers", "x"), message("orders", "key 0"));
    keyless.key = None;
    write(&*store, [keyless.clone()]).await;
    harness.advance(Duration::from_millis(20)).await;
    write(&*store, [Outgoing::from(other.clone()).by(route("other"))]).await;
    written.push(keyless.id);

    let of_route = Filter::route("default").expect("a valid route");
    let mut expected = written.clone();
    expected.sort_unstable();
    let mut listed = waiting(&*store, &of_route).await;
    let in_order = listed.clone();
    listed.sort_unstable();
    assert_eq!(listed, expected, "what is on another route is not listed");
    let backwards: Vec<_> = in_order.iter().rev().copied().collect();
    assert_eq!(waiting(&*store, &of_route.clone().with_newest()).await, backwards);
    let page = Filter { limit: Some(2), offset: 1, ..of_route.clone() };
    assert_eq!(waiting(&*store, &page).await, in_order[1..3]);
    assert_eq!(waiting(&*store, &page.with_newest()).await, backwards[1..3]);

    let all = Filter::all_routes();
    assert_eq!(waiting(&*store, &all).await.len(), 6);
    assert_eq!(waiting(&*store, &Filter::route("other").expect("a valid route")).await, [other.id]);
    assert_eq!(
        waiting(&*store, &all.clone().with_topic("customers").expect("a valid topic")).await,
        [keyless.id]
    );
    let of_key = |key: &str| Filter {
        key: Some(Key::new(key).expect("a key of the suite is valid")),
        ..of_route.clone()
    };
    assert_eq!(waiting(&*store, &of_key("key 2")).await, written[2..3]);
    assert_eq!(waiting(&*store, &of_key(&keyless.id.to_string())).await, [keyless.id], "by its id");
    let two = Filter { ids: Some(vec![written[1], other.id, MessageId::new()]), ..all.clone() };
    let mut found = waiting(&*store, &two).await;
    found.sort_unstable();
    let mut expected = vec![written[1], other.id];
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert!(waiting(&*store, &Filter { ids: Some(Vec::new()), ..all.clone() }).await.is_empty());

    let listed = store.waiting(&of_route).await.expect("waiting messages are listed");
    for one in &listed {
        assert_eq!((one.at, &one.route), (one.stored.appended_at, &Route::default()));
    }
    let mut times: Vec<Timestamp> = listed.iter().map(|one| one.at).collect();
    times.sort_unstable();
    let later = Filter { since: Some(times[3]), ..of_route.clone() };
    assert_eq!(waiting(&*store, &later).await.len(), 2);
    assert_eq!(waiting(&*store, &of_route.with_before(times[3])).await.len(), 3);
}

/// Every list of messages, and every operation on messages, is limited to a type, by its exact
/// name. Keys have none, and are listed whatever it is.
pub async fn a_filter_selects_messages_of_a_type<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let of_type = |event_type: &str| Filter::all_routes().with_event_type(event_type);
    let listed = async |view: View, event_type: &str| -> Vec<MessageId> {
        let found = store.browse(view, &of_type(event_type)).await.expect("messages are listed");
        found.into_iter().map(|listed| listed.stored.message.id).collect()
    };
    // Names that a comparison could take for each other.
    let types = ["suite.a", "suite.A", "suite.ab"];
    let mut all = Vec::new();
    for (at, event_type) in types.iter().enumerate() {
        let mut one = message("orders", &format!("key {at}"));
        one.event_type = (*event_type).into();
        all.push(one);
    }
    let same = async |view: View| {
        for (one, event_type) in all.iter().zip(types) {
            assert_eq!(listed(view, event_type).await, [one.id], "{} of {event_type}", view.name());
        }
        assert!(listed(view, "suite").await.is_empty());
    };

    write(&*store, all.clone()).await;
    same(View::Waiting).await;
    relay.settle(&relay.read().await).await;
    if has::<H>(Capability::History) {
        same(View::History).await;
        assert_eq!(store.replay(&of_type("suite.A")).await.expect("replayed"), 1);
        assert_eq!(waiting(&*store, &Filter::all_routes()).await, [all[1].id]);
        relay.settle(&relay.read().await).await;
    }
    write(&*store, all.clone()).await;
    for stored in &relay.read().await {
        relay.fail(std::slice::from_ref(stored), LATER).await;
    }
    same(View::Parked).await;
    let keys = store.failing_keys(&of_type("suite.a")).await.expect("keys are listed");
    assert_eq!(keys.len(), 3, "keys have no type");
    for one in &all {
        store.skip(&relay.route, &one.key_id()).await.expect("a failing key is skipped");
    }
    same(View::DeadLetters).await;
    assert_eq!(store.purge(&of_type("suite.ab")).await.expect("purged"), 1);
    assert_eq!(store.requeue(&of_type("suite.ab")).await.expect("requeued"), 0);
    assert_eq!(store.requeue(&of_type("suite.A")).await.expect("requeued"), 1);
    let edit = Edit { payload: Some("{}".into()), ..Edit::default() };
    let none = store.requeue_edited(&of_type("suite.A"), &edit).await.expect("nothing is chosen");
    assert_eq!(none, None, "the only dead letter is of another type");
    let edited = store.requeue_edited(&of_type("suite.a"), &edit).await.expect("requeued");
    assert_eq!(edited, Some(all[0].id));
    let due_at = Timestamp::now().plus(Duration::from_secs(3_600));
    write(&*store, all.iter().map(|one| Outgoing::from(one.clone()).due_at(due_at))).await;
    same(View::Scheduled).await;
}

/// Only what is to be published waits: not what is parked, dead, scheduled, settled or uncommitted.
pub async fn only_what_is_to_be_published_waits<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let failing = messages("orders", "a", 2);
    write(&*store, failing.clone()).await;
    relay.fail(&relay.read_key(&failing[0].key_id()).await, LATER).await;
    let buried = message("orders", "b");
    write(&*store, [buried.clone()]).await;
    let stored = relay.read_key(&buried.key_id()).await;
    relay.step(&buried.key_id(), None, bury_step(&stored[0], "rejected")).await;
    let due_at = Timestamp::now().plus(Duration::from_secs(3_600));
    write(&*store, [Outgoing::from(message("orders", "c")).due_at(due_at)]).await;
    let settled = message("orders", "d");
    write(&*store, [settled.clone()]).await;
    relay.settle(&relay.read_key(&settled.key_id()).await).await;
    let (open, mut tx) = (message("orders", "e"), store.begin().await.expect("a transaction begins"));
    store.append(&mut tx, &[Outgoing::from(open)]).await.expect("a message is appended");
    assert!(waiting(&*store, &Filter::all_routes()).await.is_empty());
    store.rollback(tx).await.expect("rolled back");
    let last = message("orders", "f");
    write(&*store, [last.clone()]).await;
    let listed = store.waiting(&Filter::all_routes()).await.expect("waiting messages are listed");
    assert_eq!((listed.len(), &listed[0].stored.message), (1, &last), "byte for byte");
    assert_eq!(listed[0].stored.row(), relay.read().await[0].row(), "where a relay reads it");
}

/// Each bucket tells who owns it, under which epoch, since when and until when, and its mark.
pub async fn each_bucket_tells_its_owner<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let nobody = store.ownership(&Route::default()).await.expect("owners are told");
    assert_eq!((nobody.buckets.len(), nobody.relays.len()), (BUCKETS, 0));
    assert!(nobody.buckets.iter().all(|bucket| bucket.owner.is_none() && bucket.epoch <= Epoch(0)));

    let mut first = Relay::start(&store).await;
    let alone = store.ownership(&Route::default()).await.expect("owners are told");
    harness.advance(Duration::from_millis(20)).await;
    let second = Relay::start(&store).await;
    // The first gives back what is over its share, and the second takes it.
    let given: Vec<_> = first.leases[128..].to_vec();
    first.release(&given, false).await;
    let mut second = second;
    second.beat().await;
    first.beat().await;
    let shared = store.ownership(&Route::default()).await.expect("owners are told");
    for (relay, buckets) in [(&first, 128), (&second, 128)] {
        let status = shared.relay(relay.id).expect("the relay is told");
        assert!(status.live && status.unavailable_since.is_none());
        assert_eq!((status.label.as_str(), status.fingerprint, status.buckets), ("suite", 7, buckets));
        assert!(status.expires_at > shared.now && status.lasts == LONG);
        for lease in &relay.leases {
            let owner = shared.owner(lease.bucket).expect("every bucket is told");
            assert_eq!((owner.owner, owner.epoch), (Some(relay.id), lease.epoch));
            assert!(owner.until.is_some_and(|until| until > shared.now && until <= status.expires_at));
            assert!(owner.since.is_some_and(|since| since <= shared.now) && !owner.yielding);
        }
    }
    let (kept, taken) = (first.leases[0].bucket, second.leases[0].bucket);
    let since = |view: &outbox_contract::admin::Ownership, bucket| {
        view.owner(bucket).and_then(|owner| owner.since).expect("it has an owner")
    };
    assert_eq!(since(&shared, kept), since(&alone, kept), "a heartbeat begins nothing");
    assert!(since(&shared, taken) > since(&alone, taken), "another owner begins anew");

    first.leave().await;
    let left = store.ownership(&Route::default()).await.expect("owners are told");
    assert!(left.relay(first.id).is_none_or(|relay| !relay.live), "{:?}", left.relays);
    let bucket = left.owner(kept).expect("every bucket is told");
    assert_eq!((bucket.owner, bucket.until), (None, None));
    assert_eq!(bucket.epoch, first.leases[0].epoch, "it keeps its epoch");
}

/// A relay whose life is over owns nothing.
pub async fn a_relay_that_is_gone_owns_nothing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut relay = Relay::start(&store).await;
    relay.shorten().await;
    harness.advance(super::support::OVER).await;
    let view = store.ownership(&Route::default()).await.expect("owners are told");
    assert!(view.relays.iter().all(|status| !status.live && status.buckets == 0), "{:?}", view.relays);
    assert!(view.buckets.iter().all(|bucket| bucket.owner.is_none() && bucket.until.is_none()));
}

/// Routes are listed by name, with their live relays and their pauses, whatever they have.
pub async fn routes_tell_their_relays_and_pauses<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let by = |name: &str| Outgoing::from(message("orders", "a")).by(route(name));
    let relay = Relay::on(&store, route("relayed"), LONG).await;
    let _second = Relay::on(&store, route("relayed"), LONG).await;
    write(&*store, [by("hot"), by("inbox/shop")]).await;
    let due_at = Timestamp::now().plus(Duration::from_secs(3_600));
    write(&*store, [by("scheduled").due_at(due_at)]).await;
    store.hold(&route("held"), &message("orders", "a").key_id()).await.expect("held");
    let dead = Relay::on(&store, route("dead"), LONG).await;
    write(&*store, [by("dead")]).await;
    let stored = dead.read().await;
    dead.step(&stored[0].message.key_id(), None, bury_step(&stored[0], "rejected")).await;
    dead.leave().await;
    store.pause(&route("paused"), None).await.expect("paused");
    store.pause(&route("paused"), Some(&topic("orders"))).await.expect("paused");
    store.pause(&route("paused"), Some(&topic("customers"))).await.expect("paused");

    let routes = store.routes().await.expect("routes are listed");
    let status = |name: &str| -> &RouteStatus {
        let found = routes.iter().find(|status| status.route == *name);
        found.unwrap_or_else(|| panic!("{name} is missing in {routes:?}"))
    };
    for name in ["hot", "inbox/shop", "scheduled", "held", "dead"] {
        let status = status(name);
        assert_eq!((status.relays, status.paused.route, status.paused.topics.len()), (0, false, 0), "{name}");
    }
    assert_eq!(status("relayed").relays, 2);
    let paused = status("paused");
    assert!(paused.paused.route && paused.paused.topics == [topic("customers"), topic("orders")]);
    assert!(routes.windows(2).all(|pair| pair[0].route < pair[1].route), "each once, by name: {routes:?}");
    relay.leave().await;
    let routes = store.routes().await.expect("routes are listed");
    let relayed = routes.iter().find(|status| status.route == *"relayed").expect("it was there");
    assert_eq!(relayed.relays, 1, "one has left");
}

/// Figures of a route's topics count everything by its name, and nothing of other routes.
pub async fn figures_of_topics_count_everything_by_its_name<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    write(&*store, messages("hot", "a", 3)).await;
    let failing = messages("failing", "a", 2);
    write(&*store, failing.clone()).await;
    relay.fail(&relay.read_key(&failing[0].key_id()).await, LATER).await;
    let held = message("failing", "b");
    write(&*store, [held.clone()]).await;
    relay.fail(&relay.read_key(&held.key_id()).await, Then::Hold).await;
    let buried = messages("dead", "a", 2);
    write(&*store, buried.clone()).await;
    for stored in relay.read_key(&buried[0].key_id()).await {
        relay.step(&buried[0].key_id(), None, bury_step(&stored, "rejected")).await;
    }
    write(&*store, [Outgoing::from(message("hot", "a")).by(route("other"))]).await;
    harness.advance(Duration::from_millis(20)).await;

    let topics = store.topics(&Route::default()).await.expect("figures of topics are told");
    let names: Vec<&str> = topics.iter().map(|figures| figures.topic.as_str()).collect();
    assert_eq!(names, ["dead", "failing", "hot"], "by name");
    let told = |figures: &TopicFigures| {
        let keys = (figures.retrying_keys, figures.held_keys);
        (figures.waiting, figures.parked, keys, figures.dead, figures.oldest_age.is_some())
    };
    assert_eq!(told(&topics[0]), (0, 0, (0, 0), 2, false));
    assert_eq!(told(&topics[1]), (0, 3, (1, 1), 0, true));
    assert_eq!(told(&topics[2]), (3, 0, (0, 0), 0, true));
    assert!(topics[2].oldest_age.is_some_and(|age| age >= Duration::from_millis(10)));
    assert!(topics.iter().all(|figures| !figures.is_at_least), "nothing was cut");
    let other = store.topics(&route("other")).await.expect("figures of topics are told");
    assert_eq!(other.iter().map(told).collect::<Vec<_>>(), [(1, 0, (0, 0), 0, true)]);
    assert!(store.topics(&route("nowhere")).await.expect("an unknown route has no topics").is_empty());
    let read = relay.read().await;
    assert_eq!(stored_ids(&read).len(), 3);
}

/// A diagnosis of the database gives a remedy for each finding, and leaves messages and keys as
/// they are.
pub async fn a_diagnosis_has_remedies_and_changes_nothing<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    write(&*store, messages("hot", "a", 3)).await;
    let failing = message("failing", "a");
    write(&*store, [failing.clone()]).await;
    relay.fail(&relay.read_key(&failing.key_id()).await, Then::Hold).await;
    let seen = async || {
        let waiting = store.waiting(&Filter::all_routes()).await.expect("waiting messages are listed");
        let parked = store.parked(&Filter::all_routes()).await.expect("parked messages are listed");
        let audit = store.audit(&Filter::all_routes()).await.expect("the audit is listed");
        let ids: Vec<_> = waiting.iter().map(|listed| listed.stored.row()).collect();
        (ids, parked.len(), audit.len())
    };
    let before = seen().await;
    for diagnosis in store.diagnose().await.expect("the database is examined") {
        assert!(!diagnosis.text.is_empty() && !diagnosis.remedy.is_empty(), "{diagnosis:?}");
    }
    assert_eq!(seen().await, before);
    assert_eq!((before.0.len(), before.1), (3, 1));
}
