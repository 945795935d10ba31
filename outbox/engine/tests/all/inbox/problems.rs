//! A topic that gives nothing, beside others that do.

use futures_util::FutureExt;
use outbox_contract::{Message, Topic};
use outbox_engine::Status;

use super::support::{MS, S, World, within};

#[tokio::test(start_paused = true)]
async fn a_topic_that_gives_nothing_is_named_and_delays_no_other() {
    let world = World::concurrent(1);
    let missing: Topic = "bills".parse().unwrap();
    world.feed.fail_topic(&missing, Some("the topic does not exist; create it"));
    let inbox = world.inbox().topic("bills").start().await.unwrap();
    world.feed.send(Message::new(missing.clone(), "bill.sent").unwrap().with_key("a").unwrap());
    let sent = world.send("a", 50);
    within(S * 5, || world.ledger.len() == 50).await;
    world.ledger.assert_once_and_in_order(&sent);
    within(S * 2, || inbox.stats().problems == 1).await;
    let health = inbox.health();
    assert_eq!(health.status, Status::Degraded, "{health:?}");
    assert!(
        health
            .reasons
            .iter()
            .any(|reason| reason.text.contains("bills") && reason.text.contains("create it"))
    );
    assert_eq!(inbox.observer().problems()[0].topic, missing);

    world.feed.fail_topic(&missing, None);
    within(S * 2, || world.ledger.len() == 51).await;
    within(S * 2, || inbox.health().status == Status::Healthy).await;
    assert_eq!(inbox.stats().resets, 0, "the others were not disturbed");
}

/// An error that lasts must not hold up what comes in between: the pause behind each is short,
/// however many there were.
#[tokio::test(start_paused = true)]
async fn what_comes_after_errors_waits_a_second_at_most() {
    let world = World::concurrent(1);
    let _inbox = world.inbox_that(|_, _| async { Ok(()) }.boxed()).start().await.unwrap();
    tokio::time::sleep(MS * 100).await;
    world.feed.away(true);
    tokio::time::sleep(S * 300).await;
    world.feed.away(false);
    world.send("a", 1);
    let took = within(S * 2, || world.ledger.len() == 1).await;
    assert!(took <= S + MS * 100, "{took:?}");
}
