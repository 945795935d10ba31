//! State of the consumer at its broker: what it has handled there, what waits, what was lost, and
//! how the broker is set up.

use outbox_contract::admin::Filter;
use outbox_contract::backend::{Lag, Loss, LossCause, OffsetReset, Undecodable, Unit};
use outbox_contract::{AdminExt, Bytes, Topic};
use outbox_engine::{InboxHandle, Mode, Status};
use outbox_testkit::Feed;

use crate::inbox::support::{S, World, within};

fn orders() -> Topic {
    "orders".parse().unwrap()
}

fn unit(number: u32) -> Unit {
    Unit { topic: orders(), number }
}

fn says(inbox: &InboxHandle, words: &str) -> bool {
    inbox.health().reasons.iter().any(|reason| reason.text.contains(words))
}

/// The broker can't tell a new consumer from one whose position it has lost. The store can.
#[tokio::test(start_paused = true)]
async fn a_subscription_tells_which_topics_the_consumer_has_handled() {
    for mode in [Mode::Direct, Mode::Stored] {
        let world = World::new();
        let handled = |world: &World| world.feed.subscriptions().pop().unwrap().handled;
        let inbox = world.inbox().mode(mode).start().await.unwrap();
        within(S * 10, || !world.feed.subscriptions().is_empty()).await;
        assert!(handled(&world).is_empty(), "{mode:?}: a new consumer");
        assert_eq!(world.feed.subscriptions()[0].offset_reset, OffsetReset::None);
        assert!(inbox.stop(S * 20).await);

        let again = World { feed: Feed::new(), ..world.clone() };
        let inbox = again.inbox().mode(mode).start().await.unwrap();
        within(S * 10, || !again.feed.subscriptions().is_empty()).await;
        assert!(handled(&again).is_empty(), "{mode:?}: it was there, and handled nothing");
        let sent = again.send("a", 3);
        within(S * 60, || again.feed.unacknowledged() == 0 && again.ledger.len() == sent.len()).await;
        assert!(inbox.stop(S * 20).await);

        let third = World { feed: Feed::new(), ..world.clone() };
        let inbox = third.inbox().mode(mode).offset_reset(OffsetReset::LastHandled).start().await.unwrap();
        within(S * 10, || !third.feed.subscriptions().is_empty()).await;
        let known = handled(&third);
        assert_eq!(known.keys().collect::<Vec<_>>(), [&orders()], "{mode:?}");
        assert_eq!(third.feed.subscriptions()[0].offset_reset, OffsetReset::LastHandled);
        drop(inbox);

        let other = World { feed: Feed::new(), ..world };
        let _inbox = other.inbox().consumer("billing").start().await.unwrap();
        within(S * 10, || !other.feed.subscriptions().is_empty()).await;
        assert!(handled(&other).is_empty(), "{mode:?}: another consumer");
    }
}

/// A process that is killed has said so before.
#[tokio::test(start_paused = true)]
async fn a_topic_is_noted_while_it_is_handled() {
    let world = World::new();
    let inbox = world.inbox().start().await.unwrap();
    world.send("a", 1);
    within(S * 60, || world.feed.unacknowledged() == 0).await;
    tokio::time::sleep(S * 5).await;
    drop(inbox);
    let again = World { feed: Feed::new(), ..world };
    let _inbox = again.inbox().start().await.unwrap();
    within(S * 10, || !again.feed.subscriptions().is_empty()).await;
    assert!(again.feed.subscriptions()[0].handled.contains_key(&orders()));
}

#[tokio::test(start_paused = true)]
async fn what_waits_and_what_can_not_be_received_is_told() {
    let world = World::new();
    let inbox = world.inbox().start().await.unwrap();
    world.feed.lag(vec![Lag::new(unit(0), 3).with_age(Some(S * 9)), Lag::new(unit(1), 4)]);
    within(S * 10, || inbox.stats().lag == 7).await;
    assert_eq!((inbox.stats().lag_age, inbox.observer().lags().len()), (Some(S * 9), 2));
    assert_eq!(inbox.health().status, Status::Healthy, "{:?}", inbox.health());
    world.feed.lag(vec![Lag::new(unit(1), 4).with_stuck(Some("a transaction is open".to_owned()))]);
    within(S * 10, || says(&inbox, "4 messages wait in orders/1")).await;
    assert!(says(&inbox, "a transaction is open") && inbox.health().status == Status::Degraded);
    world.feed.lag(Vec::new());
    within(S * 10, || inbox.health().status == Status::Healthy).await;
    assert_eq!(inbox.stats().lag, 0);
}

#[tokio::test(start_paused = true)]
async fn what_the_broker_has_lost_is_counted_and_told_for_an_hour() {
    let world = World::new();
    let inbox = world.inbox().start().await.unwrap();
    world.feed.lose(Loss::new(unit(0), LossCause::Trimmed, "the log was trimmed").with_messages(3));
    world.feed.lose(Loss::of_broker(LossCause::Evicted, "keys are evicted"));
    within(S * 10, || inbox.stats().losses == 2).await;
    assert_eq!(inbox.stats().missing, 3);
    assert!(says(&inbox, "orders/0: the log was trimmed (3 messages are gone)"), "{:?}", inbox.health());
    assert!(says(&inbox, "keys are evicted") && inbox.health().status == Status::Degraded);
    tokio::time::sleep(S * 3_700).await;
    assert_eq!(inbox.health().status, Status::Healthy, "{:?}", inbox.health());
    assert_eq!(inbox.stats().losses, 2);
}

/// At the start it would have been refused.
#[tokio::test(start_paused = true)]
async fn a_broker_that_is_set_up_badly_later_is_told_within_a_minute() {
    let world = World::new();
    let inbox = world.inbox().start().await.unwrap();
    tokio::time::sleep(S * 5).await;
    world.feed.misconfigure(Some("maxmemory-policy allkeys-lru"));
    within(S * 90, || says(&inbox, "maxmemory-policy allkeys-lru")).await;
    assert_eq!(inbox.health().status, Status::Degraded);
    world.feed.misconfigure(None);
    within(S * 90, || inbox.health().status == Status::Healthy).await;
}

/// The record became a dead letter before there was a mapper, or one that knew it.
#[tokio::test(start_paused = true)]
async fn a_record_that_is_requeued_goes_through_the_mapper() {
    for mode in [Mode::Direct, Mode::Stored] {
        for has_more in [false, true] {
            let world = World::new();
            let junk =
                Undecodable::new("no id", Bytes::from_static(b"{}"), vec![("x".to_owned(), "y".to_owned())]);
            world.feed.send_junk(orders(), junk.with_key(b"\x00\xff").at("orders/0@7"));
            let inbox = world.inbox().mode(mode).start().await.unwrap();
            within(S * 60, || world.feed.unacknowledged() == 0 && world.tables.snapshot().dead == 1).await;
            assert!(inbox.stop(S * 20).await);

            let again = World { feed: Feed::new(), ..world };
            let count = || again.ledger.len();
            let inbox = again.inbox().mode(mode).map_records(|record| {
                assert_eq!((record.key(), record.header("x")), (Some(&b"\x00\xff"[..]), Some("y")));
                assert_eq!(record.place(), Some("orders/0@7"));
                Ok(Some(record.message("mapped")))
            });
            let inbox = inbox.start().await.unwrap();
            inbox.observer().pause().await.unwrap();
            assert_eq!(again.tables.requeue(&Filter::all_routes()).await.unwrap(), 1);
            // Others of its key wait behind it.
            if has_more {
                again.send("0x00ff", 2);
            }
            tokio::time::sleep(S * 10).await;
            assert_eq!(count(), 0);
            inbox.observer().resume().await.unwrap();
            let all = 1 + 2 * usize::from(has_more);
            within(S * 60, || count() == all && again.stored() == 0 && again.feed.unacknowledged() == 0)
                .await;
            assert_eq!(again.tables.snapshot().dead, 0, "{mode:?} {has_more}");
            assert_eq!(again.ledger.of("0x00ff").len(), all, "{mode:?}: in the place of its key");
        }
    }
}
