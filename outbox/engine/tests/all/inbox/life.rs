//! Stop, takeover, pause, revocation, and what an inbox is started with.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use outbox_contract::backend::Undecodable;
use outbox_contract::{AdminExt, Bytes, StoreErrorKind};
use outbox_engine::{HandlerFailure, Inbox, Mode, StartError, Status, UnknownType};
use outbox_testkit::{StoreCall, StoreFault, Warnings};

use crate::inbox::support::{MS, S, World, message, route, within};

#[tokio::test(start_paused = true)]
async fn a_stop_with_a_full_prefetch_finishes_what_is_begun_and_another_takes_over_in_order() {
    let world = World::concurrent(1);
    let mut sent = Vec::new();
    for key in 0..20 {
        sent.extend(world.send(&format!("key-{key}"), 20));
    }
    let begun = Arc::new(AtomicUsize::new(0));
    let slow = |world: &World| {
        let begun = Arc::clone(&begun);
        world.inbox_that(move |_, _| {
            begun.fetch_add(1, Ordering::SeqCst);
            async {
                tokio::time::sleep(MS * 20).await;
                Ok(())
            }
            .boxed()
        })
    };
    let first = slow(&world).prefetch(200).start().await.unwrap();
    within(S * 5, || world.ledger.len() > 20).await;
    assert!(world.feed.in_flight() > 150, "it has much more than it works on");
    let begun_before = begun.load(Ordering::SeqCst);
    assert!(first.stop(S * 20).await);
    let handled = world.ledger.len();
    assert_eq!(begun.load(Ordering::SeqCst), handled, "what was begun is finished");
    assert_eq!(handled, begun_before, "and nothing else is begun");
    assert_eq!(world.feed.unacknowledged(), 400 - handled, "all that was handled is acknowledged");
    let second = slow(&world).start().await.unwrap();
    within(S * 60, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!(second.stats().duplicates, 0);
}

#[tokio::test(start_paused = true)]
async fn an_inbox_that_is_killed_leaves_its_messages_to_another() {
    for moment in 0..20 {
        let world = World::concurrent(moment);
        let mut sent = Vec::new();
        for key in 0..10 {
            sent.extend(world.send(&format!("key-{key}"), 5));
        }
        let inbox = world.inbox_that(|_, _| {
            async {
                tokio::time::sleep(MS * 3).await;
                Ok(())
            }
            .boxed()
        });
        let first = inbox.start().await.unwrap();
        tokio::time::sleep(MS * u32::try_from(moment).unwrap()).await;
        drop(first);
        let _second = world.inbox().start().await.unwrap();
        within(S * 60, || world.feed.unacknowledged() == 0).await;
        world.ledger.assert_once_and_in_order(&sent);
    }
}

#[tokio::test(start_paused = true)]
async fn units_that_are_taken_away_again_and_again_change_nothing() {
    let world = World::concurrent(1);
    let mut sent = Vec::new();
    for n in 0..200_u32 {
        let message = message(&format!("key-{}", n % 8));
        world.feed.send_to(n % 8 % 3, message.clone());
        sent.push(message);
    }
    let slow = || {
        world.inbox_that(|message, attempt| {
            let fails = attempt == 1 && message.id.to_string().ends_with(['0', '5']);
            async move {
                tokio::time::sleep(MS * 7).await;
                if fails { Err(HandlerFailure::failed("tested", "once").into()) } else { Ok(()) }
            }
            .boxed()
        })
    };
    let (_first, _second) = (slow().start().await.unwrap(), slow().start().await.unwrap());
    for _ in 0..30 {
        tokio::time::sleep(MS * 11).await;
        world.feed.rebalance();
    }
    within(S * 120, || world.feed.unacknowledged() == 0 && world.stored() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
}

/// Handlers that have begun finish, and their messages are duplicates when they come again. Waiting
/// messages are dropped, and handled when they come again.
#[tokio::test(start_paused = true)]
async fn what_waits_for_a_turn_when_its_unit_is_taken_away_is_not_begun() {
    let world = World::concurrent(1);
    let inbox = world.inbox_that(|_, _| {
        async {
            tokio::time::sleep(S).await;
            Ok(())
        }
        .boxed()
    });
    let sent: Vec<_> = (0..5).flat_map(|key| world.send(&format!("key-{key}"), 1)).collect();
    let inbox = inbox.concurrency(1).start().await.unwrap();
    tokio::time::sleep(MS * 500).await;
    world.feed.rebalance();
    within(S * 60, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    assert_eq!(inbox.stats().duplicates, 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_handled_while_the_consumer_is_paused() {
    let world = World::new();
    let inbox = world.inbox().start().await.unwrap();
    tokio::time::sleep(S * 10).await;
    inbox.observer().pause().await.unwrap();
    let sent = world.send("a", 5);
    tokio::time::sleep(S * 60).await;
    assert_eq!(world.ledger.len(), 0);
    assert_eq!(inbox.health().status, Status::Degraded);
    inbox.observer().resume().await.unwrap();
    within(S * 10, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
}

/// By somebody else, and before the next heartbeat: the store never said here that it was paused.
#[tokio::test(start_paused = true)]
async fn a_pause_that_is_soon_ended_elsewhere_ends_here_too() {
    for mode in [Mode::Direct, Mode::Stored, Mode::Receive] {
        let world = World::new();
        let inbox = world.inbox().mode(mode).start().await.unwrap();
        tokio::time::sleep(S * 11).await;
        inbox.observer().pause().await.unwrap();
        world.tables.resume(&route(), None).await.unwrap();
        let sent = world.send("a", 5);
        within(S * 30, || inbox.health().status == Status::Healthy).await;
        within(S * 30, || world.feed.unacknowledged() == 0).await;
        if mode != Mode::Receive {
            within(S * 10, || world.ledger.len() == sent.len()).await;
            world.ledger.assert_once_and_in_order(&sent);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_pause_holds_whenever_it_comes_between_two_heartbeats() {
    for moment in 0..12 {
        let world = World::new();
        let inbox = world.inbox().start().await.unwrap();
        tokio::time::sleep(S * 7 + MS * 500 * moment).await;
        inbox.observer().pause().await.unwrap();
        world.send("a", 5);
        tokio::time::sleep(S * 60).await;
        assert_eq!(world.ledger.len(), 0, "moment {moment}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_being_handled_at_a_pause_is_finished_and_nothing_else_begins() {
    let world = World::concurrent(1);
    let begun = Arc::new(AtomicUsize::new(0));
    let beginning = Arc::clone(&begun);
    let inbox = world.inbox_that(move |_, _| {
        beginning.fetch_add(1, Ordering::SeqCst);
        async {
            tokio::time::sleep(S * 5).await;
            Ok(())
        }
        .boxed()
    });
    let sent: Vec<_> = (0..20).flat_map(|key| world.send(&format!("key-{key}"), 1)).collect();
    let inbox = inbox.concurrency(3).start().await.unwrap();
    within(S, || begun.load(Ordering::SeqCst) == 3).await;
    tokio::time::sleep(S).await;
    inbox.observer().pause().await.unwrap();
    tokio::time::sleep(S * 60).await;
    assert_eq!((begun.load(Ordering::SeqCst), world.ledger.len()), (3, 3));
    inbox.observer().resume().await.unwrap();
    within(S * 100, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
}

#[tokio::test(start_paused = true)]
async fn an_operator_pauses_a_consumer_by_its_route() {
    let world = World::new();
    let inbox = world.inbox().start().await.unwrap();
    world.tables.pause(&route(), None).await.unwrap();
    tokio::time::sleep(S * 10).await;
    let sent = world.send("a", 5);
    tokio::time::sleep(S * 60).await;
    assert_eq!(world.ledger.len(), 0);
    world.tables.resume(&route(), None).await.unwrap();
    within(S * 10, || world.feed.unacknowledged() == 0).await;
    world.ledger.assert_once_and_in_order(&sent);
    drop(inbox);
}

#[tokio::test(start_paused = true)]
async fn what_no_handler_wants_goes_where_it_was_told_to() {
    for unknown in [UnknownType::DeadLetter, UnknownType::Ignore, UnknownType::Wait] {
        let world = World::new();
        let handler = world.handler(Arc::new(|_, _| async { Ok(()) }.boxed()));
        let inbox = world.bare().on_message("orders", "order.shipped", handler);
        let mut known = message("a");
        known.event_type = "order.shipped".into();
        world.send("a", 1);
        world.feed.send(known.clone());
        let inbox = inbox.unknown_types(unknown).start().await.unwrap();
        within(S * 10, || world.feed.unacknowledged() == 0).await;
        if unknown == UnknownType::Wait {
            tokio::time::sleep(S * 1_200).await;
            assert_eq!((world.ledger.len(), world.tables.snapshot().failing_keys), (0, 1));
            let health = inbox.health();
            assert!(
                health.reasons.iter().any(|reason| reason.text.contains("wait for a newer program")),
                "{health:?}"
            );
            assert!(inbox.stats().postponed > 0 && inbox.stats().failed == 0, "{:?}", inbox.stats());
            continue;
        }
        within(S * 10, || world.ledger.has(known.id)).await;
        let dead = usize::from(unknown == UnknownType::DeadLetter);
        within(S * 10, || world.tables.snapshot().dead == dead).await;
        assert_eq!(inbox.stats().ignored, 1 - dead as u64);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_message_becomes_a_dead_letter_with_its_bytes() {
    let world = World::new();
    let sent = world.send("a", 1);
    world.feed.send_junk(
        "orders".parse().unwrap(),
        Undecodable::new("no id", Bytes::from_static(b"\xff"), Vec::new()),
    );
    let _inbox = world.inbox().start().await.unwrap();
    within(S * 10, || world.feed.unacknowledged() == 0 && world.tables.snapshot().dead == 1).await;
    world.ledger.assert_once_and_in_order(&sent);
    let dead = world.dead().await;
    assert_eq!(&dead[0].stored.message.payload[..], b"\xff");
    assert_eq!(dead[0].last_failure.as_ref().map(|failure| &*failure.message), Some("no id"));
}

#[tokio::test(start_paused = true)]
async fn an_inbox_is_not_started_with_what_makes_no_sense_and_says_all_of_it() {
    let world = World::new();
    let inbox = Inbox::builder(Arc::clone(&world.store), world.feed.clone()).prefetch(0).concurrency(0);
    let Err(StartError::Config(problems)) = inbox.start().await else { panic!("it was started") };
    assert_eq!(problems.len(), 5, "{problems:#?}");
}

#[tokio::test(start_paused = true)]
async fn numbers_without_bounds_are_refused_in_every_mode() {
    let (never, most) = (Duration::ZERO, Duration::MAX);
    for mode in [Mode::Direct, Mode::Stored, Mode::Receive, Mode::Handle] {
        let world = World::new();
        let inbox = || world.inbox().mode(mode);
        let wrong = [
            ("store_timeout", inbox().store_timeout(most)),
            ("store_timeout", inbox().store_timeout(never)),
            ("concurrency", inbox().concurrency(usize::MAX)),
            ("batch", inbox().batch(usize::MAX)),
            ("prefetch ", inbox().prefetch(usize::MAX)),
            ("prefetch_bytes", inbox().prefetch_bytes(usize::MAX)),
            ("tries", inbox().tries(u32::MAX)),
            ("first_delay", inbox().first_delay(most).max_delay(most)),
            ("outage_first_delay", inbox().outage_first_delay(never)),
            ("outage_max_delay", inbox().outage_max_delay(most)),
            ("outage_max_delay", inbox().outage_max_delay(MS)),
            ("due_poll", inbox().due_poll(most)),
            ("unhealthy_age", inbox().unhealthy_age(most)),
            ("lease", inbox().lease(most)),
        ];
        for (name, inbox) in wrong {
            let Err(StartError::Config(problems)) = inbox.start().await else {
                panic!("{mode:?}: it was started with this {name}")
            };
            assert!(problems.iter().any(|problem| problem.starts_with(name)), "{name}: {problems:#?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_said_in_the_words_of_an_inbox() {
    let world = World::new();
    let Err(error) = world.inbox().lease(S * 15).start().await else { panic!("it was started") };
    let words = error.to_string();
    assert!(words.contains("lease is 15s") && words.contains("30s"), "{words}");
    for foreign in ["relay", "publish_timeout"] {
        assert!(!words.contains(foreign), "{words}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_keeps_nobody_waiting_at_the_start() {
    let world = World::new();
    world.store.inject(StoreCall::Check, StoreFault::HangBefore, 1);
    let inbox = world.inbox().store_timeout(S * 3);
    let Err(StartError::Store(error)) = inbox.start().await else { panic!("it was started") };
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("no answer within 3s"), "{error}");
}

/// Subscribed, as far as it knows.
#[tokio::test(start_paused = true)]
async fn a_subscription_that_gives_nothing_but_errors_is_seen_when_it_lasts() {
    let world = World::new();
    let inbox = world.inbox().start().await.unwrap();
    world.send("a", 1);
    within(S * 10, || world.ledger.len() == 1 && inbox.health().status == Status::Healthy).await;
    world.feed.away(true);
    tokio::time::sleep(S * 5).await;
    assert_eq!(inbox.health().status, Status::Healthy, "this may pass");
    tokio::time::sleep(S * 15).await;
    for _ in 0..10 {
        let health = inbox.health();
        assert_eq!(health.status, Status::Degraded);
        let reason = format!("{:?}", health.reasons);
        assert!(
            reason.contains("returned only errors") && reason.contains("taken the broker away"),
            "{reason}"
        );
        tokio::time::sleep(S * 30).await;
    }
    assert_eq!(inbox.stats().resets, 0);
    world.feed.away(false);
    world.send("a", 1);
    within(S * 10, || world.ledger.len() == 2).await;
    assert_eq!(inbox.health().reasons, []);
}

#[tokio::test(start_paused = true)]
async fn an_inbox_without_a_broker_is_degraded_and_then_unhealthy() {
    let world = World::new();
    world.feed.away(true);
    let (warnings, _guard) = Warnings::capture();
    let inbox = world.inbox().start().await.unwrap();
    let says = |word: &str| inbox.health().reasons.iter().any(|reason| reason.text.contains(word));
    assert!(says("not subscribed"));
    within(S * 30, || says("taken the broker away")).await;
    assert_eq!(inbox.health().status, Status::Unhealthy);
    // One in a minute, and nothing of messages in memory: there are none.
    let warnings = warnings.take();
    let count = |words: &str| warnings.iter().filter(|warning| warning.contains(words)).count();
    assert_eq!((count("could not subscribe"), count("messages in memory")), (1, 0), "{warnings:#?}");
    world.feed.away(false);
    within(S * 120, || inbox.health().status == Status::Healthy).await;
}

/// Whichever process is elected to remove ids has to know the retention of all.
#[tokio::test(start_paused = true)]
async fn every_inbox_records_its_retention_when_it_starts_and_every_hour() {
    let world = World::new();
    let beside = world.beside();
    let _inboxes = [world.inbox().start().await.unwrap(), beside.inbox().start().await.unwrap()];
    let recorded = || [&world, &beside].map(|world| world.store.calls(StoreCall::RecordRetention));
    within(S * 10, || recorded() == [1, 1]).await;
    let elected = [&world, &beside].map(|world| world.store.calls(StoreCall::Maintain) > 0);
    assert_ne!(elected[0], elected[1], "one of them removes");
    tokio::time::sleep(S * 3_500).await;
    assert_eq!(recorded(), [1, 1]);
    beside.store.inject(StoreCall::RecordRetention, StoreFault::Before, 1);
    within(S * 120, || recorded() == [2, 3]).await;
}
