//! At least once (P2): only a confirmation settles a message.

use outbox_testkit::Fault;

use crate::promises::support::{MS, S, World, message, of_topic, topic, within};

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_settles_nothing_and_is_sent_again() {
    for fault in [Fault::UnknownWithoutEffect, Fault::UnknownWithEffect, Fault::Hang] {
        let world = World::new();
        let rig = world.rig();
        let ids = world.append([message("a")]).await;
        rig.transport.inject_times(ids[0], fault, 1);
        let relay = rig.relay().start().await.unwrap();
        within(S * 10, || relay.stats().unknown == 1).await;
        assert_eq!(world.waiting(), 1, "{fault:?}: it is still there");
        world.drained(S * 10).await;
        assert_eq!(world.arrived().last(), ids.last(), "{fault:?}: it was sent again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_publishing_that_is_cancelled_settles_nothing() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a")]).await;
    rig.transport.inject(ids[0], Fault::Hang);
    let relay = rig.relay().start().await.unwrap();
    within(S, || relay.stats().in_flight == 1).await;
    tokio::time::sleep(MS * 100).await;
    drop(relay);
    tokio::time::sleep(S * 60).await;
    assert_eq!(world.waiting(), 1);
    rig.transport.calm();
    let _another = rig.relay().start().await.unwrap();
    world.drained(S * 60).await;
    assert_eq!(world.arrived(), ids);
}

#[tokio::test(start_paused = true)]
async fn an_unroutable_topic_settles_nothing() {
    let world = World::new();
    let rig = world.rig();
    rig.transport.break_topic(topic("nowhere"));
    let ids = world.append([of_topic("nowhere", "a"), of_topic("nowhere", "b")]).await;
    let relay = rig.relay().start().await.unwrap();
    tokio::time::sleep(S * 3_600).await;
    assert_eq!((world.waiting(), world.broker.len()), (2, 0));
    assert_eq!((world.dead().await.len(), relay.stats().failed), (0, 0), "nothing is counted");
    rig.transport.heal_topic(&topic("nowhere"));
    world.drained(S * 10).await;
    assert_eq!(world.arrived().len(), ids.len());
}

#[tokio::test(start_paused = true)]
async fn a_rejected_message_is_a_dead_letter_and_nothing_else_is_lost() {
    let world = World::new();
    let rig = world.rig();
    let ids = world.append([message("a"), message("a"), message("a")]).await;
    rig.transport.inject(ids[1], Fault::Rejected);
    let _relay = rig.relay().start().await.unwrap();
    world.drained(S * 10).await;
    assert_eq!(world.arrived(), [ids[0], ids[2]]);
    let dead = world.dead().await;
    assert_eq!((dead[0].stored.message.id, dead[0].reason.as_str()), (ids[1], "rejected"));
}
