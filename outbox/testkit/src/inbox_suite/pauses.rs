//! Pauses of a consumer, or of one of its topics, by an operator: its messages wait, nothing is
//! lost, and the rest flows.

use outbox_contract::{AdminExt, Message, Topic};
use outbox_engine::InboxHandle;

use super::InboxHarness;
use super::world::{World, in_each_mode, start};

/// The other topic of a consumer.
const OTHER: &str = "returns";

/// Waits until an inbox reports a pause. It learns of pauses at a heartbeat.
async fn heard<H: InboxHarness>(world: &World<H>, inbox: &InboxHandle) {
    let says = || inbox.health().reasons.iter().any(|reason| reason.text.contains("paused"));
    world.until("paused", async || says()).await;
}

/// A message of a key and of the other topic.
fn other<H: InboxHarness>(world: &World<H>, key: &str) -> Message {
    let mut message = world.message(key);
    message.topic = Topic::new(OTHER).expect("a valid topic");
    world.feed.send(message.clone());
    message
}

/// While one consumer is paused another one handles as much; resumed, it continues where it was.
pub async fn a_consumer_that_is_paused_handles_nothing_until_it_is_resumed<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let another = world.another_consumer();
        let (inbox, flows) = (start(world.inbox()).await, start(another.inbox()).await);
        let mut sent = world.send_in_turn(&["a", "b"], 2);
        world.done().await;
        world.store.pause(&world.route(), None).await.expect("a route can be paused");
        heard(&world, &inbox).await;
        let paused = world.send_in_turn(&["a", "b"], 3);
        let handled = another.send_in_turn(&["a", "b"], 3);
        another.done().await;
        another.assert_once_and_in_order(&handled).await;
        world.assert_once_and_in_order(&sent).await;
        world.store.resume(&world.route(), None).await.expect("a pause can be ended");
        sent.extend(paused);
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        assert!(world.dead().await.is_empty());
        world.stop(inbox).await;
        another.stop(flows).await;
    })
    .await;
}

/// One topic of a consumer is paused: its keys wait, those of the other topic do not.
pub async fn a_topic_that_is_paused_waits_and_the_others_flow<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let inbox = start(world.inbox().topic(OTHER)).await;
        let mut sent = world.send_in_turn(&["a", "b"], 2);
        world.done().await;
        let paused = &sent[0].topic.clone();
        world.store.pause(&world.route(), Some(paused)).await.expect("a topic can be paused");
        heard(&world, &inbox).await;
        let waits = world.send_in_turn(&["a", "b"], 3);
        let flows: Vec<Message> = (0..6).map(|number| other(&world, ["r", "s"][number % 2])).collect();
        world.until("the other topic handled", async || world.has_handled(&flows[5]).await).await;
        world.until("the other topic handled", async || world.has_handled(&flows[4]).await).await;
        sent.extend(flows);
        world.assert_once_and_in_order(&sent).await;
        world.store.resume(&world.route(), Some(paused)).await.expect("a pause can be ended");
        sent.extend(waits);
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        assert!(world.dead().await.is_empty());
        world.stop(inbox).await;
    })
    .await;
}
