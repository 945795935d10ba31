//! Finished entries leave the group, also when the first answer was lost.

use std::time::Duration;

use outbox_contract::backend::{Deliveries, Delivery, Tag};
use outbox_servers::{OrSkip as _, Proxy, Redis, RedisServer};
use outbox_transport_redis::RedisTransport;
use tokio::time::timeout;

use crate::redis_only::support::{
    acknowledge, at, deliver, finish, messages, next_deliveries, subscribe_with, until,
};

const PREFETCH: usize = 10;

/// A consumer behind a proxy, and a publisher that is not; leases that no test waits for.
struct Room {
    server: RedisServer,
    proxy: Proxy,
    prefix: String,
    near: RedisTransport,
    far: RedisTransport,
}

impl Room {
    fn open(request_timeout: Duration) -> Option<Self> {
        let server = Redis::newest().shared().or_skip()?;
        let (proxy, prefix) = (Proxy::to(&server.url()), server.fresh_prefix());
        let near = at(&server.url(), &prefix).units(1).build().unwrap();
        let far = at(&proxy.url(&server.url()), &prefix).units(1).lease(Duration::from_secs(600));
        let far = far.request_timeout(request_timeout).build().unwrap();
        Some(Self { server, proxy, prefix, near, far })
    }

    fn stream(&self) -> String {
        format!("{}:{{orders:0}}", self.prefix)
    }

    fn pending(&self) -> usize {
        let pending = self.server.cli(&["XPENDING", &self.stream(), "reader"]);
        pending.lines().next().and_then(|count| count.parse().ok()).unwrap()
    }

    async fn until_nothing_is_pending(&self) {
        until("nothing is pending", async || self.pending() == 0).await;
    }
}

async fn take(deliveries: &dyn Deliveries, count: usize) -> Vec<Delivery> {
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(next_deliveries(deliveries).await);
    }
    assert_eq!(taken.len(), count);
    taken
}

fn tags(deliveries: &[Delivery]) -> Vec<Tag> {
    deliveries.iter().map(|delivery| delivery.tag.clone()).collect()
}

/// No other member acknowledges again what could not be acknowledged, and it does not come again
/// while its unit stays: so it must not stay pending, nor take from the prefetch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_that_failed_is_made_good() {
    let Some(room) = Room::open(Duration::from_secs(2)) else { return };
    let reader = subscribe_with(&room.far, "reader", PREFETCH).await;
    deliver(&room.near, &messages(&["a", "b"], PREFETCH)).await;
    let first = take(&*reader, PREFETCH).await;
    room.proxy.swallow();
    reader.acknowledge(&tags(&first)).await.expect_err("it went nowhere");
    assert_eq!(room.pending(), PREFETCH);
    room.proxy.pass();
    room.proxy.cut();
    room.until_nothing_is_pending().await;
    let more = messages(&["a", "b"], 2 * PREFETCH);
    deliver(&room.near, &more).await;
    finish(&*reader, &more).await;
}

/// The same, where the wish got through and only its answer did not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_that_nobody_heard_of_makes_room_again() {
    let Some(room) = Room::open(Duration::from_secs(2)) else { return };
    let reader = subscribe_with(&room.far, "reader", PREFETCH).await;
    let all = messages(&["a", "b"], 3 * PREFETCH);
    deliver(&room.near, &all).await;
    let first = take(&*reader, PREFETCH).await;
    room.proxy.hold();
    reader.acknowledge(&tags(&first)).await.expect_err("nothing is heard");
    room.proxy.pass();
    finish(&*reader, &all[PREFETCH..]).await;
    room.until_nothing_is_pending().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_that_was_given_up_is_made_good() {
    let Some(room) = Room::open(Duration::from_secs(30)) else { return };
    let reader = subscribe_with(&room.far, "reader", PREFETCH).await;
    let all = messages(&["a", "b"], 3 * PREFETCH);
    deliver(&room.near, &all).await;
    let first = take(&*reader, PREFETCH).await;
    room.proxy.swallow();
    let given_up = timeout(Duration::from_millis(300), reader.acknowledge(&tags(&first))).await;
    assert!(given_up.is_err(), "there is no answer to wait for");
    room.proxy.pass();
    room.proxy.cut();
    finish(&*reader, &all[PREFETCH..]).await;
    room.until_nothing_is_pending().await;
}

/// Acknowledgments that a member could not send while it had a unit are sent when it leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_acknowledges_what_it_owes() {
    let Some(room) = Room::open(Duration::from_secs(30)) else { return };
    // Heartbeats so far apart that they make nothing good.
    let far = at(&room.proxy.url(&room.server.url()), &room.prefix).units(1);
    let far = far.lease(Duration::from_secs(6_000)).heartbeat(Duration::from_secs(3_000)).build().unwrap();
    let reader = subscribe_with(&far, "reader", PREFETCH).await;
    deliver(&room.near, &messages(&["a"], PREFETCH)).await;
    let first = take(&*reader, PREFETCH).await;
    room.proxy.refuse(true);
    room.proxy.cut();
    reader.acknowledge(&tags(&first)).await.expect_err("the server is away");
    room.proxy.refuse(false);
    reader.close().await.unwrap();
    assert_eq!(room.pending(), 0);
}

/// A server that was killed, or a replica that took its place, may have lost the last
/// acknowledgements.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_forgot_is_not_left_pending() {
    let Some(room) = Room::open(Duration::from_secs(30)) else { return };
    let reader = subscribe_with(&room.far, "reader", PREFETCH).await;
    let sent = messages(&["a", "b"], PREFETCH);
    deliver(&room.near, &sent).await;
    let first = take(&*reader, PREFETCH).await;
    let backup = format!("{}:backup", room.stream());
    room.server.cli(&["COPY", &room.stream(), &backup]);
    acknowledge(&*reader, &first).await;
    assert_eq!(room.pending(), 0);
    room.server.cli(&["COPY", &backup, &room.stream(), "REPLACE"]);
    assert_eq!(room.pending(), PREFETCH);
    // It comes again: whoever restored it may have restored what had never come.
    finish(&*reader, &sent).await;
    room.until_nothing_is_pending().await;
}
