//! Effects happen once, in the order of their keys, however often messages are delivered (promise
//! P4).

use std::collections::BTreeSet;

use super::InboxHarness;
use super::world::{World, direct_world, in_each_mode, start};

const KEYS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Many messages of several keys arrive, each once.
pub async fn every_message_is_handled_once_in_the_order_of_its_key<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let mut sent = world.send_in_turn(&KEYS, 8);
        let inbox = start(world.inbox()).await;
        sent.extend(world.send_in_turn(&KEYS, 4));
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        world.stop(inbox).await;
    })
    .await;
}

/// A message without a key has no order, and is handled once.
pub async fn messages_without_a_key_are_handled_once<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let of_a_key = world.send("a", 2);
        let mut without = of_a_key[0].clone().with_id(outbox_contract::MessageId::new());
        without.key = None;
        for _ in 0..2 {
            world.feed.send(without.clone());
        }
        let inbox = start(world.inbox()).await;
        world.done().await;
        world.assert_once_and_in_order(&of_a_key).await;
        let effects = super::harness::Effects::read(&world.effects).await.expect("effects can be read");
        assert_eq!(effects.iter().filter(|effect| effect.message == without.id).count(), 1);
        world.stop(inbox).await;
    })
    .await;
}

/// CloudEvents identifies events by `source` and `id`: the same id of two sources is two messages,
/// each handled once. The handler sees the id as it was written.
pub async fn the_same_id_of_two_sources_is_two_messages<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let (message, rest) = (world.message("a"), world.send("a", 2));
        for _ in 0..3 {
            for source in ["/outbox", "/one", "/other"] {
                world.feed.send_from(source, 7, message.clone());
            }
        }
        let inbox = start(world.inbox()).await;
        world.done().await;
        let effects = super::harness::Effects::read(&world.effects).await.expect("effects can be read");
        let count = |id| effects.iter().filter(|effect| effect.message == id).count();
        assert_eq!(count(message.id), 3, "{:?}: once for each source", world.way);
        assert!(rest.iter().all(|message| count(message.id) == 1));
        world.stop(inbox).await;
    })
    .await;
}

/// Each message arrives two times in a row, and all of them once more.
pub async fn a_repeat_has_no_second_effect<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let mut sent = Vec::new();
        for _ in 0..6 {
            for key in KEYS {
                let message = world.message(key);
                world.feed.send(message.clone());
                world.feed.send(message.clone());
                sent.push(message);
            }
        }
        sent.iter().for_each(|message| world.feed.send(message.clone()));
        let inbox = start(world.inbox()).await;
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        world.stop(inbox).await;
    })
    .await;
}

/// Older messages of a key are redelivered behind newer ones: some while those are handled, some
/// long after.
pub async fn an_old_message_behind_newer_ones_has_no_second_effect<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let mut sent = world.send_in_turn(&KEYS, 4);
        sent.iter().rev().step_by(2).for_each(|stale| world.feed.send(stale.clone()));
        let inbox = start(world.inbox()).await;
        world.done().await;
        sent.iter().rev().for_each(|stale| world.feed.send(stale.clone()));
        sent.extend(world.send_in_turn(&KEYS, 2));
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        world.stop(inbox).await;
    })
    .await;
}

/// Keys arrive over three units, each in its own order and unordered with others, and the units
/// change owners repeatedly.
pub async fn keys_keep_their_order_however_they_are_mixed_and_handed_over<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let mut random = fastrand::Rng::with_seed(7);
        let inboxes = [start(world.inbox()).await, start(world.inbox()).await];
        let mut sent = Vec::new();
        for number in 0..60 {
            let key = random.usize(..KEYS.len());
            let unit = u32::try_from(key).unwrap_or_default() % 3;
            let message = world.message(KEYS[key]);
            world.feed.send_to(unit, message.clone());
            sent.push((unit, message));
            if number % 7 == 0 {
                let (unit, stale) = &sent[random.usize(..sent.len())];
                world.feed.send_to(*unit, stale.clone());
            }
            if number % 20 == 0 {
                world.feed.rebalance();
                // The earlier messages are in flight when the next units change owners.
                let first = &sent[0].1;
                world.until("the first one handled", async || world.has_handled(first).await).await;
            }
        }
        world.done().await;
        let sent: Vec<_> = sent.into_iter().map(|(_, message)| message).collect();
        world.assert_once_and_in_order(&sent).await;
        for inbox in inboxes {
            world.stop(inbox).await;
        }
    })
    .await;
}

/// A message handled by one consumer is new to another.
pub async fn each_consumer_handles_every_message_itself<H: InboxHarness>(harness: &H) {
    let world = direct_world(harness).await;
    let another = world.another_consumer();
    let sent = world.send("a", 3);
    sent.iter().for_each(|message| another.feed.send(message.clone()));
    let inboxes = [start(world.inbox()).await, start(another.inbox()).await];
    world.done().await;
    another.done().await;
    let ids: Vec<_> = sent.iter().flat_map(|message| [message.id; 2]).collect();
    let handled = world.handled().await.into_values().flatten();
    let (mut handled, mut ids): (Vec<_>, Vec<_>) = (handled.collect(), ids);
    handled.sort_unstable();
    ids.sort_unstable();
    assert_eq!(handled, ids, "each consumer has handled each message once");
    for inbox in inboxes {
        world.stop(inbox).await;
    }
}

/// At any time, an acknowledged message has its effect, or waits in the store.
pub async fn nothing_is_acknowledged_before_it_is_committed<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let sent = world.send_in_turn(&KEYS, 30);
        let inbox = start(world.inbox()).await;
        world
            .until("all acknowledged", async || {
                // In this order: a message acknowledged now waits then or is handled then, and a
                // waiting one may be handled later.
                let acknowledged: BTreeSet<_> = world.feed.acknowledged().into_iter().collect();
                let waiting = world.waiting().await;
                let handled: BTreeSet<_> = world.handled().await.into_values().flatten().collect();
                let neither = acknowledged.difference(&handled).count() as u64;
                assert!(neither <= waiting, "{neither} are acknowledged and nowhere, {waiting} wait");
                acknowledged.len() == sent.len()
            })
            .await;
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        world.stop(inbox).await;
    })
    .await;
}
