//! Scheduled messages: they join their key when they are due, as an append does, and can be listed
//! and canceled before.

use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::backend::Maintained;
use outbox_contract::{Admin, AdminExt, Message, Outgoing, Store, Timestamp, Transactional};

use super::StoreHarness;
use super::support::{
    Relay, database_now, ids, message, messages, prepared, route, stored_ids, topic, write,
};

fn due(message: &Message, at: Timestamp) -> Outgoing {
    Outgoing::from(message.clone()).due_at(at)
}

async fn maintain<S: Store>(store: &S, limit: usize) -> Maintained {
    store.maintain(limit).await.expect("a round of maintenance is done")
}

/// Messages join in the order of their due times, not of their scheduling; those of one due time,
/// in the order of scheduling.
pub async fn due_messages_join_in_the_order_of_their_due_times<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let now = database_now(&store).await;
    let all = messages("orders", "a", 4);
    let (soon, later) = (now.plus(Duration::from_millis(200)), now.plus(Duration::from_millis(400)));
    write(&*store, [due(&all[2], later), due(&all[0], soon), due(&all[3], later), due(&all[1], soon)]).await;
    harness.advance(Duration::from_millis(600)).await;
    let done = maintain(&*store, 100).await;
    assert_eq!((done.promoted, done.more, done.next_due), (4, false, None));
    assert_eq!(stored_ids(&relay.read_key(&all[0].key_id()).await), ids(&all));
    assert_eq!(maintain(&*store, 100).await.promoted, 0, "nothing is moved twice");
}

/// Nothing is moved before its due time, and the answer gives the next due time.
pub async fn nothing_joins_before_its_time<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let now = database_now(&store).await;
    let (soon, never) = (message("orders", "a"), message("orders", "a"));
    write(
        &*store,
        [due(&soon, now.plus(Duration::from_secs(2))), due(&never, Timestamp::from_micros(i64::MAX))],
    )
    .await;
    let done = maintain(&*store, 100).await;
    assert_eq!(done.promoted, 0);
    let next = done.next_due.expect("one is scheduled");
    assert!(next > Duration::ZERO && next <= Duration::from_secs(2), "{next:?}");
    assert!(relay.fetch().await.is_empty());

    harness.advance(Duration::from_millis(2_200)).await;
    let done = maintain(&*store, 100).await;
    assert_eq!(done.promoted, 1);
    assert!(done.next_due.is_some(), "the other is still scheduled");
    assert_eq!(stored_ids(&relay.read().await), [soon.id]);
}

/// A delay is counted from the append by the database's clock: no other clock decides when the
/// message is due. A delay beyond all time is never over.
pub async fn a_delay_is_counted_by_the_databases_clock<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let (at_once, later, never) = (message("orders", "a"), message("orders", "b"), message("orders", "c"));
    let hour = Duration::from_secs(3_600);
    let delayed = |message: &Message, delay| Outgoing::from(message.clone()).after(delay);
    let before = database_now(&store).await;
    write(
        &*store,
        [delayed(&never, Duration::MAX), delayed(&later, hour), delayed(&at_once, Duration::ZERO)],
    )
    .await;
    let after = database_now(&store).await;
    let listed = store.scheduled(&Filter::all_routes()).await.expect("scheduled messages are listed");
    assert_eq!(
        ids(listed.iter().map(|(_, message)| message)),
        [at_once.id, later.id, never.id],
        "the next due first; one that is due is listed until maintenance moves it"
    );
    let due = [listed[0].0, listed[1].0];
    assert!(before <= due[0] && due[0] <= after, "due at once, between {before} and {after}: {due:?}");
    assert!(
        before.plus(hour) <= due[1] && due[1] <= after.plus(hour),
        "due in an hour, after {before} to {after}: {due:?}"
    );
    assert_eq!(maintain(&*store, 100).await.promoted, 1, "the one without a delay is due");
    let relay = Relay::start(&store).await;
    assert_eq!(stored_ids(&relay.read().await), [at_once.id]);
}

/// A message that was due in the past when it was scheduled joins at the next round, unchanged in
/// every field.
pub async fn a_due_message_is_what_was_scheduled<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let full = message("orders", "ключ 🗝️")
        .with_header("tenant", "acme")
        .expect("valid")
        .with_schema_version(3)
        .with_content_type("application/x-protobuf")
        .with_payload(vec![0, 255, 10])
        .with_occurred_at(Timestamp::from_micros(-1));
    let keyless = Message::new("orders", "suite.event").expect("a valid topic");
    let past = Timestamp::from_micros(1_000_000);
    write(&*store, [due(&full, past), due(&keyless, past).by(route("audit"))]).await;
    assert_eq!(maintain(&*store, 100).await.promoted, 2);
    let read = relay.read().await;
    assert_eq!(read.len(), 1, "each by its own route");
    assert_eq!(read[0].message, full);
    let audit = Relay::on(&store, route("audit"), super::support::LONG).await;
    assert_eq!(audit.read().await[0].message, keyless);
}

/// The due time may be any instant. One before all others delays nothing.
pub async fn a_message_may_be_due_since_ever<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 2);
    let ever = Timestamp::from_micros(i64::MIN);
    write(&*store, all.iter().map(|message| due(message, ever))).await;
    let backlog = store.backlog(&relay.route).await.expect("the backlog is measured");
    assert!(backlog.oldest_pending_age > Some(Duration::from_secs(3_600)), "{backlog:?}");
    for left in [Some(Duration::ZERO), None] {
        let done = maintain(&*store, 1).await;
        assert_eq!((done.promoted, done.next_due), (1, left));
    }
    assert_eq!(stored_ids(&relay.read_key(&all[0].key_id()).await), ids(&all));
}

/// A scheduled message stands behind everything that was committed before it was due.
pub async fn a_due_message_stands_behind_what_was_committed_before<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (scheduled, direct) = (message("orders", "a"), message("orders", "a"));
    write(&*store, [due(&scheduled, Timestamp::from_micros(1))]).await;
    write(&*store, [direct.clone()]).await;
    maintain(&*store, 100).await;
    assert_eq!(stored_ids(&relay.read_key(&direct.key_id()).await), [direct.id, scheduled.id]);
}

/// A round moves no more than its limit, the next due first, and reports that there is more.
pub async fn a_round_moves_no_more_than_its_limit<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 5);
    write(
        &*store,
        all.iter().enumerate().map(|(at, message)| due(message, Timestamp::from_micros(at as i64))),
    )
    .await;
    let done = maintain(&*store, 3).await;
    assert_eq!((done.promoted, done.more), (3, true));
    assert_eq!(stored_ids(&relay.read().await), ids(&all[..3]));
    let done = maintain(&*store, 3).await;
    assert_eq!((done.promoted, done.more), (2, false));
    assert_eq!(stored_ids(&relay.read_key(&all[0].key_id()).await), ids(&all));
}

/// Two relays do it at once: nothing is moved twice, nothing left out, the order kept.
pub async fn rounds_at_once_move_each_message_once<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let other_process = harness.as_another_process().await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 60);
    write(&*store, all.iter().map(|message| due(message, Timestamp::from_micros(1)))).await;
    let mut promoted = 0;
    while promoted < 60 {
        let (one, other) = tokio::join!(store.maintain(7), other_process.maintain(7));
        for done in [one, other] {
            match done {
                Ok(done) => promoted += done.promoted,
                Err(error) => {
                    assert!(error.is_retryable(), "a round may meet a conflict, and nothing else: {error}")
                }
            }
        }
    }
    assert_eq!(promoted, 60, "each round counts what it moved itself");
    assert_eq!(stored_ids(&relay.read_key(&all[0].key_id()).await), ids(&all));
}

/// Scheduling is part of the transaction.
pub async fn a_rolled_back_schedule_never_exists<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let mut tx = store.begin().await.expect("a transaction begins");
    let scheduled = due(&message("orders", "a"), Timestamp::from_micros(1));
    store.append(&mut tx, &[scheduled]).await.expect("a valid message is scheduled");
    store.rollback(tx).await.expect("the transaction is rolled back");
    assert_eq!(maintain(&*store, 100).await.promoted, 0);
    assert!(relay.fetch().await.is_empty());
}

/// Scheduled messages are listed next due first, each with its due time; the filter compares its
/// instants with the due time.
pub async fn scheduled_messages_are_listed<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let now = database_now(&store).await;
    let (a, b, c) = (message("orders", "a"), message("orders", "b"), message("customers", "a"));
    let at = |hours: u64| now.plus(Duration::from_secs(hours * 3_600));
    write(&*store, [due(&b, at(3)), due(&a, at(1)), due(&c, at(2))]).await;
    let listed = store.scheduled(&Filter::all_routes()).await.expect("scheduled messages are listed");
    assert_eq!(listed, [(at(1), a.clone()), (at(2), c.clone()), (at(3), b.clone())]);
    let orders = Filter { topic: Some(topic("orders")), ..Filter::all_routes() };
    let listed = store.scheduled(&orders).await.expect("listed");
    assert_eq!(ids(listed.iter().map(|(_, message)| message)), [a.id, b.id]);
    let page = Filter { limit: Some(1), offset: 1, ..Filter::all_routes() };
    assert_eq!(store.scheduled(&page).await.expect("listed"), [(at(2), c.clone())]);
    let since = Filter { since: Some(at(2)), ..Filter::all_routes() };
    assert_eq!(
        store.scheduled(&since).await.expect("listed"),
        [(at(2), c.clone()), (at(3), b)],
        "what is due then or later"
    );
    let before = Filter { before: Some(at(2)), ..Filter::all_routes() };
    assert_eq!(store.scheduled(&before).await.expect("listed"), [(at(1), a.clone())], "what is due earlier");
    let between =
        Filter { key: Some(a.key_id().key), since: Some(at(2)), before: Some(at(3)), ..Filter::all_routes() };
    assert_eq!(
        store.scheduled(&between).await.expect("listed"),
        [(at(2), c)],
        "of one key, between two instants"
    );
    let one = Filter { ids: Some(vec![a.id]), ..Filter::all_routes() };
    assert_eq!(store.scheduled(&one).await.expect("listed"), [(at(1), a)]);
}

/// Canceled messages never join; the others do.
pub async fn a_cancelled_message_never_comes<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let all = messages("orders", "a", 3);
    let hot = message("orders", "a");
    write(&*store, all.iter().map(|message| due(message, Timestamp::from_micros(1)))).await;
    write(&*store, [hot.clone()]).await;
    let cancel = [all[0].id, all[2].id, hot.id, outbox_contract::MessageId::new()];
    assert_eq!(store.cancel_scheduled(&cancel).await.expect("scheduled messages are cancelled"), 2);
    assert_eq!(store.cancel_scheduled(&cancel).await.expect("they are gone"), 0);
    assert_eq!(store.cancel_scheduled(&[]).await.expect("none is no error"), 0);
    assert_eq!(maintain(&*store, 100).await.promoted, 1);
    assert_eq!(
        stored_ids(&relay.read_key(&hot.key_id()).await),
        [hot.id, all[1].id],
        "what is hot is not scheduled"
    );
}

/// A message that fell due while its key was failing waits behind the parked messages.
pub async fn a_message_due_on_a_failing_key_waits_behind_it<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (failing, scheduled) = (message("orders", "a"), message("orders", "a"));
    write(&*store, [failing.clone().into(), due(&scheduled, Timestamp::from_micros(1))]).await;
    relay.fail(&relay.read_key(&failing.key_id()).await, super::support::LATER).await;
    maintain(&*store, 100).await;
    let rows = relay.fetch().await;
    assert!(
        matches!(&rows[..], [outbox_contract::backend::FetchedRow::Failing(row)] if row.at.id == scheduled.id),
        "{rows:?}"
    );
}
