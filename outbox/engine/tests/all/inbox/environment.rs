//! Interruptions: a handler that the server, or the way to it, cuts short is not at fault, unless
//! it alone is cut short each time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_util::FutureExt;
use outbox_contract::{Message, RetryPolicy, StoreError, StoreErrorKind};
use outbox_engine::{HandlerContext, HandlerError, InboxBuilder, Mode, Status};

use crate::inbox::support::{S, Store, World, within};

/// An inbox whose handler loses its session with each message of the key `bad`, as long as it is
/// told to.
fn terminated(world: &World, lasts: &Arc<AtomicBool>) -> InboxBuilder<Store> {
    let (ledger, lasts) = (world.ledger.clone(), Arc::clone(lasts));
    world.bare().on_any(async move |message: Message, context: &mut HandlerContext<'_, Store>| {
        ledger.write(context.tx(), &message);
        let is_cut = message.order_key().as_str() == "bad" && lasts.load(Ordering::SeqCst);
        if is_cut { Err(HandlerError::from(context.tx().terminate())) } else { Ok(()) }
    })
}

#[tokio::test(start_paused = true)]
async fn an_interruption_is_no_attempt_and_is_said() {
    for mode in [Mode::Direct, Mode::Stored] {
        let world = World::concurrent(1);
        let lasts = Arc::new(AtomicBool::new(true));
        let retry = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
        let inbox = terminated(&world, &lasts).mode(mode).retry(retry).start().await.unwrap();
        let sent = world.send("bad", 3);
        tokio::time::sleep(S * 600).await;
        let stats = inbox.stats();
        assert_eq!((stats.failed, stats.handled, world.tables.snapshot().dead), (0, 0, 0), "{mode:?}");
        assert!(stats.interrupted > 5 && stats.interrupted < 600, "{mode:?}: with pauses, {stats:?}");
        let health = inbox.health();
        assert_ne!(health.status, Status::Healthy, "{mode:?}: {health:?}");
        let said = |words: &str| health.reasons.iter().any(|reason| reason.text.contains(words));
        assert!(said("terminated by the server") && said("inventory"), "{mode:?}: {health:?}");
        lasts.store(false, Ordering::SeqCst);
        within(S * 120, || world.ledger.len() == 3 && world.stored() == 0).await;
        world.ledger.assert_once_and_in_order(&sent);
        tokio::time::sleep(S * 62).await;
        assert_eq!(inbox.health().status, Status::Healthy, "{mode:?}: {:?}", inbox.health());
    }
}

/// Say because it is too slow for the server's `transaction_timeout`: no other message is, and it
/// would be tried for ever.
#[tokio::test(start_paused = true)]
async fn what_one_message_alone_meets_each_time_is_its_failure() {
    for mode in [Mode::Direct, Mode::Stored] {
        let world = World::concurrent(1);
        let retry = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
        let inbox = terminated(&world, &Arc::new(AtomicBool::new(true))).mode(mode).retry(retry);
        let _inbox = inbox.start().await.unwrap();
        let bad = world.send("bad", 1);
        let mut seconds = 0;
        while world.tables.snapshot().dead == 0 {
            assert!(seconds < 300, "{mode:?}: it is tried for ever");
            world.send("good", 1);
            tokio::time::sleep(S).await;
            seconds += 1;
        }
        let dead = world.dead().await.remove(0);
        assert_eq!(dead.stored.message.id, bad[0].id);
        assert_eq!(&*dead.last_failure.unwrap().class, "environment");
    }
}

/// Handlers that are too slow, several of them among many that are not: each is counted.
#[tokio::test(start_paused = true)]
async fn several_that_meet_it_each_time_while_more_go_through_are_failures() {
    let world = World::concurrent(4);
    let bad = ["bad-1", "bad-2", "bad-3"];
    let ledger = world.ledger.clone();
    let inbox =
        world.bare().on_any(async move |message: Message, context: &mut HandlerContext<'_, Store>| {
            ledger.write(context.tx(), &message);
            let is_cut = bad.contains(&message.order_key().as_str());
            if is_cut { Err(HandlerError::from(context.tx().terminate())) } else { Ok(()) }
        });
    let retry = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
    let _inbox = inbox.retry(retry).start().await.unwrap();
    bad.iter().for_each(|key| _ = world.send(key, 1));
    let mut seconds = 0;
    while world.tables.snapshot().dead < bad.len() {
        assert!(seconds < 600, "they are tried for ever");
        world.send("good", 2);
        tokio::time::sleep(S).await;
        seconds += 1;
    }
}

/// Something that handlers need is away but for moments, say another database: what slips through
/// says nothing of the others.
#[tokio::test(start_paused = true)]
async fn what_nearly_all_meet_is_nobodys_failure() {
    let world = World::concurrent(4);
    let (ledger, calls) = (world.ledger.clone(), Arc::new(AtomicU32::new(0)));
    let inbox =
        world.bare().on_any(async move |message: Message, context: &mut HandlerContext<'_, Store>| {
            ledger.write(context.tx(), &message);
            let slips = calls.fetch_add(1, Ordering::SeqCst) % 8 == 7;
            if slips { Ok(()) } else { Err(HandlerError::from(context.tx().terminate())) }
        });
    let retry = RetryPolicy { max_attempts: 2, ..RetryPolicy::default() };
    let inbox = inbox.retry(retry).start().await.unwrap();
    let sent: Vec<Message> = (0..40).flat_map(|key| world.send(&format!("key-{key}"), 1)).collect();
    let mut looks = 0;
    while world.ledger.len() < sent.len() {
        assert!(looks < 8_640, "some never slip through: {:?}", inbox.stats());
        assert_eq!(world.tables.snapshot().dead, 0, "{:?}", inbox.stats());
        tokio::time::sleep(S * 10).await;
        looks += 1;
    }
    assert!(inbox.stats().interrupted > 100, "{:?}", inbox.stats());
}

/// The handler returned well, and only the append or the commit finds that the session is gone: not
/// the store is away, its session is.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_gone_behind_the_handler_stops_nobody_else() {
    let world = World::concurrent(1);
    let ledger = world.ledger.clone();
    let inbox =
        world.bare().on_any(async move |message: Message, context: &mut HandlerContext<'_, Store>| {
            ledger.write(context.tx(), &message);
            if message.order_key().as_str() == "bad" {
                context.tx().terminate();
            }
            Ok(())
        });
    let inbox = inbox.start().await.unwrap();
    world.send("bad", 1);
    let good = world.send("good", 20);
    let took = within(S * 60, || world.ledger.len() == 20).await;
    assert!(took < S, "{took:?}");
    tokio::time::sleep(S * 60).await;
    world.ledger.assert_once_and_in_order(&good);
    let stats = inbox.stats();
    assert_eq!((stats.resets, stats.failed), (0, 0), "{stats:?}");
    assert!(stats.interrupted > 0, "{stats:?}");
}

/// A store's own error, say of a query through it, and one further down among the causes.
#[tokio::test(start_paused = true)]
async fn the_cause_is_found_wherever_it_is() {
    #[derive(Debug)]
    struct Wrapped(HandlerError);
    impl std::fmt::Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("the order was not written")
        }
    }
    impl std::error::Error for Wrapped {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&*self.0)
        }
    }
    let world = World::concurrent(1);
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let inbox = world.inbox_that(move |_, attempt| {
        assert_eq!(attempt, 1);
        let call = counted.fetch_add(1, Ordering::SeqCst);
        let away = StoreError::new(StoreErrorKind::Unavailable, "tested", "the connection was lost");
        async move {
            match call {
                0 => Err(away.into()),
                1 => Err(Wrapped(away.into()).into()),
                _ => Ok(()),
            }
        }
        .boxed()
    });
    let inbox = inbox.start().await.unwrap();
    let sent = world.send("a", 1);
    within(S * 60, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    let stats = inbox.stats();
    assert_eq!((stats.interrupted, stats.failed, stats.resets), (2, 0, 0), "{stats:?}");
}
