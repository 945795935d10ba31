//! Operators and a consumer's failing keys and dead letters: the outbox's admin operations, on the
//! consumer's route.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox_contract::admin::Filter;
use outbox_contract::{AdminExt, Exhausted, Message, RetryPolicy};
use outbox_engine::InboxHandle;

use super::InboxHarness;
use super::world::{World, in_each_mode, start, well_unless};
use crate::store_suite::{Capability, has};

/// A consumer with a key that is held because its handler fails, until `fails` is false.
struct Held<H: InboxHarness> {
    world: World<H>,
    fails: Arc<AtomicBool>,
    inbox: InboxHandle,
    /// Messages of the held key.
    sent: Vec<Message>,
}

async fn held<H: InboxHarness>(world: World<H>) -> Held<H> {
    let fails = Arc::new(AtomicBool::new(true));
    let broken = Arc::clone(&fails);
    let inbox = world.inbox_that(move |message, _| {
        well_unless(World::<H>::is_of(message, "held") && broken.load(Ordering::SeqCst))
    });
    let retry = RetryPolicy { exhausted: Exhausted::Hold, ..world.retry(2) };
    let inbox = start(inbox.retry(retry)).await;
    let sent = world.send("held", 4);
    world.acknowledged().await;
    world.until("held", async || world.backlog().await.held_keys == 1).await;
    // Messages in flight when it was held are parked behind it.
    world.until("all parked", async || world.backlog().await.parked == 4).await;
    Held { world, fails, inbox, sent }
}

impl<H: InboxHarness> Held<H> {
    /// Sends messages of other keys, and waits until they are handled.
    async fn others_flow(&self) {
        let others = self.world.send_in_turn(&["a", "b"], 3);
        self.world
            .until("the others handled", async || {
                let handled = self.world.handled().await;
                others.iter().all(|other| handled.values().any(|ids| ids.contains(&other.id)))
            })
            .await;
    }

    /// Waits until all is done, and checks the effects of the held key.
    async fn finish(self, handled: &[Message]) {
        self.world.done().await;
        let of_key = self.world.message("held").order_key().as_str().to_owned();
        let found = self.world.handled().await.remove(&of_key).unwrap_or_default();
        let expected: Vec<_> = handled.iter().map(|message| message.id).collect();
        assert_eq!(found, expected, "the effects of the key that was held");
        self.world.stop(self.inbox).await;
    }
}

/// A held key waits without a gap while others flow, and continues in order when it is released.
pub async fn a_held_key_waits_until_it_is_released<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let held = held(world).await;
        held.fails.store(false, Ordering::SeqCst);
        let mut sent = held.sent.clone();
        sent.extend(held.world.send("held", 2));
        held.others_flow().await;
        held.world.acknowledged().await;
        assert!(!held.world.has_handled(&sent[0]).await, "it was not released");
        let (route, key) = (held.world.route(), held.world.key_id("held"));
        held.world.store.release(&route, &key).await.expect("it is held");
        held.finish(&sent).await;
    })
    .await;
}

/// The first message of a held key is skipped: it is a dead letter, and the next one is tried.
pub async fn a_skipped_message_makes_way_for_its_followers<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let held = held(world).await;
        held.fails.store(false, Ordering::SeqCst);
        let (route, key) = (held.world.route(), held.world.key_id("held"));
        let skipped = held.world.store.skip(&route, &key).await.expect("it is held");
        assert_eq!(skipped, Some(held.sent[0].id));
        // The result of the release does not matter: the key may continue.
        let _ = held.world.store.release(&route, &key).await;
        held.world.until("done", async || held.world.waiting().await == 0).await;
        assert_eq!(held.world.dead_ids().await, [held.sent[0].id]);
        let handled = held.sent[1..].to_vec();
        held.finish(&handled).await;
    })
    .await;
}

/// A held key is discarded: all its waiting messages become dead letters, and later ones are
/// handled.
pub async fn a_discarded_key_goes_on_with_what_comes_next<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let held = held(world).await;
        held.fails.store(false, Ordering::SeqCst);
        let (route, key) = (held.world.route(), held.world.key_id("held"));
        assert_eq!(held.world.store.discard(&route, &key).await.expect("it is held"), 4);
        let later = held.world.send("held", 2);
        held.others_flow().await;
        let mut dead = held.world.dead_ids().await;
        let mut discarded: Vec<_> = held.sent.iter().map(|message| message.id).collect();
        dead.sort_unstable();
        discarded.sort_unstable();
        assert_eq!(dead, discarded);
        held.finish(&later).await;
    })
    .await;
}

/// Dead letters that are requeued are handled, once, at the end of their key, in their old order.
pub async fn requeued_dead_letters_are_handled_in_their_old_order<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let fails = Arc::new(AtomicBool::new(true));
        let broken = Arc::clone(&fails);
        let inbox = world.inbox_that(move |_, _| well_unless(broken.load(Ordering::SeqCst)));
        let inbox = start(inbox.retry(world.retry(1))).await;
        let dead = world.send("a", 3);
        world.until("three dead letters", async || world.dead().await.len() == 3).await;
        world.done().await;
        fails.store(false, Ordering::SeqCst);
        let between = world.send("a", 2);
        world.done().await;
        let filter = Filter { route: Some(world.route()), ..Filter::all_routes() };
        assert_eq!(world.store.requeue(&filter).await.expect("the store answers"), 3);
        world.done().await;
        let handled: Vec<Message> = between.into_iter().chain(dead.clone()).collect();
        world.assert_once_and_in_order(&handled).await;
        // Once more from the broker: they are handled, whichever way they arrived.
        dead.iter().for_each(|message| world.feed.send(message.clone()));
        world.done().await;
        world.assert_once_and_in_order(&handled).await;
        assert!(world.dead().await.is_empty());
        world.stop(inbox).await;
    })
    .await;
}

/// An operator holds a key that has neither failed nor waiting messages, and later messages wait
/// without a gap.
pub async fn a_key_that_an_operator_holds_waits_though_nothing_of_it_failed<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let inbox = start(world.inbox()).await;
        let mut sent = world.send_in_turn(&["held", "a"], 2);
        world.done().await;
        let (route, key) = (world.route(), world.key_id("held"));
        for count in [3, 1] {
            world.store.hold(&route, &key).await.expect("a key can be held");
            let held = world.send("held", count);
            let others = world.send("a", 3);
            sent.extend(others.clone());
            world.acknowledged().await;
            world.until("parked", async || world.backlog().await.parked == count as u64).await;
            world.until("the others handled", async || world.has_handled(&others[2]).await).await;
            world.assert_once_and_in_order(&sent).await;
            assert_eq!(world.backlog().await.held_keys, 1, "{:?}", world.way);
            world.store.release(&route, &key).await.expect("it is held");
            sent.extend(held);
            // In direct mode these arrive while the others wait.
            sent.extend(world.send("held", 2));
            world.done().await;
        }
        world.assert_once_and_in_order(&sent).await;
        assert!(world.dead().await.is_empty());
        world.stop(inbox).await;
    })
    .await;
}

/// Two messages of a held key are skipped, one after the other, and the rest is handled; later both
/// are requeued.
pub async fn what_was_skipped_comes_back_in_its_old_order<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let held = held(world).await;
        let (world, route, key) = (&held.world, held.world.route(), held.world.key_id("held"));
        for skipped in &held.sent[..2] {
            // The key tries the next one by itself, which fails as well.
            world.until("held", async || world.backlog().await.held_keys == 1).await;
            let said = world.store.skip(&route, &key).await.expect("it is held");
            assert_eq!(said, Some(skipped.id));
        }
        world.until("held", async || world.backlog().await.held_keys == 1).await;
        held.fails.store(false, Ordering::SeqCst);
        world.store.release(&route, &key).await.expect("it is held");
        world.done().await;
        assert_eq!(world.dead_ids().await, [held.sent[0].id, held.sent[1].id]);
        let filter = Filter { route: Some(route), ..Filter::all_routes() };
        assert_eq!(world.store.requeue(&filter).await.expect("the store answers"), 2);
        let mut handled = held.sent[2..].to_vec();
        handled.extend_from_slice(&held.sent[..2]);
        world.done().await;
        handled.extend(world.send("held", 2));
        held.finish(&handled).await;
    })
    .await;
}

/// Messages that waited in the store were handled, and an operator replays them: the consumer
/// recognizes them as duplicates.
pub async fn what_is_replayed_has_no_second_effect<H: InboxHarness>(harness: &H) {
    if !has::<H>(Capability::History) {
        return;
    }
    in_each_mode(harness, async |world: World<H>| {
        let fails = Arc::new(AtomicBool::new(true));
        let broken = Arc::clone(&fails);
        let inbox = world.inbox_that(move |_, _| well_unless(broken.load(Ordering::SeqCst)));
        let inbox = start(inbox).await;
        let mut sent = world.send("a", 3);
        world.acknowledged().await;
        fails.store(false, Ordering::SeqCst);
        world.done().await;
        let filter = Filter { route: Some(world.route()), ..Filter::all_routes() };
        let kept = async || world.store.history(&filter).await.expect("the store answers").len();
        world.until("all in the history", async || kept().await == 3).await;
        assert_eq!(world.store.replay(&filter).await.expect("the store answers"), 3);
        sent.extend(world.send("a", 2));
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        assert!(world.dead().await.is_empty());
        world.stop(inbox).await;
    })
    .await;
}
