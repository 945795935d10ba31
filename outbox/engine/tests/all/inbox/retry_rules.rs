//! Rules of a retry policy for handlers: each action by class of failure and topic, in each mode.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_util::FutureExt;
use outbox_contract::admin::Filter;
use outbox_contract::{Admin, AdminExt, Exhausted, Message, RetryPolicy, RetryRule};
use outbox_engine::{HandlerFailure, InboxBuilder, Mode, StartError};

use crate::inbox::support::{S, Store, World, message, route, within};

fn rule(class: &str, max_attempts: u32, exhausted: Exhausted) -> RetryPolicy {
    let rule = RetryRule {
        class: Some(class.into()),
        max_attempts: Some(max_attempts),
        exhausted: Some(exhausted),
        ..RetryRule::default()
    };
    RetryPolicy { rules: vec![rule], ..RetryPolicy::default() }
}

/// A handler that refuses one message while it is told to, and the number of its calls for it.
fn refuses(world: &World, bad: &Message, fails: &Arc<AtomicBool>) -> (InboxBuilder<Store>, Arc<AtomicU32>) {
    let (bad, fails, calls) = (bad.id, Arc::clone(fails), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&calls);
    let inbox = world.inbox_that(move |message, _| {
        let is_bad = message.id == bad;
        counted.fetch_add(u32::from(is_bad), Ordering::SeqCst);
        let fails = is_bad && fails.load(Ordering::SeqCst);
        async move { if fails { Err(HandlerFailure::failed("bad-tenant", "tested").into()) } else { Ok(()) } }
            .boxed()
    });
    (inbox, calls)
}

#[tokio::test(start_paused = true)]
async fn what_a_rule_discards_is_gone_and_its_key_goes_on() {
    // In direct mode the first attempt is in memory, and the one that counts from the store.
    for (mode, calls_for_it) in [(Mode::Direct, 2), (Mode::Stored, 1)] {
        let world = World::new();
        let sent = world.send("a", 3);
        let (inbox, calls) = refuses(&world, &sent[1], &Arc::new(AtomicBool::new(true)));
        let inbox = inbox.mode(mode).retry(rule("bad-*", 1, Exhausted::Discard)).start().await.unwrap();
        within(S * 60, || world.ledger.len() == 2 && world.stored() == 0).await;
        world.ledger.assert_once_and_in_order(&[sent[0].clone(), sent[2].clone()]);
        assert_eq!(calls.load(Ordering::SeqCst), calls_for_it, "{mode:?}");
        assert!(world.dead().await.is_empty());
        let entries = world.tables.audit(&Filter::all_routes()).await.unwrap();
        assert_eq!(entries.len(), 1, "{entries:?}");
        assert_eq!((entries[0].operation.as_str(), &entries[0].ids[..]), ("drop", &[sent[1].id][..]));
        assert_eq!(entries[0].route, Some(route()));
        assert!(inbox.stop(S * 30).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rule_holds_the_key_of_a_handler_until_an_operator_releases_it() {
    for mode in [Mode::Direct, Mode::Stored] {
        let world = World::new();
        let fails = Arc::new(AtomicBool::new(true));
        let sent = world.send("a", 3);
        let (inbox, _) = refuses(&world, &sent[0], &fails);
        let inbox = inbox.mode(mode).retry(rule("bad-tenant", 2, Exhausted::Hold)).start().await.unwrap();
        within(S * 60, || inbox.observer().backlog().is_some_and(|backlog| backlog.held_keys == 1)).await;
        fails.store(false, Ordering::SeqCst);
        tokio::time::sleep(S * 600).await;
        assert_eq!(world.ledger.len(), 0, "its followers wait");
        world.tables.release(&route(), &message("a").key_id()).await.unwrap();
        within(S * 60, || world.ledger.len() == 3).await;
        world.ledger.assert_once_and_in_order(&sent);
    }
}

#[tokio::test(start_paused = true)]
async fn a_rule_pauses_a_topic_of_the_consumer_and_no_other() {
    for mode in [Mode::Direct, Mode::Stored] {
        let world = World::new();
        let fails = Arc::new(AtomicBool::new(true));
        let sent = world.send("a", 3);
        let (inbox, calls) = refuses(&world, &sent[0], &fails);
        let inbox = inbox.topic("customers").mode(mode);
        let inbox = inbox.retry(rule("bad-tenant", 1, Exhausted::PauseTopic)).start().await.unwrap();
        let topic = sent[0].topic.clone();
        within(S * 60, || calls.load(Ordering::SeqCst) >= if mode == Mode::Direct { 2 } else { 1 }).await;
        // A heartbeat tells the receiving side.
        tokio::time::sleep(S * 20).await;
        assert_eq!(
            world.tables.ownership(&route()).await.unwrap().paused.topics,
            std::slice::from_ref(&topic)
        );
        let called = calls.load(Ordering::SeqCst);
        let other_key = world.send("b", 1);
        let other_topic = Message::new("customers", "order.placed").unwrap().with_key("a").unwrap();
        world.feed.send(other_topic.clone());
        within(S * 30, || world.ledger.has(other_topic.id)).await;
        tokio::time::sleep(S * 600).await;
        assert_eq!((world.ledger.len(), calls.load(Ordering::SeqCst)), (1, called), "{mode:?}");
        let health = inbox.health();
        assert!(
            health.reasons.iter().any(|reason| reason.text.contains("paused by the retry policy")),
            "{health:?}"
        );

        fails.store(false, Ordering::SeqCst);
        world.tables.resume(&route(), Some(&topic)).await.unwrap();
        within(S * 60, || world.ledger.len() == 5).await;
        let expected: Vec<Message> = sent.into_iter().chain(other_key).collect();
        let of_a: Vec<_> = world.ledger.of("a").into_iter().filter(|id| *id != other_topic.id).collect();
        assert_eq!(of_a, expected[..3].iter().map(|message| message.id).collect::<Vec<_>>());
    }
}

/// A class for which one attempt is enough is not tried in memory first, as often as `tries`
/// allows.
#[tokio::test(start_paused = true)]
async fn a_rule_shortens_the_attempts_in_memory() {
    for (max_attempts, in_memory) in [(0, 1), (1, 1), (2, 2), (9, 3)] {
        let world = World::new();
        let sent = world.send("a", 1);
        let (inbox, calls) = refuses(&world, &sent[0], &Arc::new(AtomicBool::new(true)));
        let retry = rule("bad-tenant", max_attempts, Exhausted::DeadLetter);
        let _inbox = inbox.retry(retry).start().await.unwrap();
        within(S * 600, || world.tables.snapshot().dead == 1).await;
        let from_store = max_attempts.max(1);
        assert_eq!(calls.load(Ordering::SeqCst), in_memory + from_store, "{max_attempts} attempts");
        assert_eq!(world.dead().await[0].attempts, from_store);
    }
}

#[tokio::test(start_paused = true)]
async fn an_inbox_with_a_wrong_rule_does_not_start_and_says_why() {
    let world = World::new();
    let everything = RetryRule::default();
    let retry = RetryPolicy { rules: vec![everything.clone(), everything], ..RetryPolicy::default() };
    let error = world.inbox().retry(retry).start().await.unwrap_err();
    let StartError::Config(problems) = &error else { panic!("{error}") };
    assert_eq!(problems.len(), 1, "{error}");
    assert!(problems[0].starts_with("retry.rules[1] (everything): it never applies"), "{error}");
}
