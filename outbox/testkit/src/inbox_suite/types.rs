//! Messages without a handler, undecodable records, and the attributes of events.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use std::time::Duration;

use outbox_contract::admin::Filter;
use outbox_contract::backend::Undecodable;
use outbox_contract::{AdminExt, Bytes};
use outbox_engine::{HandlerFailure, HandlerOptions, InboxBuilder, UnknownType};

use super::InboxHarness;
use super::harness::Faulty;
use super::world::{World, direct_world, in_each_mode, start, well, well_unless};

/// Builds an inbox that knows one type, which is not that of most messages.
fn choosy<H: InboxHarness>(world: &World<H>) -> InboxBuilder<Faulty<H>> {
    let handler = world.handler(|_, _| well());
    world.bare().on_message("orders", "order.shipped", handler)
}

/// Sends a message of an unknown type and one of the known type behind it, of the same key.
fn send<H: InboxHarness>(world: &World<H>) -> [outbox_contract::Message; 2] {
    let (unknown, mut known) = (world.message("a"), world.message("a"));
    known.event_type = "order.shipped".into();
    for message in [&unknown, &known] {
        world.feed.send(message.clone());
    }
    [unknown, known]
}

/// A message of an unknown type can be made a dead letter at once: it is not lost, and its key
/// continues.
pub async fn a_message_of_an_unknown_type_can_be_a_dead_letter<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let inbox = start(choosy(&world).unknown_types(UnknownType::DeadLetter)).await;
        let [unknown, known] = send(&world);
        world.until("a dead letter", async || world.dead_ids().await == [unknown.id]).await;
        world.done().await;
        world.assert_once_and_in_order(&[known]).await;
        world.stop(inbox).await;
    })
    .await;
}

/// A message that an older program made a dead letter is not lost, but it has lost its place: when
/// it is requeued for a newer program, its key has gone on without it.
pub async fn a_message_that_an_older_program_gave_up_comes_behind_its_followers<H: InboxHarness>(
    harness: &H,
) {
    in_each_mode(harness, async |world: World<H>| {
        let older = start(choosy(&world).unknown_types(UnknownType::DeadLetter)).await;
        let [unknown, known] = send(&world);
        world.until("a dead letter", async || world.dead_ids().await == [unknown.id]).await;
        world.done().await;
        let newer = start(world.inbox()).await;
        world.stop(older).await;
        let later = world.message("a");
        world.feed.send(later.clone());
        world.done().await;
        let filter = Filter { route: Some(world.route()), ..Filter::all_routes() };
        assert_eq!(world.store.requeue(&filter).await.expect("the store answers"), 1);
        world.done().await;
        world.assert_once_and_in_order(&[known, later, unknown]).await;
        assert!(world.dead().await.is_empty());
        world.stop(newer).await;
    })
    .await;
}

/// No message waits for a newer program beyond the configured time, by the clocks of both: here
/// none.
pub async fn a_message_that_no_program_knows_is_a_dead_letter_in_the_end<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let inbox = start(choosy(&world).wait_for_upgrade(Duration::ZERO)).await;
        let [unknown, known] = send(&world);
        world.until("a dead letter", async || world.dead_ids().await == [unknown.id]).await;
        world.done().await;
        world.assert_once_and_in_order(&[known]).await;
        world.stop(inbox).await;
    })
    .await;
}

/// A consumer that wants a part of a topic ignores the rest.
pub async fn a_message_of_an_unknown_type_can_be_ignored<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let inbox = start(choosy(&world).unknown_types(UnknownType::Ignore)).await;
        let [_, known] = send(&world);
        world.done().await;
        world.assert_once_and_in_order(&[known]).await;
        assert!(world.dead().await.is_empty());
        world.stop(inbox).await;
    })
    .await;
}

/// By default a message of an unknown type waits with its key for a program that knows it, and no
/// attempt is counted: as during a rolling deploy, when an old and a new program share the keys.
pub async fn a_message_of_an_unknown_type_waits_for_a_program_that_knows_it<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let inbox = start(choosy(&world)).await;
        let sent = send(&world);
        world.acknowledged().await;
        world.until("failing", async || world.backlog().await.retrying_keys == 1).await;
        world.until("tried again", async || inbox.stats().postponed >= 2).await;
        world.assert_once_and_in_order(&[]).await;
        let waiting = world.failing_keys().await;
        assert!(waiting.iter().all(|key| key.attempts == 0), "{waiting:?}");
        let knows_all = start(world.inbox()).await;
        world.stop(inbox).await;
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        assert!(world.dead().await.is_empty());
        world.stop(knows_all).await;
    })
    .await;
}

/// A member whose program is too old for what waits leaves it to a newer one, though it lives on.
pub async fn a_message_of_an_unknown_type_goes_to_a_member_that_knows_it<H: InboxHarness>(harness: &H) {
    let world = direct_world(harness).await;
    // Leases last as long as a handler and the store may take.
    let seconds = Duration::from_secs;
    let options = HandlerOptions::default().timeout(seconds(2));
    let older = world.bare().store_timeout(seconds(3));
    let older = older.on_message_with("orders", "order.shipped", options, world.handler(|_, _| well()));
    let newer = world.bare().store_timeout(seconds(3));
    let newer = newer.on_message_with("orders", "order.shipped", options, world.handler(|_, _| well()));
    let newer = newer.on_message_with("orders", "order.placed", options, world.handler(|_, _| well()));
    // Each of the two members has the buckets of some of these keys.
    let mut sent = Vec::new();
    for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let (unknown, mut known) = (world.message(key), world.message(key));
        known.event_type = "order.shipped".into();
        sent.extend([unknown, known]);
    }
    let halves: BTreeSet<bool> = sent.iter().map(|message| message.key_id().bucket().0 < 128).collect();
    assert_eq!(halves.len(), 2, "choose other keys");

    let older = start(older).await;
    sent.iter().for_each(|message| world.feed.send(message.clone()));
    world.acknowledged().await;
    world.until("failing", async || world.backlog().await.retrying_keys == 8).await;
    let newer = start(newer).await;
    world.done().await;
    world.assert_once_and_in_order(&sent).await;
    assert!(world.dead().await.is_empty());
    for inbox in [older, newer] {
        world.stop(inbox).await;
    }
}

/// An undecodable record from the broker is a dead letter with its bytes, and delays no other
/// message.
pub async fn what_is_no_message_is_a_dead_letter<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let mut sent = world.send("a", 2);
        let junk = Undecodable::new("no id", Bytes::from_static(b"\xff\x00junk"), Vec::new());
        world.feed.send_junk(sent[0].topic.clone(), junk);
        sent.extend(world.send("a", 2));
        let inbox = start(world.inbox()).await;
        world.until("a dead letter", async || !world.dead().await.is_empty()).await;
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        let dead = world.dead().await;
        assert_eq!((dead.len(), &dead[0].stored.message.payload[..]), (1, &b"\xff\x00junk"[..]));
        world.stop(inbox).await;
    })
    .await;
}

/// One record is one dead letter, however often it is delivered. Another record of the same content
/// is another dead letter.
pub async fn a_record_that_is_no_message_is_one_dead_letter<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let mut sent = world.send("a", 2);
        for place in ["orders/0@7", "orders/0@7", "orders/0@8", "orders/0@7"] {
            let junk = Undecodable::new("no id", Bytes::from_static(b"\xff\x00junk"), Vec::new());
            let key = sent[0].order_key().as_str().to_owned();
            world.feed.send_junk(sent[0].topic.clone(), junk.with_key(key).at(place));
        }
        sent.extend(world.send("a", 2));
        let inbox = start(world.inbox()).await;
        world.until("two dead letters", async || world.dead().await.len() == 2).await;
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        let dead = world.dead().await;
        assert_eq!(dead.len(), 2, "{dead:#?}");
        assert!(dead.iter().all(|dead| dead.stored.message.key == sent[0].key), "{dead:#?}");
        world.stop(inbox).await;
    })
    .await;
}

/// The attributes of an event reach its handler, from the broker and, after failures, from the
/// store.
pub async fn the_attributes_of_an_event_reach_its_handler<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let described = world
            .message("a")
            .with_subject("line-1")
            .and_then(|message| message.with_data_schema("/order/1"))
            .and_then(|message| message.with_extension("tenantid", "acme"))
            .expect("the attributes of the suite are valid");
        let sent = [described, world.message("b").into_tombstone()];
        for (message, position) in sent.iter().zip(1..) {
            world.feed.send_from("/shop", position, message.clone());
        }
        let (expected, calls) = (sent.clone(), AtomicU32::new(0));
        let inbox = world.inbox_that(move |message, _| {
            let same = |sent: &outbox_contract::Message| {
                let of = |message: &outbox_contract::Message| {
                    let extensions = message.extensions().map(|(name, value)| format!("{name}={value}"));
                    let described =
                        [message.subject(), message.data_schema()].map(|text| text.map(str::to_owned));
                    (described, extensions.collect::<Vec<_>>(), message.is_tombstone())
                };
                message.event_id() == sent.id.to_string() && of(message) == of(sent)
            };
            if message.source() != Some("/shop") || !expected.iter().any(same) {
                return Box::pin(async { Err(HandlerFailure::rejected("suite", "another event").into()) });
            }
            // More than the attempts in memory.
            well_unless(calls.fetch_add(1, Ordering::Relaxed) < 5)
        });
        let inbox = start(inbox).await;
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        assert!(world.dead().await.is_empty(), "{:?}", world.dead().await);
        world.stop(inbox).await;
    })
    .await;
}

/// A mapper makes messages of records that are none. Each is handled once, however often it is
/// delivered; what the mapper leaves out is forgotten, and what it refuses is a dead letter.
pub async fn a_record_that_is_mapped_is_handled_once<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let like = world.message("a");
        let key = like.key.clone().expect("the messages of the suite have keys");
        let record = |place: &str, payload: &'static str| {
            Undecodable::new("no id", Bytes::from_static(payload.as_bytes()), Vec::new())
                .with_key(key.as_str())
                .at(place)
        };
        let records = [
            record("1", "first"),
            record("2", "leave out"),
            record("1", "first"),
            record("3", "refuse"),
            record("4", "second"),
        ];
        for record in &records {
            world.feed.send_junk(like.topic.clone(), record.clone());
        }
        let inbox = world.inbox().map_records(|record| match &record.payload()[..] {
            b"leave out" => Ok(None),
            b"refuse" => Err("it is refused".into()),
            _ => Ok(Some(record.message("order.placed"))),
        });
        let inbox = start(inbox).await;
        let refused = records[3].identity(&like.topic);
        world.until("a dead letter", async || world.dead_ids().await == [refused]).await;
        world.done().await;
        let sent = [0, 4].map(|at| like.clone().with_id(records[at].identity(&like.topic)));
        world.assert_once_and_in_order(&sent).await;
        let reason = &world.dead().await[0]
            .last_failure
            .as_ref()
            .map(|failure| failure.message.clone())
            .unwrap_or_default();
        assert!(reason.contains("it is refused") && reason.contains("no id"), "{reason}");
        world.stop(inbox).await;
    })
    .await;
}
