//! The database fails in the middle of a commit: no message is lost, and no effect happens twice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::{Message, MessageId};
use outbox_engine::{HandlerContext, HandlerError, HandlerFailure, InboxBuilder};

use super::InboxHarness;
use super::harness::{Effect, Effects, Faulty};
use super::world::{World, direct_world, in_each_mode, start, well};
use crate::{ChaosStore, CommitFault, StoreCall, StoreFault};

/// Sends messages of these keys until every injected fault has happened and all messages are done.
/// An injected fault that never happens proves nothing.
async fn spend<H: InboxHarness>(world: &World<H>, call: StoreCall, keys: &[&str], sent: &mut Vec<Message>) {
    until_spent(world, call, keys, sent, || true).await;
}

/// Like [`spend`], until this condition holds too.
async fn until_spent<H: InboxHarness>(
    world: &World<H>,
    call: StoreCall,
    keys: &[&str],
    sent: &mut Vec<Message>,
    holds: impl Fn() -> bool,
) {
    for _ in 0..20 {
        sent.extend(world.send_in_turn(keys, 2));
        world.done().await;
        if world.faulty.unspent(call) == 0 && holds() {
            return world.faulty.calm();
        }
    }
    panic!(
        "{:?}: {} faults of {call:?} were never met, or not all of them injected",
        world.way,
        world.faulty.unspent(call)
    );
}

/// Commits to lose behind a handler: only those record ids as handled. Only the handler knows which
/// commit is next.
#[derive(Clone)]
struct Losses {
    fault: CommitFault,
    /// Number of faults still to inject. Locked during an injection: several handlers run at once,
    /// and a new fault replaces one that has not happened.
    left: Arc<Mutex<u32>>,
}

impl Losses {
    fn of(fault: CommitFault, times: u32) -> Self {
        Self { fault, left: Arc::new(Mutex::new(times)) }
    }

    fn left(&self) -> MutexGuard<'_, u32> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the next commit fail, if a fault is left and the last one has happened.
    fn lose_next<S: ?Sized>(&self, store: &ChaosStore<S>) {
        let mut left = self.left();
        if *left > 0 && store.unspent(StoreCall::Commit) == 0 {
            *left -= 1;
            store.inject_commit(self.fault, 1);
        }
    }

    /// Builds an inbox whose handler has its effect, and whose commits behind it fail the given
    /// number of times.
    fn inbox<H: InboxHarness>(&self, world: &World<H>) -> InboxBuilder<Faulty<H>> {
        let (losses, faulty) = (self.clone(), Arc::clone(&world.faulty));
        world.inbox_that(move |_, _| {
            losses.lose_next(&faulty);
            well()
        })
    }

    /// Sends messages until every fault has happened and all messages are done.
    async fn happen<H: InboxHarness>(&self, world: &World<H>, sent: &mut Vec<Message>) {
        let all = || *self.left() == 0;
        until_spent(world, StoreCall::Commit, &["a", "b"], sent, all).await;
    }
}

/// The result of a commit is lost. The inbox asks the store for the id, or tries the messages again
/// one by one.
pub async fn a_commit_whose_result_is_unknown_is_found_out<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let mut sent = Vec::new();
        for fault in [CommitFault::UnknownCommitted, CommitFault::Unknown] {
            let asked = world.faulty.calls(StoreCall::IsHandled);
            let losses = Losses::of(fault, 3);
            let inbox = start(losses.inbox(&world)).await;
            losses.happen(&world, &mut sent).await;
            world.assert_once_and_in_order(&sent).await;
            assert_eq!(inbox.stats().failed, 0, "{fault:?}: it is no failure of the message");
            // The inbox does not ask for several messages: it tries them again, and those that were
            // committed are duplicates then.
            let asks = world.way.batch > 1 || world.faulty.calls(StoreCall::IsHandled) > asked;
            assert!(asks, "{:?}, {fault:?}: it asks", world.way);
            world.stop(inbox).await;
        }
        let counts = world.faulty.counts();
        assert_eq!((counts.before, counts.after), (3, 3));
        assert!(world.dead().await.is_empty());
    })
    .await;
}

/// The database completes a commit after its client has given it up: while the inbox asks for the
/// ids, or while it tries the messages again.
pub async fn a_commit_that_happens_after_it_was_given_up_has_its_effect_once<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let mut sent = Vec::new();
        for later in [0, 20, 300] {
            let losses = Losses::of(CommitFault::UnknownCommitsLater(Duration::from_millis(later)), 2);
            let inbox = start(losses.inbox(&world)).await;
            losses.happen(&world, &mut sent).await;
            world.assert_once_and_in_order(&sent).await;
            world.stop(inbox).await;
        }
        assert_eq!(world.faulty.counts().late, 6);
        assert!(world.dead().await.is_empty(), "it burns no attempts");
    })
    .await;
}

/// The result is unknown and the store does not answer either. Then every message is redelivered,
/// and is a duplicate or not.
pub async fn when_it_can_not_be_found_out_the_message_comes_again<H: InboxHarness>(harness: &H) {
    in_each_mode(harness, async |world: World<H>| {
        let mut sent = Vec::new();
        for fault in [CommitFault::UnknownCommitted, CommitFault::Unknown] {
            let losses = Losses::of(fault, 1);
            world.faulty.inject(StoreCall::IsHandled, StoreFault::Before, 3);
            let inbox = start(losses.inbox(&world)).await;
            // In stored mode the lost commit may have been the receiver's own; then it is tried
            // again.
            let asked = || {
                let asked = world.way.batch > 1 || world.faulty.unspent(StoreCall::IsHandled) < 3;
                if !asked {
                    *losses.left() = 1;
                }
                asked
            };
            until_spent(&world, StoreCall::Commit, &["a"], &mut sent, asked).await;
            world.assert_once_and_in_order(&sent).await;
            world.stop(inbox).await;
        }
    })
    .await;
}

/// Each call of the inbox fails sometimes, before its effect or after it.
pub async fn a_store_that_comes_and_goes_loses_nothing_and_repeats_nothing<H: InboxHarness>(harness: &H) {
    let calls =
        [StoreCall::Begin, StoreCall::Deduplicate, StoreCall::Append, StoreCall::Commit, StoreCall::Rollback];
    in_each_mode(harness, async |world: World<H>| {
        let inbox = start(emitting(&world)).await;
        let mut sent = Vec::new();
        for call in calls {
            for fault in [StoreFault::Before, StoreFault::After] {
                world.faulty.inject(call, fault, 2);
                let stale = sent.last().cloned();
                spend(&world, call, &["a", "bad"], &mut sent).await;
                stale.into_iter().for_each(|stale| world.feed.send(stale));
            }
        }
        world.done().await;
        world.assert_once_and_in_order(&sent).await;
        assert!(world.dead().await.is_empty(), "it burns no attempts");
        world.stop(inbox).await;
    })
    .await;
}

/// Builds an inbox that needs every call of the store: its handler emits a message for each that it
/// handles, and fails at first for one key.
fn emitting<H: InboxHarness>(world: &World<H>) -> InboxBuilder<Faulty<H>> {
    let effects = world.effects.clone();
    let inbox = world.bare().route_for("stock", format!("of-{}", world.consumer));
    inbox.on_any(async move |message: Message, context: &mut HandlerContext<'_, Faulty<H>>| {
        let key = message.order_key().as_str().to_owned();
        let published = Message::new("stock", "stock.reserved")?.with_key(&key)?;
        context.publish_message(published.with_id(MessageId::new()))?;
        let fails = key.ends_with("/bad") && context.attempt() == 1;
        effects.write(context.tx(), Effect { key, message: message.id }).await?;
        if fails {
            return Err(HandlerError::from(HandlerFailure::failed("suite", "not yet")));
        }
        Ok(())
    })
}

/// A call that never returns times out, and its resources are freed with it.
pub async fn a_store_that_hangs_holds_nothing_up_for_good<H: InboxHarness>(harness: &H) {
    let world = direct_world(harness).await;
    let inbox = start(world.inbox().store_timeout(Duration::from_secs(2))).await;
    let mut sent = Vec::new();
    for call in [StoreCall::Deduplicate, StoreCall::Commit] {
        for fault in [StoreFault::HangBefore, StoreFault::HangAfter] {
            world.faulty.inject(call, fault, 1);
            spend(&world, call, &["a", "b"], &mut sent).await;
        }
    }
    world.assert_once_and_in_order(&sent).await;
    world.stop(inbox).await;
}
