//! Large batches are appended by a transaction, which is dropped when a bucket has changed its owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_contract::backend::{Bucket, Epoch, Outcome, Outcomes, Stored, Transport as _};
use outbox_servers::{OrSkip as _, Proxy, Redis, RedisServer};
use outbox_transport_redis::{RedisTransport, Retention};

use crate::redis_only::support::{
    at, batch, class, finish, messages, publish as publish_once, publish_under, stored, subscribe, until,
};

const BATCH: usize = 12;

/// A transport with one unit, which never trims: of the scripts of publishing, it calls the one that
/// appends.
fn relay(url: &str, prefix: &str) -> RedisTransport {
    at(url, prefix).units(1).retention(Retention::Everything).build().unwrap()
}

/// Number of calls of a command since the server started.
fn calls(server: &RedisServer, command: &str) -> u64 {
    let all = server.cli(&["INFO", "commandstats"]);
    let of = all.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    of.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
}

fn length(server: &RedisServer, prefix: &str) -> usize {
    server.cli(&["XLEN", &format!("{prefix}:{{orders:0}}")]).parse().unwrap()
}

fn epochs(server: &RedisServer, prefix: &str) -> String {
    server.cli(&["--scan", "--pattern", &format!("{prefix}:{{orders:0}}:epochs:*")])
}

/// Publishes a batch that all has to be delivered, or all be refused as that of an older owner.
async fn publish(transport: &RedisTransport, batch: &[Arc<Stored>], epoch: i64) -> bool {
    let outcomes = publish_under(transport, batch, |_| epoch).await;
    if outcomes.iter().all(|outcome| *outcome == Some(Outcome::Delivered)) {
        return true;
    }
    let refused = outcomes.iter().all(|outcome| class(outcome) == "topic fenced");
    assert!(refused, "{outcomes:?}");
    false
}

#[tokio::test]
async fn a_relay_that_lost_its_buckets_appends_nothing_by_a_transaction_either() {
    for wish in [Redis::newest(), Redis::oldest(), Redis::valkey()] {
        let Some(server) = wish.start().or_skip() else { return };
        let prefix = server.fresh_prefix();
        let (one, other) = (relay(&server.url(), &prefix), relay(&server.url(), &prefix));
        assert!(publish(&one, &messages(&["a", "b", "c"], BATCH), 1).await, "it names the epochs");
        let looks = calls(&server, "eval");
        for _ in 0..2 {
            assert!(publish(&one, &messages(&["a", "b", "c"], BATCH), 1).await);
        }
        assert_eq!(calls(&server, "eval") - looks, 2, "{}: by transactions", server.name());
        let next = messages(&["a", "b", "c"], BATCH);
        assert!(publish(&other, &next, 2).await, "the new owner");
        assert!(!publish(&one, &next, 1).await, "{}: the old one", server.name());
        assert_eq!(length(&server, &prefix), 4 * BATCH);
        assert!(publish(&one, &messages(&["d"], BATCH), 1).await, "it has other buckets");
        // It takes them back: what it once knew counts no more.
        let last = messages(&["a", "b", "c"], BATCH);
        assert!(publish(&one, &last, 3).await && !publish(&other, &last, 2).await);
        assert_eq!(length(&server, &prefix), 6 * BATCH);
    }
}

/// The owner changes behind the look at the epochs, and in front of the messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_owners_in_the_middle_of_a_transaction_drops_it() {
    for wish in [Redis::newest(), Redis::oldest(), Redis::valkey()] {
        let Some(server) = wish.start().or_skip() else { return };
        let (proxy, prefix) = (Proxy::to(&server.url()), server.fresh_prefix());
        let old = relay(&proxy.url(&server.url()), &prefix);
        let new = relay(&server.url(), &prefix);
        let batch = messages(&["a", "b", "c"], BATCH);
        assert!(publish(&old, &batch, 1).await && publish(&old, &batch, 1).await);
        let looks = calls(&server, "eval");
        proxy.hold_behind(b"MULTI");
        let late = tokio::spawn({
            let (old, batch) = (old.clone(), batch.clone());
            async move { publish(&old, &batch, 1).await }
        });
        until("the relay has looked", async || proxy.is_holding() && calls(&server, "eval") > looks).await;
        assert!(publish(&new, &batch, 2).await);
        assert_eq!(length(&server, &prefix), 3 * BATCH);
        proxy.pass();
        assert!(!late.await.unwrap(), "{}: it was appended all the same", server.name());
        assert_eq!(length(&server, &prefix), 3 * BATCH);
    }
}

/// Relays with buckets of their own change the epochs of one stream when they begin, and then leave
/// each other alone.
#[tokio::test]
async fn relays_that_share_a_stream_come_to_rest() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let relays = ["a", "b", "c"].map(|key| (relay(&server.url(), &prefix), key));
    let buckets = ["a", "b", "c"].map(|key| stored(key, 1).bucket);
    assert!(buckets[0] != buckets[1] && buckets[1] != buckets[2] && buckets[0] != buckets[2]);
    for round in 0..6 {
        let before = calls(&server, "evalsha");
        for (relay, key) in &relays {
            assert!(publish(relay, &messages(&[key], BATCH), 1).await);
        }
        let scripts = calls(&server, "evalsha") - before;
        assert!(round < 2 || scripts == 0, "round {round}: {scripts} batches were appended by the script");
    }
}

/// An operator deletes the epochs, or scripts, or a restart of the server loses them.
#[tokio::test]
async fn epochs_and_scripts_that_are_gone_are_made_again() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = relay(&server.url(), &prefix);
    let mut sent = Vec::new();
    let mut publish_one_more = async || {
        let batch = messages(&["a", "b"], BATCH);
        assert!(publish(&transport, &batch, 5).await);
        sent.extend(batch);
    };
    publish_one_more().await;
    server.cli(&["SCRIPT", "FLUSH"]);
    publish_one_more().await;
    server.cli(&["DEL", &epochs(&server, &prefix)]);
    publish_one_more().await;
    let before = calls(&server, "evalsha");
    publish_one_more().await;
    assert_eq!(calls(&server, "evalsha"), before, "by a transaction again");
    assert_ne!(server.cli(&["PTTL", &epochs(&server, &prefix)]), "-1");
    let late = relay(&server.url(), &prefix);
    assert!(!publish(&late, &messages(&["a", "b"], BATCH), 4).await, "the epochs are known again");
    finish(&*subscribe(&transport, "reader").await, &sent).await;
}

/// Refused by the server, a transaction leaves nothing behind, in part neither.
#[tokio::test]
async fn a_transaction_that_is_refused_appends_nothing() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all"]);
    let prefix = server.fresh_prefix();
    let transport = relay(&server.url().replace("redis://", "redis://app:pw@"), &prefix);
    let batch = messages(&["a", "b"], BATCH);
    let classes = async || -> Vec<String> {
        let mut all: Vec<String> = publish_under(&transport, &batch, |_| 1).await.iter().map(class).collect();
        all.dedup();
        all
    };
    assert_eq!(classes().await, ["delivered"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(classes().await, ["route out-of-memory"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    server.cli(&["ACL", "SETUSER", "app", "-xadd"]);
    assert_eq!(classes().await, ["topic not-authorized"]);
    server.cli(&["ACL", "SETUSER", "app", "+xadd"]);
    assert_eq!(classes().await, ["delivered"]);
    assert_eq!((length(&server, &prefix), calls(&server, "evalsha")), (2 * BATCH, 1));
    // The key is of another type: each message of the transaction is refused.
    server.cli(&["DEL", &format!("{prefix}:{{orders:0}}")]);
    server.cli(&["SET", &format!("{prefix}:{{orders:0}}"), "text"]);
    assert_eq!(classes().await, ["topic wrong-type"]);
    server.cli(&["DEL", &format!("{prefix}:{{orders:0}}")]);
    // Where the epochs can't be seen, nothing more goes.
    server.cli(&["ACL", "SETUSER", "app", "-hget", "-hmget"]);
    let looked: Vec<String> = [classes().await, classes().await].concat();
    assert_eq!(looked, ["delivered", "topic not-authorized"]);
    assert_eq!(length(&server, &prefix), BATCH);
}

/// Without a right to one of its commands there is no transaction: the script appends. A right that
/// is lost later costs one batch at most: where `MULTI` is refused, Redis runs what follows.
#[tokio::test]
async fn a_user_who_may_send_no_transactions_publishes_by_the_script() {
    for right in ["multi", "exec", "watch", "eval"] {
        let Some(server) = Redis::newest().start().or_skip() else { return };
        let prefix = server.fresh_prefix();
        server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", &format!("-{right}")]);
        let url = server.url().replace("redis://", "redis://app:pw@");
        let transport = relay(&url, &prefix);
        let batch = messages(&["a", "b"], BATCH);
        for round in 1..4 {
            assert!(publish(&transport, &batch, 1).await);
            assert_eq!(length(&server, &prefix), round * BATCH, "no {right}");
        }
        assert_eq!(calls(&server, "evalsha"), 3, "no {right}");
        server.cli(&["ACL", "SETUSER", "app", &format!("+{right}")]);
        let transport = relay(&url, &prefix);
        assert!(publish(&transport, &batch, 1).await && publish(&transport, &batch, 1).await);
        assert_eq!(calls(&server, "evalsha"), 4, "then a transaction");
        let before = length(&server, &prefix);
        server.cli(&["ACL", "SETUSER", "app", &format!("-{right}")]);
        let first: Vec<String> = publish_under(&transport, &batch, |_| 1).await.iter().map(class).collect();
        let expected = match right {
            "multi" => ("unknown unexpected-answer", BATCH),
            "exec" => ("topic not-authorized", 0),
            _ => ("delivered", BATCH),
        };
        assert!(first.iter().all(|outcome| outcome == expected.0), "no {right}: {first:?}");
        assert_eq!(length(&server, &prefix), before + expected.1, "no {right}");
        assert!(publish(&transport, &batch, 1).await && publish(&transport, &batch, 1).await);
        let added = length(&server, &prefix) - before;
        assert_eq!((added, calls(&server, "evalsha")), (expected.1 + 2 * BATCH, 6), "no {right}");
    }
}

/// An older owner that may not watch the epochs appends one batch at most.
#[tokio::test]
async fn a_late_relay_that_may_not_watch_epochs_appends_one_batch_at_most() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let prefix = server.fresh_prefix();
    server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all"]);
    let late = relay(&server.url().replace("redis://", "redis://app:pw@"), &prefix);
    let batch = messages(&["a", "b"], BATCH);
    assert!(publish(&late, &batch, 1).await && publish(&late, &batch, 1).await);
    assert!(publish(&relay(&server.url(), &prefix), &batch, 2).await, "the new owner");
    server.cli(&["ACL", "SETUSER", "app", "-watch"]);
    let before = length(&server, &prefix);
    for _ in 0..3 {
        _ = publish(&late, &batch, 1).await;
    }
    assert!(length(&server, &prefix) <= before + BATCH, "{} more", length(&server, &prefix) - before);
}

/// A bucket whose epoch the relay does not know is not compared, and the others are. Without any,
/// nothing is.
#[tokio::test]
async fn a_batch_of_which_some_epochs_are_known_is_appended_by_the_script() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = relay(&server.url(), &prefix);
    let known: Bucket = stored("a", 1).bucket;
    for _ in 0..2 {
        let sent = messages(&["a", "b"], BATCH);
        let outcomes = Outcomes::new(sent.len());
        let of_one = BTreeMap::from([(known, Epoch(1))]);
        transport.publish(batch(&sent).with_epochs(of_one), &outcomes).await;
        assert!(outcomes.take().iter().all(|outcome| *outcome == Some(Outcome::Delivered)));
    }
    let (transactions, looks) = (calls(&server, "exec"), calls(&server, "eval"));
    assert_eq!(calls(&server, "evalsha"), 2);
    let without = messages(&["a", "b"], BATCH);
    let outcomes = publish_once(&transport, &without).await;
    assert!(outcomes.iter().all(|outcome| *outcome == Some(Outcome::Delivered)), "{outcomes:?}");
    assert_eq!((calls(&server, "exec") - transactions, calls(&server, "eval")), (1, looks));
}
