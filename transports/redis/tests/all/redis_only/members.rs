//! Owners of units: one at a time, whatever a member that is late believes.

use std::time::Duration;

use outbox_contract::Topic;
use outbox_contract::backend::{Received, Subscription, Transport};
use outbox_servers::{OrSkip as _, Proxy, Redis};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use crate::redis_only::support::{
    EVERY, Log, PATIENCE, acknowledge, at, deliver, finish, id, messages, next, next_deliveries, subscribe,
    subscribe_with, until,
};

/// The fence of reading. A member whose unit was taken over does not know of it yet: it must take
/// nothing of what is new, for the next owner, who has read what was pending, would never see it.
#[tokio::test]
async fn a_member_that_lost_its_unit_takes_nothing_more_of_it() {
    for wish in [Redis::newest(), Redis::oldest(), Redis::valkey()] {
        let Some(server) = wish.shared().or_skip() else { return };
        let prefix = server.fresh_prefix();
        // Heartbeats so far apart that the member learns of it by reading alone.
        let transport = at(&server.url(), &prefix).units(1);
        let transport =
            transport.lease(Duration::from_secs(600)).heartbeat(Duration::from_secs(300)).build().unwrap();
        let reader = subscribe(&transport, "reader").await;
        let first = messages(&["a"], 3);
        deliver(&transport, &first).await;
        finish(&*reader, &first).await;

        let (owner, lease) =
            (format!("{prefix}:{{orders:0}}:owner:reader"), format!("{prefix}:{{orders:0}}:lease:reader"));
        server.cli(&["SET", &lease, "another member", "PX", "600000"]);
        server.cli(&["HSET", &owner, "member", "another member", "epoch", "99"]);
        let second = messages(&["a"], 3);
        deliver(&transport, &second).await;
        let Received::Revoked(units) = next(&*reader).await else {
            panic!("the unit is revoked, and nothing of it comes")
        };
        assert_eq!(units.len(), 1);
        let pending = server.cli(&["XPENDING", &format!("{prefix}:{{orders:0}}"), "reader"]);
        assert_eq!(pending.lines().next(), Some("0"), "{}: it took what is not its own", server.name());
    }
}

/// A member that is cut off stops by its own clock; the next owner begins with what the first one
/// did not finish, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_is_cut_off_is_replaced_from_its_first_unfinished_message() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let (proxy, prefix) = (Proxy::to(server.url().strip_prefix("redis://").unwrap()), server.fresh_prefix());
    let short = |url: &str| {
        let builder =
            at(url, &prefix).units(1).lease(Duration::from_secs(8)).heartbeat(Duration::from_millis(300));
        builder.request_timeout(Duration::from_secs(2)).build().unwrap()
    };
    let (far, near) = (short(&proxy.url(&server.url())), short(&server.url()));
    let sent = messages(&["a", "b"], 40);
    let cut_off = subscribe_with(&far, "reader", 10).await;
    deliver(&near, &sent).await;
    let in_hand = next_deliveries(&*cut_off).await;
    acknowledge(&*cut_off, &in_hand[..1]).await;
    proxy.hold();
    let other = subscribe(&near, "reader").await;
    let unfinished: Vec<_> = sent.iter().filter(|it| it.message.id != id(&in_hand[0])).cloned().collect();
    finish(&*other, &unfinished).await;

    // Nothing of it comes to the first one any more, but that it was revoked.
    let revoked = async {
        loop {
            match cut_off.next().await {
                Ok(Received::Revoked(units)) => return units,
                Ok(Received::Deliveries(more)) => {
                    panic!("{} deliveries came under a lease that is over", more.len())
                }
                Ok(other) => panic!("{other:?}"),
                Err(_) => tokio::time::sleep(crate::redis_only::support::EVERY).await,
            }
        }
    };
    let units = tokio::time::timeout(PATIENCE, revoked).await.expect("it stops by its own clock");
    assert_eq!(units.len(), 1);
    // Entries that it acknowledges now belong to another: none of them counts as finished.
    let tags: Vec<_> = in_hand.iter().map(|delivery| delivery.tag.clone()).collect();
    cut_off.acknowledge(&tags).await.unwrap();
    proxy.pass();
}

/// P8: who leaves politely gives its units back at once, though the lease would last for a minute.
#[tokio::test]
async fn a_member_that_leaves_gives_its_units_back() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(2).lease(Duration::from_secs(3_600)).build().unwrap();
    let first = subscribe(&transport, "reader").await;
    let sent = messages(&["a", "b", "c", "d"], 20);
    deliver(&transport, &sent).await;
    let in_hand = next_deliveries(&*first).await;
    first.drain().await.unwrap();
    assert!(matches!(next(&*first).await, Received::Ended));
    acknowledge(&*first, &in_hand).await;
    first.close().await.unwrap();
    let left = server.cli(&["--scan", "--pattern", &format!("{prefix}:*:lease:*")]);
    assert_eq!(left, "", "no lease is left");

    let second = subscribe(&transport, "reader").await;
    let rest: Vec<_> =
        sent.iter().filter(|it| !in_hand.iter().any(|of| id(of) == it.message.id)).cloned().collect();
    let last = messages(&["a", "b", "c", "d"], 4);
    deliver(&transport, &last).await;
    finish(&*second, &[rest, last].concat()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_of_three_members_differ_by_one_at_most() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(8).build().unwrap();
    let mut members = Vec::new();
    for _ in 0..3 {
        members.push(subscribe(&transport, "reader").await);
    }
    let shares = async || {
        let mut shares = std::collections::BTreeMap::<String, usize>::new();
        for unit in 0..8 {
            let owner = server.cli(&["GET", &format!("{prefix}:{{orders:{unit}}}:lease:reader")]);
            *shares.entry(owner).or_default() += 1;
        }
        let mut shares: Vec<usize> = shares.into_values().collect();
        shares.sort_unstable();
        shares
    };
    until("three members have two, three and three units", async || shares().await == [2, 3, 3]).await;
    drop(members.pop());
    until("and two of them four each", async || shares().await == [4, 4]).await;
}

/// Pending comes before new, over a crash in between, and with a prefetch that is smaller than what
/// is pending.
#[tokio::test]
async fn what_the_last_owner_left_comes_before_anything_new() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(1).build().unwrap();
    let sent = messages(&["a"], 60);
    let first = subscribe_with(&transport, "reader", 30).await;
    deliver(&transport, &sent[..30]).await;
    let mut in_hand = Vec::new();
    while in_hand.len() < 30 {
        in_hand.extend(next_deliveries(&*first).await);
    }
    drop(first);
    deliver(&transport, &sent[30..]).await;
    let second = subscribe_with(&transport, "reader", 7).await;
    let mut log = Log::default();
    while !log.has_all(&sent) {
        let came = next_deliveries(&*second).await;
        log.write_down(&came);
        acknowledge(&*second, &came).await;
    }
    log.assert_in_order(&sent);
}

/// A unit was taken, and the answer was lost: the lease is this member's, so it need not wait until
/// that is over.
#[tokio::test]
async fn a_unit_that_was_taken_unheard_is_taken_again_at_once() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(1).lease(Duration::from_secs(6_000)).build().unwrap();
    let reader = subscribe(&transport, "reader").await;
    let first = messages(&["a"], 3);
    deliver(&transport, &first).await;
    finish(&*reader, &first).await;
    // As when it is taken: a new epoch, for the same member.
    server.cli(&["HINCRBY", &format!("{prefix}:{{orders:0}}:owner:reader"), "epoch", "1"]);
    let second = messages(&["a"], 3);
    deliver(&transport, &second).await;
    finish(&*reader, &second).await;
}

/// P5: what stands in the way of one unit is no reason for the others to wait.
#[tokio::test]
async fn a_unit_that_is_broken_holds_up_no_other() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(4).build().unwrap();
    let reader = subscribe(&transport, "reader").await;
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"];
    let first = messages(&keys, 32);
    deliver(&transport, &first).await;
    finish(&*reader, &first).await;
    // The first one, so that all others come behind it.
    let broken = format!("{prefix}:{{orders:0}}");
    server.cli(&["DEL", &broken]);
    server.cli(&["SET", &broken, "not a stream"]);
    let second = messages(&keys, 64);
    let (of_broken, others): (Vec<_>, Vec<_>) = second.into_iter().partition(|it| it.bucket.0 % 4 == 0);
    assert!(!of_broken.is_empty() && !others.is_empty());
    deliver(&transport, &others).await;
    finish(&*reader, &others).await;
    server.cli(&["DEL", &broken]);
    deliver(&transport, &of_broken).await;
    finish(&*reader, &of_broken).await;
}

/// Whoever takes units tries the others before the one that was refused: with several members, none
/// of them would get to those behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_take_all_units_but_the_broken_one() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(6).build().unwrap();
    let _members = [subscribe(&transport, "reader").await, subscribe(&transport, "reader").await];
    let of = |unit: usize, what: &str| format!("{prefix}:{{orders:{unit}}}{what}");
    let owned = |unit: usize| server.cli(&["EXISTS", &of(unit, ":lease:reader")]) == "1";
    until("all are taken", async || (0..6).all(owned)).await;
    // One is broken, and then all are lost at once.
    server.cli(&["SET", &of(0, ""), "not a stream"]);
    let keys: Vec<String> =
        (0..6).flat_map(|unit| [of(unit, ":owner:reader"), of(unit, ":lease:reader")]).collect();
    let mut delete = vec!["DEL"];
    delete.extend(keys.iter().map(String::as_str));
    server.cli(&delete);
    until("all the others are taken", async || (1..6).all(owned)).await;
}

/// P8: a replica whose clock is behind took the server's place. What a member left that was killed
/// would last for as long as the clock went back.
#[tokio::test]
async fn what_was_left_under_a_clock_that_was_ahead_is_over() {
    for wish in [Redis::newest(), Redis::oldest(), Redis::valkey()] {
        let Some(server) = wish.shared().or_skip() else { return };
        let prefix = server.fresh_prefix();
        let transport = at(&server.url(), &prefix).units(2).build().unwrap();
        for unit in 0..2 {
            let unit = format!("{prefix}:{{orders:{unit}}}");
            server.cli(&["HSET", &format!("{unit}:owner:reader"), "member", "somebody", "epoch", "7"]);
            server.cli(&["SET", &format!("{unit}:lease:reader"), "somebody", "PX", "86400000"]);
        }
        server.cli(&["ZADD", &format!("{prefix}:{{orders}}:members:reader"), "9999999999999", "somebody"]);
        let reader = subscribe(&transport, "reader").await;
        let sent = messages(&["a", "b", "c", "d"], 8);
        deliver(&transport, &sent).await;
        finish(&*reader, &sent).await;
    }
}

/// The other way round: a member with much longer leases than mine is no remnant.
#[tokio::test]
async fn the_longer_leases_of_another_member_are_kept() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let build =
        |lease| at(&server.url(), &prefix).units(2).lease(Duration::from_secs(lease)).build().unwrap();
    let first = subscribe(&build(6_000), "reader").await;
    let lease = |unit: usize| server.cli(&["GET", &format!("{prefix}:{{orders:{unit}}}:lease:reader")]);
    until("the first has both", async || (0..2).all(|unit| !lease(unit).is_empty())).await;
    let held = lease(0);
    let (members, _second) =
        (format!("{prefix}:{{orders}}:members:reader"), subscribe(&build(60), "reader").await);
    until("each has one", async || lease(1) != held && !lease(1).is_empty()).await;
    assert_eq!(lease(0), held);
    assert_eq!(server.cli(&["ZCARD", &members]), "2");
    drop(first);
}

/// One round trip keeps all leases: with one and more for each topic, the first would be over
/// before the last is seen to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leases_of_many_topics_on_a_far_server_last() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let (prefix, lease) = (server.fresh_prefix(), Duration::from_secs(6));
    let far = far_away(server.url().strip_prefix("redis://").unwrap(), Duration::from_millis(100)).await;
    let transport =
        at(&far, &prefix).units(1).lease(lease).heartbeat(Duration::from_secs(1)).build().unwrap();
    let topics: Vec<Topic> = (0..36).map(|number| Topic::new(format!("topic-{number}")).unwrap()).collect();
    let subscription = Subscription::new("reader", topics.clone()).unwrap();
    let reader = transport.subscribe(subscription).await.unwrap();
    let leases: Vec<String> = topics.iter().map(|it| format!("{prefix}:{{{it}:0}}:lease:reader")).collect();
    let mut count = vec!["EXISTS"];
    count.extend(leases.iter().map(String::as_str));
    until("all are taken", async || server.cli(&count) == "36").await;
    let began = Instant::now();
    while began.elapsed() < lease * 2 {
        if let Ok(came) = timeout(EVERY, reader.next()).await {
            panic!("all leases were to last: {came:?}");
        }
    }
}

/// The address of a server as it is from far away: whatever goes there and comes from there takes
/// this long.
async fn far_away(server: &str, delay: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, server) = (format!("redis://{}", listener.local_addr().unwrap()), server.to_owned());
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(&server).await else { continue };
            let ((near_out, near_in), (far_out, far_in)) = (near.into_split(), far.into_split());
            tokio::spawn(pass(near_out, far_in, delay));
            tokio::spawn(pass(far_out, near_in, delay));
        }
    });
    url
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) -> std::io::Result<()> {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        tokio::time::sleep(delay).await;
        to.write_all(&buffer[..count]).await?;
    }
}

/// Units that could not be given back are given back as soon as that is possible, and not when the
/// lease is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_that_could_not_be_given_back_are_given_back_later() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-del"]);
    let prefix = server.fresh_prefix();
    let build = |url: &str| {
        at(url, &prefix)
            .units(2)
            .lease(Duration::from_secs(6_000))
            .heartbeat(Duration::from_millis(200))
            .build()
    };
    let first =
        subscribe(&build(&server.url().replace("redis://", "redis://app:pw@")).unwrap(), "reader").await;
    let owner = |unit: usize| server.try_cli(&["GET", &format!("{prefix}:{{orders:{unit}}}:lease:reader")]);
    until("it has both", async || (0..2).all(|unit| owner(unit).is_ok_and(|it| !it.is_empty()))).await;
    let second = subscribe(&build(&server.url()).unwrap(), "reader").await;
    let revoked = async {
        loop {
            match first.next().await {
                Ok(Received::Revoked(_)) => return,
                Ok(other) => panic!("{other:?}"),
                Err(_) => tokio::time::sleep(crate::redis_only::support::EVERY).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, revoked).await.expect("it is to give one up");
    server.cli(&["ACL", "SETUSER", "app", "+del"]);
    until("each has one", async || owner(0) != owner(1)).await;
    drop((first, second));
}
