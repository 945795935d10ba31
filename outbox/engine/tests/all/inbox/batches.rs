//! Several messages in one transaction, and what is emitted in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use outbox_contract::{AdminExt, Message, Route};
use outbox_engine::{HandlerContext, HandlerError, HandlerFailure, HandlerOptions};
use outbox_testkit::{StoreCall, StoreFault};

use crate::inbox::support::{MS, S, Store, World, message, route, within};

#[tokio::test(start_paused = true)]
async fn a_batch_is_one_transaction_with_the_same_effects() {
    let world = World::new();
    let mut sent = Vec::new();
    for round in 0..20 {
        for key in ["a", "b", "c"] {
            sent.extend(world.send(key, 1 + round % 2));
        }
    }
    world.feed.send(sent[0].clone());
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let inbox = world.inbox().batch(10).on_step(move |step| {
        if step == outbox_engine::Step::Begun {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let inbox = inbox.start().await.unwrap();
    within(S * 10, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    let begun = begun.load(Ordering::SeqCst);
    assert!(begun <= 15, "91 messages in {begun} transactions");
    assert_eq!(inbox.stats().duplicates, 1);
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_in_a_batch_is_found_and_the_others_are_handled() {
    let world = World::new();
    let mut sent = Vec::new();
    for key in ["a", "bad", "b"] {
        sent.extend(world.send(key, 3));
    }
    let (first_bad, calls) = (sent[3].id, Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&calls);
    let inbox = world.inbox_that(move |message, _| {
        let fails = message.id == first_bad && seen.fetch_add(1, Ordering::SeqCst) < 4;
        async move { if fails { Err(HandlerFailure::failed("tested", "not yet").into()) } else { Ok(()) } }
            .boxed()
    });
    let inbox = inbox.batch(9).tries(9).start().await.unwrap();
    within(S * 30, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    // The failure of the batch as a whole is no attempt of a message.
    assert_eq!((inbox.stats().failed, inbox.stats().stored), (3, 0));
}

/// The first message of the transaction is somebody else's by the time that it is asked about.
#[tokio::test(start_paused = true)]
async fn another_process_that_handled_one_message_of_a_batch_tells_nothing_of_the_others() {
    for behind in [false, true] {
        let world = World::concurrent(1);
        if behind {
            world.tables.hold(&route(), &message("own").key_id()).await.unwrap();
        }
        let mut sent = world.send("moved", 1);
        sent.extend(world.send("own", 1));
        // It never commits. The answer to the first question comes late.
        world.store.inject(StoreCall::Commit, StoreFault::HangBefore, 1);
        world.store.inject(StoreCall::IsHandled, StoreFault::HangBefore, 1);
        let first = world.inbox().batch(2).start().await.unwrap();
        tokio::time::sleep(S).await;
        let other = world.beside();
        other.feed.send(sent[0].clone());
        let second = other.inbox().start().await.unwrap();
        within(S * 60, || world.feed.unacknowledged() + other.feed.unacknowledged() == 0).await;
        assert_eq!(second.stats().handled, 1, "the other process was the first to commit");
        if behind {
            world.tables.release(&route(), &message("own").key_id()).await.unwrap();
        }
        within(S * 60, || world.ledger.has(sent[1].id)).await;
        world.ledger.assert_once_and_in_order(&sent);
        assert_eq!((first.stats().failed, first.stats().resets), (0, 0));
    }
}

/// A handler that emits one message for each that it handles, then does as the test wants.
fn emitting(
    world: &World,
    fails: impl Fn(&Message, u32) -> bool + Send + Sync + 'static,
) -> outbox_engine::InboxBuilder<Store> {
    let ledger = world.ledger.clone();
    let fails = Arc::new(fails);
    world.bare().on_any(async move |message: Message, context: &mut HandlerContext<'_, Store>| {
        ledger.write(context.tx(), &message);
        let reply = Message::new("stock", "stock.reserved")?.with_key(message.order_key().as_str())?;
        context.publish_message(reply.with_header("of", message.id.to_string())?)?;
        tokio::time::sleep(MS).await;
        let failed = fails(&message, context.attempt());
        if failed { Err(HandlerError::from(HandlerFailure::failed("tested", "not yet"))) } else { Ok(()) }
    })
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_emits_is_committed_with_its_effect_or_not_at_all() {
    for batch in [1, 8] {
        let world = World::new();
        let mut sent = Vec::new();
        for key in ["a", "b"] {
            for _ in 0..4 {
                let message = message(key).with_header("traceparent", "00-trace-span-01").unwrap();
                world.feed.send(message.clone());
                sent.push(message);
            }
        }
        world.feed.send(sent[1].clone());
        let fails = emitting(&world, |message, attempt| message.order_key().as_str() == "a" && attempt == 1);
        let _inbox = fails.batch(batch).start().await.unwrap();
        within(S * 30, || world.feed.unacknowledged() == 0).await;
        world.ledger.assert_once_and_in_order(&sent);
        let tables = world.tables.snapshot();
        let emitted: Vec<_> = tables.hot.iter().filter(|(route, _)| *route == Route::default()).collect();
        for key in ["a", "b"] {
            let of = |message: &Message| message.headers.get("of").map(str::to_owned);
            let replies = emitted.iter().filter(|(_, row)| row.message.order_key().as_str() == key);
            let replies: Vec<_> = replies.map(|(_, row)| of(&row.message)).collect();
            let expected = sent.iter().filter(|message| message.order_key().as_str() == key);
            assert_eq!(replies, expected.map(|message| Some(message.id.to_string())).collect::<Vec<_>>());
        }
        assert_eq!(emitted[0].1.message.headers.get("traceparent"), Some("00-trace-span-01"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_runs_no_more_often_at_once_than_it_may_and_the_others_go_on() {
    let world = World::concurrent(1);
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = |pause| {
        let (running, most) = (Arc::clone(&running), Arc::clone(&most));
        world.handler(Arc::new(move |_, _| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(pause).await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
            .boxed()
        }))
    };
    let bounded = HandlerOptions::default().concurrency(2);
    let free = world.handler(Arc::new(|_, _| async { Ok(()) }.boxed()));
    let inbox = world.bare().on_message_with("orders", "order.placed", bounded, handler(S)).on_message(
        "orders",
        "order.read",
        free,
    );
    let mut sent = Vec::new();
    for key in 0..20 {
        sent.extend(world.send(&format!("bounded-{key}"), 1));
    }
    let mut read = message("free");
    read.event_type = "order.read".into();
    world.feed.send(read.clone());
    let _inbox = inbox.start().await.unwrap();
    let took = within(S * 60, || world.ledger.has(read.id)).await;
    assert!(took < S, "the other handler waited for {took:?}");
    sent.push(read);
    within(S * 60, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!(most.load(Ordering::SeqCst), 2);
}
