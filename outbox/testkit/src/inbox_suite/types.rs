//! Messages without a handler, and undecodable records.

use std::time::Duration;

use outbox_contract::Bytes;
use outbox_contract::backend::Undecodable;
use outbox_engine::{HandlerOptions, InboxBuilder, UnknownType};

use super::InboxHarness;
use super::harness::Faulty;
use super::world::{World, start, well, worlds};

/// Builds an inbox that knows one type, which is not that of most messages.
fn choosy<H: InboxHarness>(world: &World<H>) -> InboxBuilder<Faulty<H>> {
    let handler = world.handler(|_, _| well());
    world.bare().on_message("orders", "order.shipped", HandlerOptions::default(), handler)
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
    for world in worlds(harness).await {
        let inbox = start(choosy(&world).unknown_types(UnknownType::DeadLetter)).await;
        let [unknown, known] = send(&world);
        world.until("a dead letter", async || world.dead_ids().await == [unknown.id]).await;
        world.done().await;
        world.assert_once_and_in_order(&[known]).await;
        world.stop(inbox).await;
    }
}

/// No message waits for a newer program beyond the configured time, by the clocks of both: here none.
pub async fn a_message_that_no_program_knows_is_a_dead_letter_in_the_end<H: InboxHarness>(harness: &H) {
    for world in worlds(harness).await {
        let inbox = start(choosy(&world).wait_for_upgrade(Duration::ZERO)).await;
        let [unknown, known] = send(&world);
        world.until("a dead letter", async || world.dead_ids().await == [unknown.id]).await;
        world.done().await;
        world.assert_once_and_in_order(&[known]).await;
        world.stop(inbox).await;
    }
}

/// A consumer that wants a part of a topic ignores the rest.
pub async fn a_message_of_an_unknown_type_can_be_ignored<H: InboxHarness>(harness: &H) {
    for world in worlds(harness).await {
        let inbox = start(choosy(&world).unknown_types(UnknownType::Ignore)).await;
        let [_, known] = send(&world);
        world.done().await;
        world.assert_once_and_in_order(&[known]).await;
        assert!(world.dead().await.is_empty());
        world.stop(inbox).await;
    }
}

/// By default a message of an unknown type waits with its key for a program that knows it, and no
/// attempt is counted: as during a rolling deploy, when an old and a new program share the keys.
pub async fn a_message_of_an_unknown_type_waits_for_a_program_that_knows_it<H: InboxHarness>(harness: &H) {
    for world in worlds(harness).await {
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
    }
}

/// An undecodable record from the broker is a dead letter with its bytes, and delays no other
/// message.
pub async fn what_is_no_message_is_a_dead_letter<H: InboxHarness>(harness: &H) {
    for world in worlds(harness).await {
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
    }
}

/// One record is one dead letter, however often it is delivered. Another record of the same content
/// is another dead letter.
pub async fn a_record_that_is_no_message_is_one_dead_letter<H: InboxHarness>(harness: &H) {
    for world in worlds(harness).await {
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
    }
}
