//! Room: stored messages whose handler, or what it needs, is not to be had make room for others,
//! however many they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use outbox_contract::{Message, RetryPolicy, StoreError, StoreErrorKind};
use outbox_engine::{HandlerContext, HandlerError, HandlerFailure, HandlerOptions, InboxBuilder, Mode};

use crate::inbox::support::{S, Store, World, message, within};

/// More keys than an inbox takes into memory.
const MANY: usize = 300;

/// Obstacle that the handler of a key meets.
#[derive(Clone, Copy, Debug)]
enum Obstacle {
    /// Its session is lost, as if a second database were away.
    Interruption,
    /// It waits for a lock, and is ended.
    Conflict,
}

/// Builds an inbox whose handler meets the obstacle with each key that begins with `bad`, as long
/// as it lasts, and fails once with the key `failing`.
fn hindered(world: &World, obstacle: Obstacle, lasts: &Arc<AtomicBool>) -> InboxBuilder<Store> {
    let (ledger, lasts, fails) = (world.ledger.clone(), Arc::clone(lasts), AtomicBool::new(true));
    let fails = Arc::new(fails);
    let inbox =
        world.bare().on_any(async move |message: Message, context: &mut HandlerContext<'_, Store>| {
            ledger.write(context.tx(), &message);
            let key = message.order_key();
            if key.as_str() == "failing" && fails.swap(false, Ordering::SeqCst) {
                return Err(HandlerFailure::failed("tested", "not yet").into());
            }
            if !key.as_str().starts_with("bad") || !lasts.load(Ordering::SeqCst) {
                return Ok(());
            }
            Err(match obstacle {
                Obstacle::Interruption => HandlerError::from(context.tx().terminate()),
                Obstacle::Conflict => {
                    StoreError::new(StoreErrorKind::Conflict, "tested", "a deadlock").into()
                }
            })
        });
    inbox.mode(Mode::Stored).tries(1)
}

async fn holds_up_nobody(obstacle: Obstacle) {
    let world = World::concurrent(1);
    let lasts = Arc::new(AtomicBool::new(true));
    let retry = RetryPolicy { first_delay: S * 10, ..RetryPolicy::default() };
    let inbox = hindered(&world, obstacle, &lasts).retry(retry).start().await.unwrap();
    let mut sent = world.send("failing", 1);
    within(S * 5, || world.tables.snapshot().failing_keys == 1).await;
    sent.extend((0..MANY).flat_map(|key| world.send(&format!("bad-{key}"), 1)));
    sent.extend(world.send("good", 5));
    let took = within(S * 600, || world.ledger.of("good").len() == 5).await;
    // Each attempt of a conflict takes seconds, and there are many.
    let limit = if matches!(obstacle, Obstacle::Conflict) { S * 200 } else { S * 10 };
    assert!(took < limit, "{obstacle:?}: the other key waited for {took:?}");
    within(S * 60, || !world.ledger.of("failing").is_empty()).await;
    sent.extend(world.send("good", 5));
    within(S * 60, || world.ledger.of("good").len() == 10).await;
    assert_eq!(world.ledger.len(), 11, "{obstacle:?}: it lasts");
    lasts.store(false, Ordering::SeqCst);
    within(S * 120, || world.ledger.len() == sent.len() && world.stored() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!((world.tables.snapshot().dead, inbox.stats().resets), (0, 0), "{obstacle:?}");
}

#[tokio::test(start_paused = true)]
async fn many_keys_whose_handler_is_interrupted_hold_up_no_other() {
    holds_up_nobody(Obstacle::Interruption).await;
}

#[tokio::test(start_paused = true)]
async fn many_keys_that_meet_a_conflict_hold_up_no_other() {
    holds_up_nobody(Obstacle::Conflict).await;
}

/// Nothing can be done for anybody, say because of a lock on a table that all handlers write. What
/// is stored stays where it is, but for some that are set aside to look for others.
#[tokio::test(start_paused = true)]
async fn an_obstacle_that_everybody_meets_sets_few_keys_aside() {
    let world = World::concurrent(1);
    let lasts = Arc::new(AtomicBool::new(true));
    let inbox = hindered(&world, Obstacle::Conflict, &lasts).start().await.unwrap();
    let sent: Vec<Message> = (0..3_000).flat_map(|key| world.send(&format!("bad-{key}"), 1)).collect();
    within(S * 30, || world.feed.unacknowledged() == 0).await;
    tokio::time::sleep(S * 60).await;
    let aside = world.tables.snapshot().failing_keys;
    assert!(aside < 1_500, "{aside} keys are set aside");
    lasts.store(false, Ordering::SeqCst);
    within(S * 120, || world.ledger.len() == sent.len() && world.stored() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!(inbox.stats().failed, 0);
}

#[tokio::test(start_paused = true)]
async fn many_keys_that_wait_for_their_handler_hold_up_no_other_handler() {
    let world = World::concurrent(1);
    let slow = world.handler(Arc::new(|_, _| {
        async {
            tokio::time::sleep(S * 3).await;
            Ok(())
        }
        .boxed()
    }));
    let free = world.handler(Arc::new(|_, _| async { Ok(()) }.boxed()));
    let one = HandlerOptions::default().concurrency(1);
    let inbox = world.bare().on_message_with("orders", "order.placed", one, slow);
    let inbox = inbox.on_message("orders", "order.read", free);
    let inbox = inbox.mode(Mode::Stored).start().await.unwrap();
    let mut sent: Vec<Message> = (0..MANY).flat_map(|key| world.send(&format!("key-{key}"), 1)).collect();
    let mut read = message("free");
    read.event_type = "order.read".into();
    world.feed.send(read.clone());
    sent.push(read.clone());
    let took = within(S * 600, || world.ledger.has(read.id)).await;
    assert!(took < S * 20, "the other one waited for {took:?}");
    within(S * 1_800, || world.stored() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!(inbox.stats().failed, 0);
}
