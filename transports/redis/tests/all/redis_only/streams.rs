//! Content of the streams: nothing twice from a relay that is late, nothing trimmed that somebody
//! wants, nothing that can't be read in the way.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Bucket, Outcome, Transport};
use outbox_servers::{OrSkip as _, Redis, RedisServer};
use outbox_transport_redis::Retention;
use tokio::time::sleep;

use crate::redis_only::support::{
    acknowledge, at, builder, class, deliver, finish, messages, next_deliveries, publish, publish_of,
    publish_under, publish_within, stored, subscribe, until,
};

fn length(server: &RedisServer, prefix: &str) -> usize {
    server.cli(&["XLEN", &format!("{prefix}:{{orders:0}}")]).parse().unwrap()
}

/// P7 at the broker: whatever a relay that lost a bucket still sends, it appends nothing of it.
#[tokio::test]
async fn a_batch_of_an_older_epoch_writes_nothing() {
    for wish in [Redis::newest(), Redis::oldest(), Redis::valkey()] {
        let Some(server) = wish.shared().or_skip() else { return };
        let prefix = server.fresh_prefix();
        let transport = at(&server.url(), &prefix).units(1).build().unwrap();
        let (first, second) = (messages(&["a"], 2), messages(&["a"], 2));
        let delivered = vec![Some(Outcome::Delivered); 2];
        assert_eq!(publish_under(&transport, &first, |_| 7).await, delivered);
        let late = publish_under(&transport, &second, |_| 6).await;
        assert_eq!(late.iter().map(class).collect::<Vec<_>>(), ["topic fenced", "topic fenced"]);
        assert_eq!(length(&server, &prefix), 2, "{}", server.name());
        assert_eq!(publish_under(&transport, &second, |_| 7).await, delivered, "the owner goes on");
        assert_eq!(publish_under(&transport, &first, |_| 8).await, delivered, "and so does the next one");
        assert_eq!(length(&server, &prefix), 6);
    }
}

/// Another bucket of the same batch, which the relay still owns, is not held up.
#[tokio::test]
async fn only_the_bucket_that_was_lost_is_refused() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let transport = builder(&server).units(1).build().unwrap();
    let both = [stored("a", 10), stored("b", 10)];
    let lost: Bucket = both[0].bucket;
    assert_ne!(lost, both[1].bucket);
    assert_eq!(publish_under(&transport, &both, |_| 2).await, vec![Some(Outcome::Delivered); 2]);
    let outcomes = publish_under(&transport, &both, |bucket| if bucket == lost { 1 } else { 3 }).await;
    assert_eq!(outcomes.iter().map(class).collect::<Vec<_>>(), ["topic fenced", "delivered"]);
}

/// Epochs are counted by each store for itself.
#[tokio::test]
async fn the_epochs_of_another_route_or_source_say_nothing() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let transport = builder(&server).units(1).build().unwrap();
    let sent = messages(&["a"], 1);
    assert_eq!(publish_under(&transport, &sent, |_| 9).await, [Some(Outcome::Delivered)]);
    assert_eq!(publish_of("/another", &transport, &sent, |_| 1).await, [Some(Outcome::Delivered)]);
}

/// After a restore of the outbox's database, each bucket goes on when its own time is over, however
/// busy the others are.
#[tokio::test]
async fn a_fence_ends_by_itself_while_other_buckets_go_on() {
    for wish in [Redis::newest(), Redis::oldest(), Redis::valkey()] {
        let Some(server) = wish.shared().or_skip() else { return };
        let transport = builder(&server).units(1).keep_epochs(Duration::from_secs(1)).build().unwrap();
        let (one, other) = ([stored("a", 10)], [stored("b", 10)]);
        assert_ne!(one[0].bucket, other[0].bucket);
        let delivered = vec![Some(Outcome::Delivered)];
        assert_eq!(publish_under(&transport, &one, |_| 12).await, delivered);
        assert_eq!(publish_under(&transport, &other, |_| 10).await, delivered);
        let mut tries = 0;
        while publish_under(&transport, &one, |_| 11).await != delivered {
            assert_eq!(publish_under(&transport, &other, |_| 11).await, delivered);
            tries += 1;
            assert!(tries < 100, "{}: the fence does not end", server.name());
            sleep(Duration::from_millis(300)).await;
        }
    }
}

/// Trimming takes whole blocks of a hundred entries; more than that must be left of what one group
/// has not finished.
#[tokio::test]
async fn nothing_is_trimmed_that_a_group_has_not_finished() {
    for wish in [Redis::newest(), Redis::oldest(), Redis::valkey()] {
        let Some(server) = wish.shared().or_skip() else { return };
        let prefix = server.fresh_prefix();
        let transport = at(&server.url(), &prefix).units(1).trim_every(Duration::ZERO).build().unwrap();
        let sent = messages(&["a", "b", "c"], 500);
        deliver(&transport, &sent).await;
        assert!(length(&server, &prefix) >= 500, "no consumer has subscribed yet, and a new one finds all");

        let (quick, slow) = (subscribe(&transport, "quick").await, subscribe(&transport, "slow").await);
        finish(&*quick, &sent).await;
        let held = next_deliveries(&*slow).await;
        deliver(&transport, &messages(&["d"], 1)).await;
        assert!(length(&server, &prefix) >= 501, "the slow one has read some of it and finished nothing");
        acknowledge(&*slow, &held).await;
        let rest: Vec<_> = sent
            .iter()
            .filter(|it| !held.iter().any(|of| crate::redis_only::support::id(of) == it.message.id))
            .map(Arc::clone)
            .collect();
        finish(&*slow, &rest).await;
        until("what all have finished goes", async || {
            deliver(&transport, &messages(&["e"], 1)).await;
            length(&server, &prefix) < 300
        })
        .await;
    }
}

/// Told to, it trims unread entries; what is gone is passed, and the rest comes.
#[tokio::test]
async fn a_length_that_was_asked_for_is_kept_and_what_is_gone_is_passed() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(1).trim_every(Duration::ZERO);
    let transport = transport.retention(Retention::AtMost(100)).build().unwrap();
    let reader = crate::redis_only::support::subscribe_with(&transport, "reader", 10).await;
    deliver(&transport, &messages(&["a"], 20)).await;
    let in_hand = next_deliveries(&*reader).await;
    deliver(&transport, &messages(&["a"], 500)).await;
    assert!(length(&server, &prefix) < 300);
    drop(reader);
    // Deliveries of the first member are gone from the stream, and pending.
    let reader = subscribe(&transport, "reader").await;
    let last = messages(&["a"], 1);
    deliver(&transport, &last).await;
    finish(&*reader, &last).await;
    let pending = async || {
        let pending = server.cli(&["XPENDING", &format!("{prefix}:{{orders:0}}"), "reader"]);
        pending.lines().next() == Some("0")
    };
    until("nothing stays pending", pending).await;
    assert!(!in_hand.is_empty());
}

#[tokio::test]
async fn what_is_no_message_comes_as_such_and_can_be_finished() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(1).build().unwrap();
    let reader = subscribe(&transport, "reader").await;
    server.cli(&["XADD", &format!("{prefix}:{{orders:0}}"), "*", "total", "42"]);
    let came = next_deliveries(&*reader).await;
    let undecodable = came[0].message.as_ref().expect_err("that is no message");
    assert!(undecodable.reason.contains("data"), "{undecodable}");
    acknowledge(&*reader, &came).await;
    let sent = messages(&["a"], 1);
    deliver(&transport, &sent).await;
    finish(&*reader, &sent).await;
}

#[tokio::test]
async fn a_topic_keeps_the_number_of_units_it_was_made_with() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let four = at(&server.url(), &prefix).units(4).build().unwrap();
    let sixteen = at(&server.url(), &prefix).units(16).build().unwrap();
    let keys: Vec<String> = (0..64).map(|key| format!("key-{key}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let (before, after) = (messages(&keys, 64), messages(&keys, 64));
    deliver(&four, &before).await;
    deliver(&sixteen, &after).await;
    let reader = subscribe(&sixteen, "reader").await;
    finish(&*reader, &[before, after].concat()).await;
    let streams = server.cli(&["--scan", "--pattern", &format!("{prefix}:{{orders:*}}")]);
    assert_eq!(streams.lines().count(), 4, "{streams}");
}

#[tokio::test]
async fn a_server_that_lost_its_scripts_gets_them_again() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let transport = builder(&server).build().unwrap();
    deliver(&transport, &messages(&["a"], 1)).await;
    server.cli(&["SCRIPT", "FLUSH"]);
    let after = messages(&["a", "b"], 4);
    assert_eq!(publish(&transport, &after).await, vec![Some(Outcome::Delivered); 4]);
}

#[tokio::test]
async fn without_enough_replicas_nothing_is_confirmed_and_copies_do_not_pile_up() {
    let Some(server) = Redis::newest().config("repl-diskless-sync-delay 0").start().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let wish = at(&server.url(), &prefix).units(1).confirm_replicas(1);
    let transport = wish.confirm_timeout(Duration::from_millis(200)).build().unwrap();
    let error = transport.check().await.unwrap_err();
    assert!(error.is_retryable() && error.to_string().contains("replicas"), "{error}");
    let sent = messages(&["a"], 1);
    assert_eq!(class(&publish(&transport, &sent).await[0]), "unknown not-enough-replicas");
    for _ in 0..3 {
        assert_eq!(class(&publish(&transport, &sent).await[0]), "route not-enough-replicas");
    }
    assert_eq!(length(&server, &prefix), 1, "one copy of it, however often it was tried");
    let Some(_replica) = server.replica().or_skip() else { return };
    deliver(&transport, &sent).await;
    transport.check().await.unwrap();
}

/// The same for a relay that waits for less long than replicas may take.
#[tokio::test]
async fn copies_do_not_pile_up_when_nobody_waits_for_the_replicas() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let wish = at(&server.url(), &prefix).units(1).confirm_replicas(1);
    let transport = wish.confirm_timeout(Duration::from_secs(3_600)).build().unwrap();
    let sent = messages(&["a"], 1);
    let given_up = publish_within(&transport, &sent, Duration::from_secs(3)).await;
    assert_eq!(given_up, [None], "it was to wait for the replicas");
    until("it is there", async || server.cli(&["EXISTS", &format!("{prefix}:{{orders:0}}")]) == "1").await;
    for _ in 0..3 {
        let outcomes = publish_within(&transport, &sent, Duration::from_millis(300)).await;
        assert_ne!(outcomes, [Some(Outcome::Delivered)]);
    }
    assert_eq!(length(&server, &prefix), 1, "one copy of it, however often it was tried");
}

/// The same with a replica that is connected and hangs. A new connection has written nothing, so
/// all replicas have what it has written.
#[tokio::test]
async fn copies_do_not_pile_up_while_a_replica_hangs() {
    let Some(server) = Redis::newest().config("repl-diskless-sync-delay 0").start().or_skip() else { return };
    let Some(replica) = server.replica().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let wish = at(&server.url(), &prefix).units(1).confirm_replicas(1);
    let transport = wish.confirm_timeout(Duration::from_secs(3_600)).build().unwrap();
    let sent = messages(&["a"], 1);
    deliver(&transport, &sent).await;
    replica.pause();
    for _ in 0..4 {
        let outcomes = publish_within(&transport, &sent, Duration::from_secs(2)).await;
        assert_ne!(outcomes, [Some(Outcome::Delivered)]);
    }
    assert_eq!(length(&server, &prefix), 2, "one copy of it, however often it was tried");
    replica.resume();
    deliver(&transport, &sent).await;
}

#[tokio::test]
async fn a_disk_that_is_to_confirm_must_be_there() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let transport =
        builder(&server).units(1).confirm_disk().confirm_timeout(Duration::from_secs(30)).build().unwrap();
    let error = transport.check().await.unwrap_err();
    assert!(error.to_string().contains("appendonly"), "{error}");
    let sent = messages(&["a"], 1);
    assert_ne!(publish(&transport, &sent).await, [Some(Outcome::Delivered)]);
    server.cli(&["CONFIG", "SET", "appendonly", "yes"]);
    transport.check().await.unwrap();
    deliver(&transport, &sent).await;
}
