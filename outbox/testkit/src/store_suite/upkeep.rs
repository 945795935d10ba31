//! Maintenance around the messages: migrations, elections, counts, wake-ups.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use outbox_contract::backend::{RelayId, Unserved, Wakeup};
use outbox_contract::{AdminExt, Consumer, Outgoing, Store, StoreErrorKind, Timestamp, Transactional};

use super::support::{
    LATER, LONG, NOW, OVER, Relay, SHORT, bury_step, database_now, kind_of, message, messages, prepared,
    route, write,
};
use super::{Capability, StoreHarness, has};

/// Age difference of two messages: much more than clocks can differ.
const OLDER: Duration = Duration::from_millis(400);

/// A check of an unmigrated database reports it; once migrated, the check succeeds.
pub async fn a_check_tells_whether_the_tables_are_there<H: StoreHarness>(harness: &H) {
    let store = harness.store();
    if has::<H>(Capability::Migrations) {
        let error = store.check().await.expect_err("this database was not migrated");
        assert_eq!(error.kind(), StoreErrorKind::NotMigrated, "{error}");
    } else {
        store.check().await.expect("there is nothing to migrate");
    }
    store.migrate().await.expect("an empty database is migrated");
    store.check().await.expect("a migrated database is fine");
}

/// Migrating again keeps everything.
pub async fn migrating_again_keeps_what_is_there<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    write(&*store, messages("orders", "a", 3)).await;
    let before = relay.read().await;
    store.migrate().await.expect("a migrated database is migrated again");
    store.check().await.expect("and is fine");
    assert_eq!(relay.read().await, before);
}

/// A fleet starts at once: one program migrates, the others wait.
pub async fn programs_that_migrate_at_once_all_succeed<H: StoreHarness>(harness: &H) {
    let mut stores = Vec::new();
    for at in 0..4 {
        stores.push(if at % 2 == 0 { harness.store() } else { harness.as_another_process().await });
    }
    let migrated = futures_util::future::join_all(stores.iter().map(|store| store.migrate())).await;
    for (at, migrated) in migrated.into_iter().enumerate() {
        migrated.unwrap_or_else(|error| panic!("program {at} could not migrate: {error}"));
    }
    stores[0].check().await.expect("the database is fine");
    let relay = Relay::start(&stores[0]).await;
    write(&*stores[1], messages("orders", "a", 1)).await;
    assert_eq!(relay.read().await.len(), 1);
}

/// One relay at a time is elected, until its term ends.
pub async fn one_relay_is_elected_until_its_time_is_over<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let (one, other) = (RelayId::new(), RelayId::new());
    let elect = async |relay: RelayId, lasts: Duration| {
        store.elect("janitor", relay, lasts).await.expect("an election is held")
    };
    assert!(elect(one, LONG).await, "the role is free");
    assert!(!elect(other, LONG).await, "and now it is not");
    assert!(elect(one, SHORT).await, "whoever has it may have it again, for another time");
    assert!(
        store.elect("auditor", other, LONG).await.expect("an election is held"),
        "another role is another election"
    );
    harness.advance(OVER).await;
    assert!(elect(other, LONG).await, "the holder's time is over");
    assert!(!elect(one, LONG).await);
}

/// Of many candidates at once, one is elected.
pub async fn of_candidates_at_once_one_is_elected<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let other_process = harness.as_another_process().await;
    for round in 0..5 {
        let role = format!("role-{round}");
        let votes = (0..8).map(|at| {
            let store = if at % 2 == 0 { &store } else { &other_process };
            store.elect(&role, RelayId::new(), LONG)
        });
        let votes = futures_util::future::join_all(votes).await;
        let elected = votes.into_iter().filter(|vote| *vote.as_ref().expect("an election is held")).count();
        assert_eq!(elected, 1, "round {round}");
    }
}

/// Hot, parked, failing, held, dead and scheduled messages are counted, each under its name.
pub async fn the_backlog_counts_everything_by_its_name<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let mut empty = store.backlog(&relay.route).await.expect("the backlog is counted");
    empty.counting_limit = None;
    assert_eq!(empty, Default::default(), "nothing waits");

    write(&*store, messages("orders", "failing", 3)).await;
    write(&*store, messages("orders", "poison", 1)).await;
    write(&*store, messages("orders", "hot", 5)).await;
    let later = database_now(&store).await.plus(Duration::from_secs(3_600));
    write(
        &*store,
        messages("orders", "later", 2).into_iter().map(|message| Outgoing::from(message).due_at(later)),
    )
    .await;
    relay.fail(&relay.read_key(&message("orders", "failing").key_id()).await, LATER).await;
    store.hold(&relay.route, &message("orders", "held").key_id()).await.expect("a key is held");
    let poison = message("orders", "poison").key_id();
    relay.step(&poison, None, bury_step(&relay.read_key(&poison).await[0], "rejected")).await;

    let backlog = store.backlog(&relay.route).await.expect("the backlog is counted");
    assert_eq!(backlog.pending, 5, "neither what is parked nor what is dead or scheduled");
    assert_eq!((backlog.parked, backlog.retrying_keys, backlog.held_keys), (3, 1, 1));
    assert_eq!((backlog.dead, backlog.scheduled, backlog.unowned_buckets), (1, 2, 0));
    assert!(!backlog.pending_is_at_least && !backlog.is_at_least(3), "so few are counted exactly");
    let mut other = store.backlog(&route("audit")).await.expect("the backlog is counted");
    other.counting_limit = None;
    assert_eq!(other, Default::default(), "another route has a backlog of its own");
}

/// Hot messages are counted exactly, and no longer once they are settled.
pub async fn the_backlog_counts_what_is_to_be_published<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let pending = async || store.backlog(&relay.route).await.expect("the backlog is counted").pending;
    write(&*store, messages("orders", "a", 5)).await;
    assert_eq!(pending().await, 5);
    let read = relay.read().await;
    relay.settle(&read[..3]).await;
    assert_eq!(pending().await, 2);
}

/// Promise P9: the age of the oldest message that waits, hot or parked, by the database's clock; and
/// that of the oldest one that is not parked.
pub async fn the_age_of_the_oldest_message_is_known<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let backlog = async || store.backlog(&relay.route).await.expect("the backlog is counted");
    let age = async || backlog().await.oldest_age;
    assert_eq!((age().await, backlog().await.oldest_pending_age), (None, None));
    // Its own clock says 1970: that is not how long it has waited.
    write(&*store, [message("orders", "a").with_occurred_at(Timestamp::from_micros(0))]).await;
    let parked = relay.read().await;
    harness.advance(OLDER).await;
    let since = Instant::now();
    write(&*store, [message("orders", "b")]).await;
    let hot = age().await.expect("two wait");
    assert!(hot >= OLDER && hot < Duration::from_secs(100), "{hot:?}");
    assert!(backlog().await.oldest_pending_age >= Some(hot), "it is not parked");

    let version = relay.fail(&parked, NOW).await;
    let still = age().await.expect("two wait");
    assert!(still >= hot, "a parked message waits as well: {still:?} after {hot:?}");
    let pending = backlog().await.oldest_pending_age.expect("one is not parked");
    assert!(pending < since.elapsed() + OLDER / 2, "no relay may publish the parked one: {pending:?}");
    relay.step(&parked[0].message.key_id(), Some(version), bury_step(&parked[0], "exhausted")).await;
    let younger = age().await.expect("one waits");
    assert!(
        younger < since.elapsed() + OLDER / 2,
        "a dead letter waits no more: {younger:?} after {still:?}"
    );
}

/// Promise P9: a scheduled message that is due and does not join its key is as visible as an unsent
/// one.
pub async fn the_age_of_what_is_overdue_is_known<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let age = async || store.backlog(&relay.route).await.expect("the backlog is counted").oldest_age;
    let now = database_now(&store).await;
    let at = |topic: &str, due_at| Outgoing::from(message(topic, "a")).due_at(due_at);
    let later = at("later", now.plus(Duration::from_secs(3_600)));
    write(&*store, [at("orders", now), later, at("audit", now).by(route("audit"))]).await;
    harness.advance(OLDER).await;
    let overdue = age().await.expect("one is due");
    let pending = store.backlog(&relay.route).await.expect("the backlog is counted").oldest_pending_age;
    assert!(pending >= Some(overdue), "it is not parked: {pending:?}");
    assert!(overdue >= OLDER && overdue < Duration::from_secs(100), "{overdue:?}");
    let since = Instant::now();
    store.maintain(100).await.expect("maintained");
    let joined = age().await.expect("one waits");
    assert!(joined < since.elapsed() + OLDER / 2, "it has joined its key: {joined:?} after {overdue:?}");
    relay.settle(&relay.read().await).await;
    assert_eq!(age().await, None, "a message that is not due does not count as waiting");
}

/// Promise P9: messages in buckets without a live owner are noticed.
pub async fn buckets_that_nobody_works_on_are_counted<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let unowned =
        async || store.backlog(&Default::default()).await.expect("the backlog is counted").unowned_buckets;
    write(&*store, messages("orders", "a", 3)).await;
    assert_eq!(unowned().await, 1, "three messages of one key are one bucket");
    let mut relay = Relay::start(&store).await;
    let while_owned = unowned().await;
    relay.shorten().await;
    harness.advance(OVER).await;
    assert_eq!(unowned().await, 1, "its owner's time is over");
    let next = Relay::start(&store).await;
    assert_eq!((while_owned, unowned().await), (0, 0));
    relay.settle(&next.read().await).await;
    next.leave().await;
    assert_eq!(unowned().await, 0, "nothing waits in it");
}

/// The same holds for buckets in which every waiting message is parked.
pub async fn buckets_with_parked_messages_that_nobody_works_on_are_counted<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    write(&*store, messages("orders", "a", 2)).await;
    relay.fail(&relay.read().await, LATER).await;
    let unowned = async || store.backlog(&relay.route).await.expect("the backlog is counted").unowned_buckets;
    assert_eq!(unowned().await, 0);
    relay.leave().await;
    assert_eq!(unowned().await, 1, "two parked messages of one key are one bucket");
}

/// Promise P9: messages of a route that never had a relay are noticed, once they have waited this
/// long, until they are gone or a relay runs.
pub async fn a_route_that_no_relay_serves_is_found<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    assert_eq!(unserved(&store, Duration::ZERO).await, [], "nothing waits");
    write(&*store, messages("orders", "a", 3)).await;
    let to = |name: &str| Outgoing::from(message("orders", "a")).by(route(name));
    write(&*store, [to("attic"), to("attic"), to("inbox/stock")]).await;
    harness.advance(WAITED).await;

    let found = unserved(&store, WAITED / 2).await;
    assert_eq!(routes(&found), ["attic", "inbox/stock"], "and not the route of the relay");
    assert!(found.iter().all(|unserved| (WAITED..LONG).contains(&unserved.oldest_age)), "{found:?}");
    assert_eq!(unserved(&store, LONG).await, [], "none has waited for so long");

    let late = Relay::on(&store, route("attic"), LONG).await;
    assert_eq!(routes(&unserved(&store, Duration::ZERO).await), ["inbox/stock"], "one has a relay now");
    late.settle(&late.read().await).await;
    late.leave().await;
    assert_eq!(
        routes(&unserved(&store, Duration::ZERO).await),
        ["inbox/stock"],
        "nothing waits in the other"
    );
    relay.leave().await;
    assert_eq!(routes(&unserved(&store, Duration::ZERO).await), ["default", "inbox/stock"]);
}

/// A relay that is gone no longer serves its route, whether it left or its life expired.
pub async fn a_route_whose_relay_is_gone_is_found<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    write(&*store, messages("orders", "a", 1)).await;
    let mut relay = Relay::start(&store).await;
    let served = unserved(&store, Duration::ZERO).await;
    relay.shorten().await;
    harness.advance(OVER).await;
    let gone = unserved(&store, Duration::ZERO).await;
    assert_eq!((served.len(), gone.len()), (0, 1), "{gone:?}");
    let next = Relay::start(&store).await;
    relay.leave().await;
    assert_eq!(unserved(&store, Duration::ZERO).await, [], "another one lives");
    next.leave().await;
    assert_eq!(unserved(&store, Duration::ZERO).await.len(), 1, "the last one has left");
}

/// A relay whose life ends implausibly late, as after a failover to a server whose clock is behind,
/// does not count.
pub async fn a_route_whose_relay_lives_implausibly_long_is_found<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::ClockBack) {
        return;
    }
    let store = prepared(harness).await;
    write(&*store, messages("orders", "a", 1)).await;
    let _relay = Relay::on(&store, Default::default(), LONG).await;
    harness.advance(WAITED).await;
    harness.set_clock_back(LONG * 6).await;
    write(&*store, messages("orders", "b", 1)).await;
    harness.advance(WAITED).await;
    assert_eq!(routes(&unserved(&store, Duration::ZERO).await), ["default"]);
}

/// Messages parked behind a failing or a held key wait for a relay too.
pub async fn a_route_whose_messages_are_all_parked_is_found_when_nobody_serves_it<H: StoreHarness>(
    harness: &H,
) {
    let store = prepared(harness).await;
    for (name, key) in [("attic", "failing"), ("bills", "held")] {
        let relay = Relay::on(&store, route(name), LONG).await;
        let to_park = messages("orders", key, 2).into_iter();
        write(&*store, to_park.map(|message| Outgoing::from(message).by(relay.route.clone()))).await;
        let parked = relay.read().await;
        relay.fail(&parked, LATER).await;
        if key == "held" {
            store.hold(&relay.route, &parked[0].message.key_id()).await.expect("a key is held");
        }
        assert_eq!(relay.read().await, [], "all of it is parked");
        relay.leave().await;
    }
    harness.advance(WAITED).await;
    assert_eq!(routes(&unserved(&store, WAITED / 2).await), ["attic", "bills"]);
    let _relay = Relay::on(&store, route("attic"), LONG).await;
    assert_eq!(routes(&unserved(&store, WAITED / 2).await), ["bills"]);
    let bills = message("orders", "held").key_id();
    store.discard(&route("bills"), &bills).await.expect("a key is discarded");
    assert_eq!(unserved(&store, Duration::ZERO).await, [], "a dead letter does not count as waiting");
}

/// Any relay moves a scheduled message that is due, and its own route needs none for that; until it
/// is moved it waits.
pub async fn a_route_whose_messages_are_overdue_is_found_when_nobody_serves_it<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let now = database_now(&store).await;
    let at = |name: &str, due_at| Outgoing::from(message("orders", "a")).due_at(due_at).by(route(name));
    write(&*store, [at("attic", now), at("bills", now.plus(Duration::from_secs(3_600)))]).await;
    harness.advance(WAITED).await;
    let overdue = unserved(&store, WAITED / 2).await;
    assert_eq!(routes(&overdue), ["attic"], "the other is not due");
    assert!(overdue[0].oldest_age >= WAITED, "{overdue:?}");
    store.maintain(100).await.expect("maintained");
    harness.advance(WAITED).await;
    assert_eq!(
        routes(&unserved(&store, WAITED / 2).await),
        ["attic"],
        "it has joined its key, and waits there"
    );
    let _relay = Relay::on(&store, route("attic"), LONG).await;
    assert_eq!(unserved(&store, Duration::ZERO).await, []);
}

/// However many routes are served and have messages, none hides an unserved one, wherever its name
/// sorts.
pub async fn a_route_that_no_relay_serves_is_found_among_many<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let to = |name: &str| Outgoing::from(message("orders", "a")).by(route(name));
    let mut relays = Vec::new();
    for at in 0..12 {
        let name = format!("route-{at:02}");
        write(&*store, (0..3).map(|_| to(&name))).await;
        if at % 5 != 0 {
            relays.push(Relay::on(&store, route(&name), LONG).await);
        }
    }
    harness.advance(WAITED).await;
    let found = unserved(&store, WAITED / 2).await;
    assert!(
        found.is_sorted_by(|one, next| one.oldest_age >= next.oldest_age),
        "the longest waiting first: {found:?}"
    );
    assert_eq!(routes(&found), ["route-00", "route-05", "route-10"]);
}

async fn unserved<S: Store>(store: &S, after: Duration) -> Vec<Unserved> {
    store.unserved(after).await.expect("unserved routes are told")
}

/// Their names, in the order of names.
fn routes(unserved: &[Unserved]) -> Vec<&str> {
    let mut names: Vec<&str> = unserved.iter().map(|unserved| unserved.route.as_str()).collect();
    names.sort_unstable();
    names
}

/// Minimum waiting time of the messages.
const WAITED: Duration = Duration::from_millis(400);

/// A relay of the same process wakes up at an append, and exactly at a commit.
pub async fn an_append_and_a_commit_wake_the_relays_of_the_process<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut listener = store.wakeup_signal().listen();
    let mut tx = store.begin().await.expect("a transaction begins");
    store.append(&mut tx, &[message("orders", "a").into()]).await.expect("a valid message is appended");
    let heard = tokio::time::timeout(PATIENCE, listener.next()).await;
    assert_eq!(heard.expect("an append wakes it"), Wakeup::Soon);
    store.commit(tx).await.into_result().expect("the transaction commits");
    let heard = tokio::time::timeout(PATIENCE, listener.next()).await;
    assert_eq!(heard.expect("a commit wakes it"), Wakeup::Now);
}

/// An inbox commits for each message that it handles, and mostly appends nothing: such a commit
/// wakes no relay.
pub async fn a_commit_without_an_append_wakes_no_relay<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let mut listener = store.wakeup_signal().listen();
    let mut tx = store.begin().await.expect("a transaction begins");
    let consumer = Consumer::new("inventory").expect("a valid name");
    store
        .deduplicate(&mut tx, &consumer, &[&message("orders", "a")])
        .await
        .expect("a message is recorded as handled");
    store.commit(tx).await.into_result().expect("the transaction commits");
    let heard = tokio::time::timeout(Duration::ZERO, listener.next()).await;
    assert!(heard.is_err(), "nothing was appended, and it was woken: {heard:?}");
}

/// A commit wakes every listener, each separately, and the stream does not end.
pub async fn every_listener_is_woken_by_a_commit<H: StoreHarness>(harness: &H) {
    if !has::<H>(Capability::Wakeups) {
        return;
    }
    let store = prepared(harness).await;
    let mut listeners = [store.wakeups(), store.wakeups()];
    for listener in &mut listeners {
        // The first poll begins to listen, where that takes a connection; it must not end the
        // stream.
        let early = tokio::time::timeout(Duration::from_millis(200), listener.next()).await;
        assert!(!matches!(early, Ok(None)), "wake-ups end never");
    }
    for round in 0..2 {
        write(&*store, messages("orders", "a", 1)).await;
        for listener in &mut listeners {
            let woken = tokio::time::timeout(PATIENCE, listener.next()).await;
            assert!(
                matches!(woken, Ok(Some(_))),
                "round {round}: a commit wakes every listener, got {woken:?}"
            );
        }
    }
}

/// Listening costs the writers nothing: they neither wait for listeners nor fail without them.
pub async fn a_listener_that_is_dropped_hinders_nobody<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let mut listener = store.wakeups();
    let _ = tokio::time::timeout(Duration::from_millis(50), listener.next()).await;
    drop(listener);
    write(&*store, messages("orders", "a", 2)).await;
    assert_eq!(relay.read().await.len(), 2);
}

/// Errors of operators and programs differ in their kind, not only in their text.
pub async fn an_error_says_what_was_attempted<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let key = message("orders", "a").key_id();
    let error = store.skip(&Default::default(), &key).await.expect_err("the key flows");
    assert_eq!((error.kind(), error.operation().is_empty()), (StoreErrorKind::Invalid, false));
    assert!(!error.is_retryable());
    assert!(error.to_string().contains('a'), "the words name the key: {error}");
    assert_eq!(kind_of(store.discard(&Default::default(), &key).await), StoreErrorKind::Invalid);
}

/// Time limit for a wake-up that must arrive.
const PATIENCE: Duration = Duration::from_secs(20);
