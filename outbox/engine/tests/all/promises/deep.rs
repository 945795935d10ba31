//! Failing keys with deep backlogs: no number of them makes healthy keys wait (P5).

use std::time::Duration;

use outbox_contract::{AdminExt, Exhausted, RetryPolicy};
use outbox_testkit::Fault;

use crate::promises::support::{MS, S, World, key_id, message, route, within};

/// Returns how long one good message takes behind so many failing keys with so many messages each.
/// `held`: the keys failed before.
async fn behind(world: World, keys: usize, deep: usize, held: bool) -> Duration {
    let rig = world.rig();
    rig.takes(MS, MS * 5);
    if held {
        for key in 0..keys {
            world.store.hold(&route(), &key_id(&format!("failing-{key}"))).await.unwrap();
        }
    }
    let ids = world.append((0..keys * deep).map(|n| message(&format!("failing-{}", n / deep)))).await;
    ids.chunks(deep).for_each(|ids| rig.transport.inject(ids[0], Fault::Failed));
    world.append([message("good")]).await;
    let once = RetryPolicy { max_attempts: 1, exhausted: Exhausted::Hold, ..RetryPolicy::default() };
    let relay =
        rig.relay().fetch_batch(100).max_in_flight(200).per_key(50).retry(once).start().await.unwrap();
    let took = within(S * 600, || world.broker.len() == 1).await;
    let (mut most, all) = (0, keys * deep);
    within(S * 600, || {
        most = most.max(relay.stats().in_flight);
        usize::try_from(relay.stats().parked) == Ok(all)
    })
    .await;
    assert!(most <= 200, "{most} messages in memory");
    assert_eq!(world.waiting(), all, "all are parked");
    took
}

/// Returns the time to pass over all their rows once: one fetch for each hundred rows, and as many
/// again for rows parked meanwhile.
fn passing(keys: usize, deep: usize) -> Duration {
    MS * 5 * u32::try_from(keys * deep / 100).unwrap()
}

#[tokio::test(start_paused = true)]
async fn no_number_of_failing_keys_with_backlogs_holds_up_the_others() {
    for (keys, deep) in [(20, 200), (60, 200), (70, 200), (100, 200), (200, 100), (1_000, 20), (3_000, 4)] {
        let took = behind(World::new(), keys, deep, true).await;
        assert!(took <= passing(keys, deep) + MS * 100, "{keys} keys x {deep}: it took {took:?}");
    }
    for world in [World::concurrent(), World::stripes()] {
        let took = behind(world, 200, 100, true).await;
        assert!(took <= passing(200, 100) + MS * 100, "it took {took:?}");
    }
}

/// Each key has to be tried first.
#[tokio::test(start_paused = true)]
async fn no_number_of_keys_that_come_to_fail_with_backlogs_holds_up_the_others() {
    for (keys, deep) in [(20, 200), (60, 200), (70, 200), (100, 200), (200, 100), (400, 60)] {
        let took = behind(World::new(), keys, deep, false).await;
        let tried = MS * 4 * u32::try_from(keys).unwrap();
        assert!(took <= MS * 100 + tried, "{keys} keys x {deep}: it took {took:?}");
    }
    for world in [World::concurrent(), World::stripes()] {
        let took = behind(world, 200, 100, false).await;
        assert!(took <= S, "it took {took:?}");
    }
}
