//! Hanging messages delay only themselves (P5) and use bounded memory (P6), however many there are
//! and whenever they come.

use std::time::Duration;

use outbox_contract::{MessageId, RetryPolicy};
use outbox_testkit::Fault;
use tokio::time::Instant;

use crate::promises::support::{MS, Rig, S, World, message, within};

/// The publish timeout, and the time to park silent messages. After that, other keys flow again.
const SOON: Duration = Duration::from_secs(8);

/// Appends this many messages for each of so many keys. All of them hang.
async fn hang(world: &World, rig: &Rig, name: &str, keys: usize, deep: usize) -> Vec<MessageId> {
    let messages = (0..keys * deep).map(|n| message(&format!("{name}-{}", n / deep)));
    let ids = world.append(messages).await;
    rig.inject(&ids, Fault::Hang);
    ids
}

async fn do_not_stop_the_others(worlds: impl IntoIterator<Item = World>, keys: usize, deep: usize) {
    for world in worlds {
        let rig = world.rig();
        rig.takes(MS, MS * 5);
        let hanging = hang(&world, &rig, "hanging", keys, deep).await;
        let good = world.append((0..200).map(|n| message(&format!("good-{}", n % 50)))).await;
        let relay = rig.relay().start().await.unwrap();
        let took = within(S * 600, || world.broker.len() == good.len()).await;
        assert!(took <= SOON, "behind {keys} hanging keys x {deep} the others took {took:?}");
        let next = world.append((0..200).map(|n| message(&format!("good-{}", n % 50)))).await;
        let took = within(S * 600, || world.broker.len() == good.len() + next.len()).await;
        assert!(took <= SOON, "later ones took {took:?}");
        let stats = relay.stats();
        assert!(stats.in_flight <= 2_000, "{} messages in memory", stats.in_flight);
        assert_eq!((stats.failed, world.dead().await.len()), (0, 0), "nothing is counted");
        rig.transport.calm();
        world.drained(S * 60).await;
        assert_eq!(world.broker.len(), hanging.len() + good.len() + next.len(), "each arrived once");
        for key in 0..keys.min(10) {
            assert!(world.positions(&format!("hanging-{key}")).is_sorted());
        }
        relay.stop(S * 20).await;
    }
}

#[tokio::test(start_paused = true)]
async fn deep_keys_that_hang_in_front_do_not_stop_the_others() {
    let worlds = [World::new(), World::concurrent(), World::stripes()];
    do_not_stop_the_others(worlds, 4, 600).await;
    do_not_stop_the_others([World::new()], 20, 600).await;
}

#[tokio::test(start_paused = true)]
async fn many_keys_that_hang_in_front_do_not_stop_the_others() {
    do_not_stop_the_others([World::new()], 2_000, 1).await;
}

/// They exceed the limit of bytes, and not that of messages.
#[tokio::test(start_paused = true)]
async fn large_messages_that_hang_in_front_do_not_stop_the_others() {
    let world = World::new();
    let rig = world.rig();
    let large = |n| message(&format!("hanging-{}", n % 4)).with_payload(vec![0; 30_000]);
    let hanging = world.append((0..40).map(large)).await;
    rig.inject(&hanging, Fault::Hang);
    let good = world.append((0..200).map(|n| message(&format!("good-{n}")))).await;
    let _relay = rig.relay().max_in_flight_bytes(300_000).start().await.unwrap();
    let took = within(S * 600, || world.broker.len() == good.len()).await;
    assert!(took <= SOON * 2, "the others took {took:?}");
    rig.transport.calm();
    world.drained(S * 60).await;
}

/// A hundred messages a second flow when hanging keys arrive, deep ones or many. No other key waits
/// longer than the publish timeout, then or later.
#[tokio::test(start_paused = true)]
async fn keys_that_come_to_hang_do_not_stop_a_route_that_flows() {
    for (keys, deep) in [(3, 600), (12, 600), (2_500, 1)] {
        let world = World::new();
        let rig = world.rig();
        rig.takes(MS, MS * 5);
        let relay = rig.relay().start().await.unwrap();
        let mut sent: Vec<(MessageId, Instant)> = Vec::new();
        let mut hanging = Vec::new();
        let (mut arrived, mut longest, mut most) = (0, MS, 0);
        for n in 0..4_000 {
            if n == 500 {
                hanging = hang(&world, &rig, "hanging", keys, deep).await;
            }
            let id = world.append([message(&format!("good-{}", n % 100))]).await[0];
            sent.push((id, Instant::now()));
            tokio::time::sleep(MS * 10).await;
            let now = world.broker.len();
            // Messages arrive about in the order of writing, so the first one missing has been
            // waiting the longest.
            longest = sent[arrived..].first().map_or(longest, |(_, at)| longest.max(at.elapsed()));
            (arrived, most) = (now.min(sent.len() - 1), most.max(relay.stats().in_flight));
        }
        assert!(longest <= SOON * 2, "{keys} keys x {deep}: the slowest took {longest:?}");
        assert!(most <= 4_000, "{most} messages in memory");
        within(S, || world.broker.len() >= sent.len()).await;
        assert_eq!(world.dead().await.len(), 0);
        rig.transport.calm();
        world.drained(S * 120).await;
        assert_eq!(world.broker.len(), sent.len() + hanging.len(), "each arrived once");
    }
}

/// A key that failed once is due again among hanging keys. It waits for none of them.
#[tokio::test(start_paused = true)]
async fn a_key_that_failed_does_not_wait_for_those_that_hang() {
    for hanging in [0, 30, 300] {
        let world = World::new();
        let rig = world.rig();
        rig.takes(MS, MS * 5);
        hang(&world, &rig, "hanging", hanging, 1).await;
        let retry = RetryPolicy { first_delay: S, max_delay: S, ..RetryPolicy::default() };
        let _relay = rig.relay().retry(retry).start().await.unwrap();
        for n in 0..600 {
            world.append([message(&format!("good-{}", n % 20))]).await;
            tokio::time::sleep(MS * 50).await;
        }
        for n in 0..5 {
            let before = world.broker.len();
            let id = world.append([message(&format!("failed-{n}"))]).await[0];
            rig.transport.inject_times(id, Fault::Failed, 1);
            let took = within(S * 600, || world.broker.len() > before).await;
            assert!(took <= S * 2, "beside {hanging} hanging keys it took {took:?}");
        }
        rig.transport.calm();
        world.drained(S * 60).await;
    }
}
