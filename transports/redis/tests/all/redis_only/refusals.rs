//! Refusals of Redis, and who is told what.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::{Deliveries, Outcome, Received, Stored, Subscription, Transport};
use outbox_contract::{MessageId, Topic, TransportErrorKind};
use outbox_servers::{OrSkip as _, Redis};
use outbox_transport_redis::{RedisTransport, Retention};
use tokio::time::{Instant, timeout};

use crate::redis_only::support::{
    EVERY, PATIENCE, acknowledge, at, builder, class, deliver, finish, id, messages, publish, publish_under,
    stored, stored_in, subscribe, topic, until,
};

/// The kind and the words of what `check` finds.
async fn checked(transport: &RedisTransport) -> (TransportErrorKind, String) {
    let error = transport.check().await.expect_err("something is wrong");
    (error.kind(), error.to_string())
}

#[tokio::test]
async fn a_wrong_password_is_named_and_never_shown() {
    let Some(server) = Redis::newest().config("requirepass right-password").start().or_skip() else { return };
    let address = server.url().replace("redis://", "");
    let with = |user: &str| format!("redis://{user}{address}");
    let prefix = server.fresh_prefix();
    let builder = at(&with(":wrong-password@"), &prefix);
    assert!(!format!("{builder:?}").contains("wrong-password"));
    let transport = builder.build().unwrap();
    assert!(!format!("{transport:?}").contains("wrong-password"));
    let (kind, words) = checked(&transport).await;
    assert_eq!(kind, TransportErrorKind::NotPermitted, "{words}");
    assert!(words.contains("password") && !words.contains("wrong-password"), "{words}");
    let messages = messages(&["a"], 2);
    let outcomes = publish(&transport, &messages).await;
    assert_eq!(
        outcomes.iter().map(class).collect::<Vec<_>>(),
        ["route not-authorized", "route not-authorized"]
    );

    let without = at(&with(""), &prefix).build().unwrap();
    assert_eq!(checked(&without).await.0, TransportErrorKind::NotPermitted);
    let right = at(&with(":right-password@"), &prefix).build().unwrap();
    right.check().await.unwrap();
    deliver(&right, &messages).await;
    let wrong = at("redis://:right-password@", &prefix).build();
    assert!(wrong.is_err_and(|error| !error.to_string().contains("right-password")));
}

/// The server closes what is one connection too many, and does not always get to say why.
#[tokio::test]
async fn a_server_that_has_no_connection_left_is_named() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let transport = at(&server.url(), &server.fresh_prefix()).build().unwrap();
    server.cli(&["CONFIG", "SET", "maxclients", "1"]);
    let mut other = std::net::TcpStream::connect(server.url().replace("redis://", "")).unwrap();
    other.write_all(b"PING\r\n").unwrap();
    other.read_exact(&mut [0; b"+PONG\r\n".len()]).unwrap();
    let (kind, words) = checked(&transport).await;
    assert_eq!(kind, TransportErrorKind::Unavailable, "{words}");
    assert!(words.contains("maxclients"), "{words}");
    drop(other);
    until("the connection is free", || async { transport.check().await.is_ok() }).await;
}

#[tokio::test]
async fn keys_that_a_user_may_not_touch_make_the_topic_unavailable() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~mine*", "+@all"]);
    let url = server.url().replace("redis://", "redis://app:pw@");
    let theirs = at(&url, "theirs").build().unwrap();
    assert_eq!(checked(&theirs).await.0, TransportErrorKind::NotPermitted);
    let messages = messages(&["a"], 1);
    assert_eq!(class(&publish(&theirs, &messages).await[0]), "topic not-authorized");
    let mine = at(&url, "mine").build().unwrap();
    mine.check().await.unwrap();
    deliver(&mine, &messages).await;
}

/// Beside a topic that is well: one whose stream is something else, and one that the user may not
/// touch.
#[tokio::test]
async fn a_topic_that_is_refused_delays_no_other_until_it_is_well() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~mine*", "+@all", "&*"]);
    let all = at(&server.url(), "mine").units(2).build().unwrap();
    let transport = at(&server.url().replace("redis://", "redis://app:pw@"), "mine")
        .units(2)
        .heartbeat(std::time::Duration::from_millis(500))
        .build()
        .unwrap();
    let names = ["orders", "bills", "secrets"];
    for name in names {
        all.create_topic(name).await.unwrap();
    }
    server.cli(&["SET", "mine:{bills:0}", "not a stream"]);
    server.cli(&["SET", "mine:{bills:1}", "not a stream"]);
    server.cli(&["ACL", "SETUSER", "app", "resetkeys", "~mine:{orders*", "~mine:{bills*"]);
    let subscription = Subscription::new("reader", names).unwrap();
    let deliveries = transport.subscribe(subscription).await.unwrap();

    let sent = messages(&["a", "b"], 20);
    deliver(&all, &sent).await;
    finish_without_error(&*deliveries, &sent).await;
    let of = |name: &str| deliveries.problems().into_iter().filter(|problem| problem.topic == *name).count();
    assert!(of("bills") > 0 && of("secrets") > 0 && of("orders") == 0, "{:?}", deliveries.problems());

    server.cli(&["DEL", "mine:{bills:0}", "mine:{bills:1}"]);
    server.cli(&["ACL", "SETUSER", "app", "~mine*"]);
    for name in ["bills", "secrets"] {
        let of = Topic::new(name).unwrap();
        let again: Vec<_> = (0..10).map(|at| stored_in(of.clone(), ["a", "b"][at % 2], 20)).collect();
        deliver(&all, &again).await;
        finish_without_error(&*deliveries, &again).await;
    }
    let start = std::time::Instant::now();
    while !deliveries.problems().is_empty() {
        assert!(start.elapsed() < PATIENCE, "{:?}", deliveries.problems());
        tokio::time::sleep(EVERY).await;
    }
}

/// Receives and acknowledges until all of these came; an error is a failure.
async fn finish_without_error(deliveries: &dyn Deliveries, messages: &[Arc<Stored>]) {
    let mut missing: BTreeSet<MessageId> = messages.iter().map(|message| message.message.id).collect();
    while !missing.is_empty() {
        let next = tokio::time::timeout(PATIENCE, deliveries.next()).await;
        let next =
            next.unwrap_or_else(|_| panic!("{} did not come: {:?}", missing.len(), deliveries.problems()));
        let Received::Deliveries(came) = next.unwrap() else { continue };
        for delivery in &came {
            missing.remove(&id(delivery));
        }
        acknowledge(deliveries, &came).await;
    }
}

/// The permissions that the page of the book names are enough.
#[tokio::test]
async fn the_permissions_of_the_book_are_enough() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let page = include_str!("../../../../../book/src/redis.md");
    let named = page.rsplit_once("The user needs").unwrap().1;
    let mut command = vec!["ACL", "SETUSER", "app", "on", ">pw", "~mine*"];
    command.extend(named.split(['`', ' ', '\n']).filter(|word| word.starts_with('+')));
    assert!(command.len() > 12, "{command:?}");
    server.cli(&command);
    let transport = at(&server.url().replace("redis://", "redis://app:pw@"), "mine").build().unwrap();
    transport.check().await.unwrap();
    let deliveries = subscribe(&transport, "reader").await;
    let messages = messages(&["a", "b"], 10);
    deliver(&transport, &messages).await;
    finish(&*deliveries, &messages).await;
    deliveries.close().await.unwrap();
}

#[tokio::test]
async fn tls_is_checked_against_the_authorities() {
    let Some(server) = Redis::newest().tls().start().or_skip() else { return };
    let authorities = std::fs::read(server.authorities()).unwrap();
    let prefix = server.fresh_prefix();
    let transport = at(&server.tls_url(), &prefix).authorities(authorities).build().unwrap();
    transport.check().await.unwrap();
    let messages = messages(&["a"], 3);
    let deliveries = subscribe(&transport, "reader").await;
    deliver(&transport, &messages).await;
    finish(&*deliveries, &messages).await;

    let stranger = at(&server.tls_url(), &prefix).build().unwrap();
    let (kind, words) = checked(&stranger).await;
    assert_eq!(kind, TransportErrorKind::Unavailable, "{words}");
    assert!(words.contains("certificate"), "{words}");
}

#[tokio::test]
async fn a_server_that_becomes_a_replica_is_unavailable_until_it_is_none() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let transport = builder(&server).build().unwrap();
    let before = messages(&["a"], 1);
    deliver(&transport, &before).await;
    // No server has it: port 1 is never a Redis. Its data stays.
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let after = messages(&["a"], 2);
    let outcomes = publish(&transport, &after).await;
    assert_eq!(outcomes.iter().map(class).collect::<Vec<_>>(), ["route read-only", "route read-only"]);
    let (kind, words) = checked(&transport).await;
    assert_eq!(kind, TransportErrorKind::Unavailable);
    assert!(words.contains("READONLY") && words.contains("primary"), "{words}");
    server.cli(&["REPLICAOF", "NO", "ONE"]);
    deliver(&transport, &after).await;
    let deliveries = subscribe(&transport, "reader").await;
    finish(&*deliveries, &[before, after].concat()).await;
}

#[tokio::test]
async fn a_server_without_memory_takes_nothing_and_burns_nothing() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let transport = builder(&server).units(1).build().unwrap();
    let before = messages(&["a", "b"], 2);
    assert_eq!(publish_under(&transport, &before, |_| 1).await, vec![Some(Outcome::Delivered); 2]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let after = messages(&["a", "b"], 4);
    let without_epochs = publish(&transport, &after).await;
    // As relays publish: under an epoch that is known, and under a newer one.
    let (known, newer) =
        (publish_under(&transport, &after, |_| 1).await, publish_under(&transport, &after, |_| 2).await);
    for outcomes in [without_epochs, known, newer] {
        assert!(outcomes.iter().all(|outcome| class(outcome) == "route out-of-memory"), "{outcomes:?}");
    }
    assert!(checked(&transport).await.1.contains("maxmemory"));
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let deliveries = subscribe(&transport, "reader").await;
    deliver(&transport, &after).await;
    finish(&*deliveries, &after).await;
}

/// Nothing but its consumers makes room again in a server that is full: they come, stay, read and
/// acknowledge, and what all have finished goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_memory_is_emptied_by_its_consumers() {
    tokio::join!(
        is_emptied_without_memory(Redis::newest()),
        is_emptied_without_memory(Redis::oldest()),
        is_emptied_without_memory(Redis::valkey()),
    );
}

async fn is_emptied_without_memory(wish: Redis) {
    let Some(server) = wish.start().or_skip() else { return };
    let (prefix, lease) = (server.fresh_prefix(), Duration::from_secs(10));
    let wish = at(&server.url(), &prefix).units(2).lease(lease).trim_every(Duration::ZERO);
    let sent = messages(&["a", "b", "c", "d"], 800);
    deliver(&wish.clone().build().unwrap(), &sent).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    // Another process, which knows of nothing yet.
    let transport = wish.build().unwrap();
    let reader = subscribe(&transport, "reader").await;
    let began = Instant::now();
    finish(&*reader, &sent).await;
    while began.elapsed() < lease + lease / 5 {
        if let Ok(came) = timeout(EVERY, reader.next()).await {
            panic!("{}: its leases were to last: {came:?}", server.name());
        }
    }
    let length =
        |unit| server.cli(&["XLEN", &format!("{prefix}:{{orders:{unit}}}")]).parse::<usize>().unwrap();
    until("what was finished goes", async || {
        let refused = publish(&transport, &messages(&["a", "b", "c", "d"], 4)).await;
        assert!(refused.iter().all(|it| class(it) == "route out-of-memory"), "{refused:?}");
        length(0) + length(1) < 400
    })
    .await;
}

/// Evicting, a server that is full deletes streams.
#[tokio::test]
async fn a_server_that_would_delete_streams_is_refused() {
    let Some(server) = Redis::newest().config("maxmemory-policy allkeys-lru").start().or_skip() else {
        return;
    };
    let transport = builder(&server).build().unwrap();
    transport.check().await.expect("without a limit nothing is evicted");
    server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let (kind, words) = checked(&transport).await;
    assert_eq!(kind, TransportErrorKind::Invalid);
    assert!(words.contains("allkeys-lru") && words.contains("noeviction"), "{words}");
    // Streams never expire, so this one leaves them.
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]);
    transport.check().await.unwrap();
}

#[tokio::test]
async fn a_server_that_can_not_save_is_unavailable() {
    let wish = Redis::newest().config("enable-protected-configs yes").config("save 86400 1");
    let Some(server) = wish.start().or_skip() else { return };
    let transport = builder(&server).build().unwrap();
    deliver(&transport, &messages(&["a"], 1)).await;
    let folder = server.cli(&["CONFIG", "GET", "dir"]);
    let folder = folder.lines().nth(1).unwrap().to_owned();
    server.cli(&["CONFIG", "SET", "dir", "/proc"]);
    until("the snapshot fails", async || {
        // One may be under way.
        let _ = server.try_cli(&["BGSAVE"]);
        server.cli(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err")
    })
    .await;
    let after = messages(&["a"], 1);
    assert_eq!(class(&publish(&transport, &after).await[0]), "route persistence-failing");
    assert!(checked(&transport).await.1.contains("disk"));
    server.cli(&["CONFIG", "SET", "dir", &folder]);
    server.cli(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    deliver(&transport, &after).await;
}

#[tokio::test]
async fn something_else_under_the_key_of_a_stream_makes_the_topic_unavailable() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(1).build().unwrap();
    let stream = format!("{prefix}:{{orders:0}}");
    server.cli(&["SET", &stream, "not a stream"]);
    let messages = messages(&["a"], 2);
    let outcomes = publish(&transport, &messages).await;
    assert_eq!(outcomes.iter().map(class).collect::<Vec<_>>(), ["topic wrong-type", "topic wrong-type"]);
    server.cli(&["DEL", &stream]);
    deliver(&transport, &messages).await;
}

/// The limit is the server's own; nothing of a message above it is ever sent, so no connection
/// breaks over it.
#[tokio::test]
async fn a_message_above_the_limit_of_the_server_is_rejected_and_hurts_no_other() {
    let Some(server) = Redis::newest().config("proto-max-bulk-len 1mb").start().or_skip() else { return };
    let transport = builder(&server).build().unwrap();
    let (before, large, behind) = (stored("a", 10), stored("a", 1024 * 1024 + 1), stored("a", 10));
    let (other, at_limit) = (stored("b", 10), stored("c", 1024 * 1024));
    let batch = [&before, &large, &behind, &other, &at_limit].map(Arc::clone);
    let outcomes = publish(&transport, &batch).await;
    let classes: Vec<String> = outcomes.iter().map(class).collect();
    assert_eq!(classes, ["delivered", "rejected message-too-large", "blocked", "delivered", "delivered"]);
    assert!(transport.validate(&large.message).is_err(), "from the first connection on it is known early");
    assert!(transport.validate(&at_limit.message).is_ok());
    let deliveries = subscribe(&transport, "reader").await;
    finish(&*deliveries, &[before, other, at_limit]).await;
    assert_eq!(publish(&transport, &[behind]).await, [Some(Outcome::Delivered)]);
    // Raised, it counts from the next connection on.
    server.cli(&["CONFIG", "SET", "proto-max-bulk-len", "2mb"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    until("the new limit is known", async || {
        publish(&transport, &[stored("d", 10), Arc::clone(&large)]).await == vec![Some(Outcome::Delivered); 2]
    })
    .await;
    let lower = builder(&server).max_message_bytes(1_000).build().unwrap();
    lower.check().await.unwrap();
    assert!(lower.validate(&stored("a", 1_001).message).is_err(), "what was configured counts all the same");
}

#[tokio::test]
async fn a_topic_that_was_not_made_is_missing_where_topics_must_be_made() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let transport = builder(&server).existing_topics_only().units(3).build().unwrap();
    let messages = messages(&["a"], 1);
    assert_eq!(class(&publish(&transport, &messages).await[0]), "topic unknown-topic");
    let consumer = outbox_contract::Consumer::new("reader").unwrap();
    let subscription = outbox_contract::backend::Subscription::new(consumer, [topic()]).unwrap();
    let error = transport.subscribe(subscription).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), TransportErrorKind::Missing);
    assert_eq!(transport.create_topic(topic()).await.unwrap(), 3);
    deliver(&transport, &messages).await;
}

/// Redis refuses times that its clock can't count to, be it behind a write.
#[tokio::test]
async fn times_without_end_are_long_ones() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let (prefix, endless) = (server.fresh_prefix(), std::time::Duration::MAX);
    let builder = at(&server.url(), &prefix).units(1).keep_epochs(endless).lease(endless).trim_every(endless);
    let builder = builder.confirm_timeout(endless).connect_timeout(endless).request_timeout(endless);
    let transport = builder.retention(Retention::Finished(endless)).build().unwrap();
    let sent = messages(&["a"], 1);
    assert_eq!(publish_under(&transport, &sent, |_| 1).await, [Some(Outcome::Delivered)]);
    let stream = format!("{prefix}:{{orders:0}}");
    assert_eq!(server.cli(&["XLEN", &stream]), "1");
    let epochs = server.cli(&["--scan", "--pattern", &format!("{stream}:epochs:*")]);
    assert_ne!(server.cli(&["PTTL", &epochs]), "-1", "one day it goes");
    finish(&*subscribe(&transport, "reader").await, &sent).await;
}

/// A refusal after a message was appended would make it come again with each try.
#[tokio::test]
async fn nothing_is_appended_where_epochs_can_not_be_kept() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", "-pexpire"]);
    let prefix = server.fresh_prefix();
    let transport =
        at(&server.url().replace("redis://", "redis://app:pw@"), &prefix).units(1).build().unwrap();
    let sent = messages(&["a"], 1);
    for _ in 0..3 {
        let outcomes = publish_under(&transport, &sent, |_| 1).await;
        assert_eq!(class(&outcomes[0]), "topic not-authorized");
    }
    assert_eq!(server.cli(&["XLEN", &format!("{prefix}:{{orders:0}}")]), "0");
    server.cli(&["ACL", "SETUSER", "app", "+pexpire"]);
    assert_eq!(publish_under(&transport, &sent, |_| 1).await, [Some(Outcome::Delivered)]);
}

#[test]
fn every_wrong_value_is_named_at_once_and_no_password() {
    let wrong = RedisTransport::builder("http://:s3cret@127.0.0.1").cluster(["redis://127.0.0.1:1"]);
    let wrong = wrong.confirm_replicas(1).units(257).prefix("a{b").retention(Retention::AtMost(0));
    let wrong = wrong.heartbeat(std::time::Duration::from_secs(14)).max_message_bytes(0);
    let error = wrong.request_timeout(std::time::Duration::ZERO).build().expect_err("nothing of it is right");
    assert_eq!(error.kind(), TransportErrorKind::Invalid);
    let shown = error.to_string();
    for problem in [
        "units is 257; make it 1 to 256",
        "prefix is \"a{b\"",
        "retention is AtMost(0)",
        "heartbeat is 14s; make it at most half of the lease (15s)",
        "max_message_bytes is 0",
        "request_timeout is 0ns",
        "confirm_replicas",
        "invalid Redis URL",
    ] {
        assert!(shown.contains(problem), "{problem}: {shown}");
    }
    assert_eq!(shown.matches("; ").count(), 2 * 8 - 1, "one problem each, with its remedy: {shown}");
    assert!(!shown.contains("s3cret"), "{shown}");
}
