//! Promise P1: a message exists if and only if the transaction that appended it committed, and it
//! equals the appended message.

use std::time::Duration;

use outbox_contract::backend::Stored;
use outbox_contract::{AppendError, Bytes, Headers, Message, MessageId, Outgoing, Timestamp, Transactional};

use super::StoreHarness;
use super::support::{
    LONG, Relay, database_now, ids, message, messages, prepared, route, stored_ids, topic, try_write, write,
};

/// Writes these in one transaction and asserts that exactly they are fetched, the same in every
/// field.
async fn assert_kept<H: StoreHarness>(harness: &H, written: Vec<Message>) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    write(&*store, written.iter().cloned()).await;

    let read = relay.read().await;
    assert_eq!(read.len(), written.len(), "each message that was committed is fetched, and no other");
    for message in &written {
        let stored = read.iter().find(|stored| stored.message.id == message.id);
        let stored = stored.unwrap_or_else(|| panic!("{} was committed and is not fetched", message.id));
        assert_same(stored, message);
    }
}

/// Compares field by field, so that a failure names the field.
fn assert_same(stored: &Stored, written: &Message) {
    let read = &stored.message;
    assert_eq!(read.topic, written.topic);
    assert_eq!(read.key, written.key);
    assert_eq!(read.event_type, written.event_type);
    assert_eq!(read.schema_version, written.schema_version);
    assert_eq!(read.content_type, written.content_type);
    let (kept, given): (Vec<_>, Vec<_>) = (read.headers.iter().collect(), written.headers.iter().collect());
    assert_eq!(kept, given, "headers");
    assert_eq!(read.occurred_at, written.occurred_at);
    assert!(read.payload == written.payload, "the payload of {} bytes is kept", written.payload.len());
    assert_eq!(*read, *written);
    assert_eq!(stored.bucket, written.bucket(), "the bucket is the hash of topic and key");
}

/// Every field is fetched as it was appended.
pub async fn a_committed_message_is_fetched_byte_for_byte<H: StoreHarness>(harness: &H) {
    let full = Message::new("orders", "order.placed")
        .expect("a valid topic")
        .with_key("order-1")
        .and_then(|message| message.with_header("tenant", "acme"))
        .and_then(|message| {
            message.with_header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
        })
        .expect("valid")
        .with_schema_version(3)
        .with_content_type("application/x-protobuf")
        .with_payload(vec![0, 255, 128, 10, 13, 39, 92, 0])
        .with_occurred_at(Timestamp::from_micros(1_700_000_000_123_456));
    assert_kept(harness, vec![full]).await;
}

/// Text of any script is kept, in every text field.
pub async fn unicode_is_kept_in_every_text<H: StoreHarness>(harness: &H) {
    let text = "ключ/鍵/🗝️/e\u{301}é/'\"\\%_ ";
    let message = Message::new(text, text)
        .expect("a valid topic")
        .with_key(text)
        .and_then(|message| message.with_header(text, text))
        .and_then(|message| message.with_header("empty", ""))
        .expect("valid")
        .with_content_type(text)
        .with_payload(text);
    assert_kept(harness, vec![message]).await;
}

/// Texts of the maximum length that the contract allows are kept, in characters of one byte and of
/// four.
pub async fn the_longest_names_are_kept<H: StoreHarness>(harness: &H) {
    let longest = |character: char, most: usize| character.to_string().repeat(most / character.len_utf8());
    let of = |character: char| {
        Message::new(topic(&longest(character, 249)), longest(character, Message::MAX_TYPE_BYTES))
            .expect("a valid topic")
            .with_key(longest(character, 255))
            .and_then(|message| {
                message.with_header(
                    longest(character, Headers::MAX_NAME_BYTES),
                    longest(character, Headers::MAX_VALUE_BYTES),
                )
            })
            .expect("valid")
            .with_content_type(longest(character, Message::MAX_TYPE_BYTES))
    };
    assert_kept(harness, vec![of('a'), of('🗝')]).await;
}

/// A payload of 1 MiB with every byte value in it is kept.
pub async fn a_large_payload_is_kept<H: StoreHarness>(harness: &H) {
    let every_byte: Bytes = (0..1024 * 1024).map(|at: u32| (at % 251) as u8).collect::<Vec<u8>>().into();
    assert_kept(harness, vec![message("large", "k").with_payload(every_byte)]).await;
}

/// An empty payload and empty headers are kept as such, and do not become absent.
pub async fn an_empty_payload_is_kept<H: StoreHarness>(harness: &H) {
    assert_kept(harness, vec![message("empty", "k").with_payload(Bytes::new())]).await;
}

/// A message without a key is fetched without one, in the bucket of its own id.
pub async fn a_message_without_a_key_stays_without_one<H: StoreHarness>(harness: &H) {
    let keyless = Message::new("keyless", "suite.event").expect("a valid topic").with_payload("{}");
    let other = Message::new("keyless", "suite.event").expect("a valid topic").with_payload("{}");
    assert_kept(harness, vec![keyless, other]).await;
}

/// Extremes are kept: the first and the last instant, the first and the last schema version, ids of
/// all zeros and all ones.
pub async fn the_extremes_of_numbers_are_kept<H: StoreHarness>(harness: &H) {
    // From the first instant that can be printed to the last one.
    let instants = [-62_167_219_200_000_000, -1, 0, 1, 253_402_300_799_999_999];
    let mut written: Vec<Message> = instants
        .map(|micros| message("numbers", "instants").with_occurred_at(Timestamp::from_micros(micros)))
        .into();
    written.push(message("numbers", "versions").with_schema_version(1));
    written.push(message("numbers", "versions").with_schema_version(u32::MAX));
    for bits in [0, u128::MAX] {
        written.push(message("numbers", "ids").with_id(MessageId::from_uuid(uuid::Uuid::from_u128(bits))));
    }
    assert_kept(harness, written).await;
}

/// Messages of a transaction that was rolled back are never fetched.
pub async fn a_rolled_back_message_never_exists<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let mut tx = store.begin().await.expect("a transaction begins");
    store.append(&mut tx, &[message("orders", "a").into()]).await.expect("a valid message is appended");
    store.append(&mut tx, &[message("orders", "b").into()]).await.expect("a valid message is appended");
    store.rollback(tx).await.expect("the transaction is rolled back");
    assert!(relay.fetch().await.is_empty(), "nothing was committed");

    let kept = message("orders", "a");
    write(&*store, [kept.clone()]).await;
    assert_eq!(stored_ids(&relay.read().await), [kept.id], "the key goes on after a rollback");
}

/// A transaction that is dropped (a canceled handler, a panic) leaves nothing behind.
pub async fn a_message_of_a_dropped_transaction_never_exists<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let mut tx = store.begin().await.expect("a transaction begins");
    store.append(&mut tx, &[message("orders", "a").into()]).await.expect("a valid message is appended");
    drop(tx);

    // Committed behind the dropped one, so that any remnant of it has had its chance to appear.
    let kept = message("orders", "a");
    write(&*store, [kept.clone()]).await;
    assert_eq!(stored_ids(&relay.read().await), [kept.id]);
}

/// A `begin` that is dropped before it is done (a timeout, an aborted task) leaves no open
/// transaction on a pooled connection. The next user of the connection begins a transaction of its
/// own.
pub async fn a_begin_that_is_dropped_half_way_leaves_nothing_open<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let mut kept = Vec::new();
    // Often enough for each connection of a pool to have its turn.
    for _ in 0..20 {
        // It is polled once: its request is on the way.
        let _ = tokio::time::timeout(Duration::ZERO, store.begin()).await;
        let message = message("orders", "a");
        kept.push(message.id);
        write(&*store, [message]).await;
    }
    assert_eq!(stored_ids(&relay.read().await), kept);
}

/// An uncommitted message can't be fetched; once it is committed, the very next fetch returns it.
pub async fn a_message_appears_with_its_commit_and_not_before<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let appended = message("orders", "a");
    let mut tx = store.begin().await.expect("a transaction begins");
    store.append(&mut tx, &[appended.clone().into()]).await.expect("a valid message is appended");
    assert!(relay.fetch().await.is_empty(), "the transaction is still open");
    store.commit(tx).await.into_result().expect("the transaction commits");
    assert_eq!(stored_ids(&relay.read().await), [appended.id]);
}

/// A transaction that is begun together with a commit is a separate transaction. A store may also
/// begin none: then the next `begin` begins it.
pub async fn what_is_begun_with_a_commit_is_another_transaction<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let mut kept = Vec::new();
    let mut next = None;
    for ends_by_itself in [true, false, true, false] {
        let mut tx = match next.take() {
            Some(begun) => begun,
            None => store.begin().await.expect("a transaction begins"),
        };
        let appended = message("orders", "a");
        kept.push(appended.id);
        store.append(&mut tx, &[appended.into()]).await.expect("a valid message is appended");
        let (committed, begun) = store.commit_and_begin(tx).await;
        committed.into_result().expect("the transaction commits");
        assert_eq!(stored_ids(&relay.read().await), kept, "it is committed, whatever was begun behind it");
        let Some(mut tx) = begun else { continue };
        store.append(&mut tx, &[message("orders", "b").into()]).await.expect("a valid message is appended");
        if ends_by_itself {
            drop(tx);
        } else {
            store.rollback(tx).await.expect("the transaction is rolled back");
        }
        let appended = message("orders", "a");
        kept.push(appended.id);
        let mut tx = store.begin().await.expect("a transaction begins");
        store.append(&mut tx, &[appended.into()]).await.expect("a valid message is appended");
        let (committed, begun) = store.commit_and_begin(tx).await;
        committed.into_result().expect("the transaction commits");
        next = begun;
    }
    drop(next);
    assert_eq!(stored_ids(&relay.read().await), kept, "nothing else was");
}

/// A batch with one invalid message writes none of its messages, and the transaction can continue.
pub async fn all_messages_are_validated_before_the_first_is_written<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let (first, later) = (message("orders", "a"), message("orders", "a"));
    let impossible = message("orders", "a").with_schema_version(0);

    let mut tx = store.begin().await.expect("a transaction begins");
    let refused = store.append(&mut tx, &[first.into(), impossible.into()]).await;
    assert!(matches!(refused, Err(AppendError::Message(_))), "schema version 0 is refused, got {refused:?}");
    store.append(&mut tx, &[later.clone().into()]).await.expect("the transaction goes on");
    store.commit(tx).await.into_result().expect("the transaction commits");
    assert_eq!(stored_ids(&relay.read().await), [later.id], "nothing of the refused call was written");
}

/// An empty list is no error and changes nothing.
pub async fn appending_nothing_is_allowed<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    try_write(&*store, &[]).await.expect("an empty transaction commits");
    assert!(relay.fetch().await.is_empty());
}

/// Several thousand messages of many keys are appended in one call: more than one statement's
/// parameters, more than a table of locks.
pub async fn a_batch_of_thousands_is_written_whole_and_in_order<H: StoreHarness>(harness: &H) {
    const MESSAGES: usize = 5_000;
    const KEYS: usize = 701;
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let batch: Vec<Message> =
        (0..MESSAGES).map(|at| message("bulk", &format!("key-{}", at % KEYS))).collect();
    write(&*store, batch.iter().cloned()).await;

    let read = super::support::in_key_order(relay.read().await);
    assert_eq!(read.len(), MESSAGES);
    for key in [0, 1, KEYS / 2, KEYS - 1] {
        let key = message("bulk", &format!("key-{key}")).key_id();
        let written: Vec<_> = batch.iter().filter(|message| message.key_id() == key).collect();
        let kept =
            read.iter().filter(|stored| stored.message.key_id() == key).map(|stored| stored.message.id);
        assert_eq!(kept.collect::<Vec<_>>(), ids(written), "the order of {key} is the order of the batch");
    }
}

/// A message on two routes is two rows, each settled on its own.
pub async fn a_message_on_two_routes_is_two_rows<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let default = Relay::start(&store).await;
    let audit = Relay::on(&store, route("audit"), LONG).await;
    let both = message("orders", "a");
    write(&*store, [Outgoing::from(both.clone()), Outgoing::from(both.clone()).by(route("audit"))]).await;

    let (by_default, by_audit) = (default.read().await, audit.read().await);
    assert_eq!((stored_ids(&by_default), stored_ids(&by_audit)), (vec![both.id], vec![both.id]));
    default.settle(&by_default).await;
    assert!(default.fetch().await.is_empty());
    assert_eq!(stored_ids(&audit.read().await), [both.id], "the other route's row is still there");
}

/// A message that is due later is not fetched now.
pub async fn a_scheduled_message_is_not_fetched_before_it_is_due<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let later = database_now(&store).await.plus(Duration::from_secs(3_600));
    let (scheduled, direct) = (message("orders", "a"), message("orders", "a"));
    write(&*store, [Outgoing::from(scheduled).due_at(later), Outgoing::from(direct.clone())]).await;
    assert_eq!(
        stored_ids(&relay.read().await),
        [direct.id],
        "only what has no due time joins its key at once"
    );
}

/// The append time is read from the database's clock, by which a heartbeat tells the time too: so
/// a relay knows how long a message has waited, whatever its own machine's clock says.
pub async fn the_time_of_appending_is_kept<H: StoreHarness>(harness: &H) {
    let store = prepared(harness).await;
    let relay = Relay::start(&store).await;
    let before = database_now(&store).await;
    harness.advance(Duration::from_millis(20)).await;
    // The message describes an event of long ago; that is not its append time.
    write(
        &*store,
        messages("orders", "a", 1).into_iter().map(|old| old.with_occurred_at(Timestamp::from_micros(1))),
    )
    .await;
    harness.advance(Duration::from_millis(20)).await;
    let after = database_now(&store).await;
    let appended_at = relay.read().await[0].appended_at;
    assert!(before < appended_at && appended_at < after, "{before} < {appended_at} < {after}");
}
