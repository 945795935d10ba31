//! Positions that Redis has lost, what waits, and settings that are looked at again.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_contract::Timestamp;
use outbox_contract::backend::{
    Deliveries, Lag, Loss, LossCause, OffsetReset, Outcome, Subscription, Transport,
};
use outbox_servers::{OrSkip as _, Redis};
use outbox_transport_redis::RedisTransport;
use tokio::time::{Instant, sleep, timeout};

use crate::redis_only::support::{
    EVERY, Log, PATIENCE, acknowledge, at, builder, class, deliver, finish, messages, next_deliveries,
    publish, stored, topic, until,
};

/// Joins as a consumer that has handled the topic last at this time, if it ever did.
async fn join(
    transport: &RedisTransport,
    handled: Option<Timestamp>,
    reset: OffsetReset,
) -> Box<dyn Deliveries> {
    let handled = handled.map(|at| BTreeMap::from([(topic(), at)])).unwrap_or_default();
    let subscription = Subscription::new("reader", [topic()]).unwrap();
    transport.subscribe(subscription.with_handled(handled, reset)).await.unwrap()
}

async fn losses(member: &dyn Deliveries) -> Vec<Loss> {
    let start = Instant::now();
    loop {
        let found = member.losses();
        if !found.is_empty() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "nothing was found lost");
        sleep(EVERY).await;
    }
}

async fn waits(member: &dyn Deliveries, messages: u64) -> Vec<Lag> {
    let start = Instant::now();
    loop {
        let lags = member.lags();
        if !lags.is_empty() && lags.iter().map(|lag| lag.messages).sum::<u64>() == messages {
            return lags;
        }
        assert!(start.elapsed() < PATIENCE, "{messages} should wait, not {lags:?}");
        sleep(EVERY).await;
    }
}

#[tokio::test]
async fn a_group_that_is_gone_does_what_is_configured() {
    for wish in [Redis::newest(), Redis::oldest(), Redis::valkey()] {
        let Some(server) = wish.shared().or_skip() else { return };
        for reset in [OffsetReset::None, OffsetReset::Earliest, OffsetReset::Latest, OffsetReset::LastHandled]
        {
            let prefix = server.fresh_prefix();
            let transport = at(&server.url(), &prefix).units(1).build().unwrap();
            let (before, missed, after) = (messages(&["a"], 5), messages(&["a"], 3), messages(&["a"], 4));
            let member = join(&transport, None, reset).await;
            deliver(&transport, &before).await;
            finish(&*member, &before).await;
            assert!(member.losses().is_empty(), "a new consumer has lost nothing");
            member.close().await.unwrap();
            let last = Timestamp::now().plus(Duration::from_millis(1));
            // The clock of a busy server, which ids are made of, is read now and then.
            while Timestamp::now() <= last.plus(Duration::from_millis(300)) {
                sleep(Duration::from_millis(1)).await;
            }
            deliver(&transport, &missed).await;
            server.cli(&["XGROUP", "DESTROY", &format!("{prefix}:{{orders:0}}"), "reader"]);

            let member = join(&transport, Some(last), reset).await;
            let found = losses(&*member).await;
            assert!(found.len() == 1 && found[0].cause == LossCause::Position, "{found:?}");
            deliver(&transport, &after).await;
            let mut expected = match reset {
                OffsetReset::Earliest => before.clone(),
                _ => Vec::new(),
            };
            if matches!(reset, OffsetReset::Earliest | OffsetReset::LastHandled) {
                expected.extend(missed.clone());
            }
            expected.extend(after.clone());
            if reset == OffsetReset::None {
                let problems = member.problems();
                assert!(problems.len() == 1 && problems[0].error.contains("offset_reset"), "{problems:?}");
                let nothing = timeout(Duration::from_secs(1), next_deliveries(&*member)).await;
                assert!(nothing.is_err(), "{}: {nothing:?}", server.name());
                assert!(member.losses().is_empty(), "it is said once");
                // Somebody decides.
                let group = ["XGROUP", "CREATE", &format!("{prefix}:{{orders:0}}"), "reader", "$"];
                server.cli(&group);
                until("it goes on", async || member.problems().is_empty()).await;
                expected = messages(&["a"], 2);
                deliver(&transport, &expected).await;
            }
            let mut log = Log::default();
            while !log.has_all(&expected) {
                let came = next_deliveries(&*member).await;
                log.write_down(&came);
                acknowledge(&*member, &came).await;
            }
            assert_eq!(log.len(), expected.len(), "{} {reset}", server.name());
        }
    }
}

/// Without its stream, a group has nothing to repeat.
#[tokio::test]
async fn a_stream_that_is_gone_as_well_is_begun_anew_and_said() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(1).build().unwrap();
    let member = join(&transport, None, OffsetReset::None).await;
    let before = messages(&["a"], 5);
    deliver(&transport, &before).await;
    finish(&*member, &before).await;
    member.close().await.unwrap();
    server.cli(&["DEL", &format!("{prefix}:{{orders:0}}")]);
    let member = join(&transport, Some(Timestamp::now()), OffsetReset::None).await;
    assert_eq!(losses(&*member).await[0].cause, LossCause::Position);
    let after = messages(&["a"], 5);
    deliver(&transport, &after).await;
    finish(&*member, &after).await;
    assert!(member.problems().is_empty());
}

#[tokio::test]
async fn what_was_trimmed_before_it_was_read_is_counted() {
    for wish in [Redis::newest(), Redis::oldest(), Redis::valkey()] {
        let Some(server) = wish.shared().or_skip() else { return };
        for reset in [OffsetReset::None, OffsetReset::Earliest] {
            let prefix = server.fresh_prefix();
            let transport = at(&server.url(), &prefix).units(1).build().unwrap();
            let member = join(&transport, None, reset).await;
            let before = messages(&["a"], 5);
            deliver(&transport, &before).await;
            finish(&*member, &before).await;
            member.close().await.unwrap();
            let missed = messages(&["a"], 10);
            deliver(&transport, &missed).await;
            server.cli(&["XTRIM", &format!("{prefix}:{{orders:0}}"), "MAXLEN", "4"]);
            let member = join(&transport, Some(Timestamp::now()), reset).await;
            let found = losses(&*member).await;
            let what = (found[0].cause, found[0].messages);
            assert_eq!(what, (LossCause::Trimmed, Some(6)), "{}: {found:?}", server.name());
            if reset == OffsetReset::None {
                assert!(member.problems()[0].error.contains("offset_reset"));
            } else {
                finish(&*member, &missed[6..]).await;
                assert!(member.losses().is_empty());
            }
        }
    }
}

/// A member that lags keeps its unit: it finds at a heartbeat what it will never be given.
#[tokio::test]
async fn what_is_trimmed_under_a_member_that_lags_is_counted_once() {
    for wish in [Redis::newest(), Redis::oldest(), Redis::valkey()] {
        let Some(server) = wish.shared().or_skip() else { return };
        for reset in [OffsetReset::Earliest, OffsetReset::None] {
            let prefix = server.fresh_prefix();
            let stream = format!("{prefix}:{{orders:0}}");
            let transport = at(&server.url(), &prefix).units(1).build().unwrap();
            let subscription = Subscription::new("reader", [topic()]).unwrap().with_prefetch(2);
            let handled = BTreeMap::from([(topic(), Timestamp::now())]);
            let subscription = subscription.with_handled(handled, reset);
            server.cli(&["XGROUP", "CREATE", &stream, "reader", "0", "MKSTREAM"]);
            let member = transport.subscribe(subscription.clone()).await.unwrap();
            let sent = messages(&["a"], 20);
            deliver(&transport, &sent).await;
            let mut came = Vec::new();
            while came.len() < 2 {
                came.extend(next_deliveries(&*member).await);
            }
            server.cli(&["XTRIM", &stream, "MAXLEN", "4"]);
            let missing = Some(16 - came.len() as u64);
            let found = losses(&*member).await;
            let what = (found.len(), found[0].cause, found[0].messages);
            assert_eq!(what, (1, LossCause::Trimmed, missing), "{} {reset}: {found:?}", server.name());
            if reset == OffsetReset::None {
                assert!(member.problems()[0].error.contains("offset_reset"));
                continue;
            }
            // Each heartbeat writes the lease anew, behind its look.
            for _ in 0..2 {
                server.cli(&["DEL", &format!("{stream}:lease:reader")]);
                let lease = ["EXISTS", &format!("{stream}:lease:reader")];
                until("a heartbeat", async || server.cli(&lease).trim() == "1").await;
            }
            assert!(member.losses().is_empty(), "{}: it is said once", server.name());
            member.close().await.unwrap();
            let member = transport.subscribe(subscription).await.unwrap();
            finish(&*member, &sent[16..]).await;
            let again = member.losses();
            assert!(again.iter().all(|loss| loss.messages == Some(came.len() as u64)), "{again:?}");
        }
    }
}

/// Unfinished deliveries of a member: their ids are pending, and their entries are gone.
#[tokio::test]
async fn pending_entries_that_were_trimmed_are_counted() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(1).build().unwrap();
    let member = join(&transport, None, OffsetReset::None).await;
    let sent = messages(&["a"], 5);
    deliver(&transport, &sent).await;
    let mut came = 0;
    while came < 5 {
        came += next_deliveries(&*member).await.len();
    }
    member.close().await.unwrap();
    server.cli(&["XTRIM", &format!("{prefix}:{{orders:0}}"), "MAXLEN", "2"]);
    let member = join(&transport, Some(Timestamp::now()), OffsetReset::None).await;
    finish(&*member, &sent[3..]).await;
    let found = losses(&*member).await;
    assert_eq!((found[0].cause, found[0].messages), (LossCause::Trimmed, Some(3)), "{found:?}");
}

#[tokio::test]
async fn what_waits_is_measured_in_each_stream_with_its_age() {
    for wish in [Redis::newest(), Redis::oldest(), Redis::valkey()] {
        let Some(server) = wish.shared().or_skip() else { return };
        let transport = builder(&server).units(2).build().unwrap();
        // Most of them are not given to the consumer yet.
        let subscription = Subscription::new("reader", [topic()]).unwrap().with_prefetch(2);
        let member = transport.subscribe(subscription).await.unwrap();
        let sent = messages(&["a", "b", "c", "d"], 20);
        deliver(&transport, &sent).await;
        let lags = waits(&*member, 20).await;
        assert!(lags.iter().all(|lag| lag.age.is_some() == (lag.messages > 0)), "{lags:?}");
        finish(&*member, &sent).await;
        let lags = waits(&*member, 0).await;
        assert!(lags.len() == 2 && lags.iter().all(|lag| lag.age.is_none()), "{lags:?}");
    }
}

/// Set under a running program, it is found by the check that is made each minute.
#[tokio::test]
async fn an_eviction_policy_that_is_set_later_is_found_and_what_it_evicts_is_said() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let transport = builder(&server).units(1).build().unwrap();
    transport.check().await.unwrap();
    let member = join(&transport, None, OffsetReset::None).await;
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let found = transport.check().await.unwrap_err();
    assert!(!found.is_retryable() && found.to_string().contains("noeviction"), "{found}");
    // It evicts what is there, but for what a member needs at once.
    let fill = "for i = 1, 20000 do redis.call('SET', 'junk' .. i, string.rep('x', 100)) end";
    server.cli(&["EVAL", fill, "0"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "3mb"]);
    let mut evicted = Vec::new();
    until("evicted keys are said", async || {
        server.cli(&["SET", "more", &"x".repeat(1_000)]);
        evicted.extend(member.losses().into_iter().filter(|loss| loss.cause == LossCause::Evicted));
        !evicted.is_empty()
    })
    .await;
    assert!(evicted[0].words.contains("noeviction"), "{evicted:?}");

    // And at last the stream: the number of its messages goes with it, so nobody can tell it.
    deliver(&transport, &messages(&["a"], 5)).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let mut lost = Vec::new();
    until("the position in the stream is missed", async || {
        // Refused, after everything that is there was evicted for it.
        let _ = server.try_cli(&["SET", "more", "x"]);
        lost.extend(member.losses().into_iter().filter(|loss| loss.cause == LossCause::Position));
        !lost.is_empty()
    })
    .await;
    assert!(lost[0].unit.is_some() && lost[0].messages.is_none(), "{lost:?}");
}

/// It may be set on a server that runs: what was too large is so no more, and the other way round.
#[tokio::test]
async fn the_largest_message_is_that_of_the_last_check() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let transport = builder(&server).units(1).build().unwrap();
    transport.check().await.unwrap();
    let large = [stored("a", 2_000_000)];
    assert_eq!(publish(&transport, &large).await, [Some(Outcome::Delivered)]);
    server.cli(&["CONFIG", "SET", "proto-max-bulk-len", "1048576"]);
    transport.check().await.unwrap();
    assert!(transport.validate(&large[0].message).is_err());
    assert!(class(&publish(&transport, &large).await[0]).starts_with("rejected"));
    server.cli(&["CONFIG", "SET", "proto-max-bulk-len", "536870912"]);
    transport.check().await.unwrap();
    assert_eq!(publish(&transport, &large).await, [Some(Outcome::Delivered)]);
}
