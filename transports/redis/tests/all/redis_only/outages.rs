//! Redis goes away, and comes back.

use std::time::Duration;

use outbox_contract::backend::{Outcome, Transport};
use outbox_servers::{OrSkip as _, Proxy, Redis, RedisServer};
use outbox_transport_redis::Start;
use tokio::time::sleep;

use crate::redis_only::support::{
    EVERY, Log, PATIENCE, acknowledge, at, builder, class, deliver, finish, id, messages, next_deliveries,
    publish, publish_within, subscribe, until,
};

fn proxy(server: &RedisServer) -> Proxy {
    Proxy::to(server.url().strip_prefix("redis://").unwrap())
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let transport = at("redis://127.0.0.1:1", "outbox").build().unwrap();
    let outcomes = publish(&transport, &messages(&["a"], 1)).await;
    assert_eq!(class(&outcomes[0]), "route unreachable");
    assert!(transport.check().await.unwrap_err().is_retryable());
}

/// P2: what was confirmed before the kill and what was sent while the server was away arrives, in
/// order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_comes_back_with_everything_it_confirmed() {
    for wish in [Redis::newest(), Redis::valkey()] {
        let wish = wish.config("appendonly yes").config("appendfsync always");
        let Some(server) = wish.start().or_skip() else { return };
        let transport = builder(&server).build().unwrap();
        let reader = subscribe(&transport, "reader").await;
        let all = messages(&["a", "b", "c"], 300);
        deliver(&transport, &all[..100]).await;
        let sending = tokio::spawn({
            let (transport, rest) = (transport.clone(), all[100..].to_vec());
            async move { deliver(&transport, &rest).await }
        });
        for _ in 0..3 {
            server.kill();
            let down = publish(&transport, &messages(&["z"], 1)).await;
            assert!(!down.contains(&Some(Outcome::Delivered)), "{down:?}");
            server.start_again();
            until("it is reached again", async || transport.check().await.is_ok()).await;
        }
        finish(&*reader, &all).await;
        sending.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_lose_and_reorder_nothing() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let (proxy, prefix) = (proxy(&server), server.fresh_prefix());
    let transport = at(&proxy.url(&server.url()), &prefix).build().unwrap();
    let reader = subscribe(&transport, "reader").await;
    let all = messages(&["a", "b", "c", "d"], 2_000);
    let sending = tokio::spawn({
        let (transport, all) = (transport.clone(), all.clone());
        async move { deliver(&transport, &all).await }
    });
    let (mut log, mut cuts) = (Log::default(), 0);
    while !log.has_all(&all) {
        let came = next_deliveries(&*reader).await;
        log.write_down(&came);
        // In the middle of it, with deliveries in hand and others on their way.
        if cuts < 10 && log.len() < all.len() {
            proxy.cut();
            cuts += 1;
        }
        acknowledge(&*reader, &came).await;
    }
    log.assert_in_order(&all);
    sending.await.unwrap();
    assert!(cuts > 0, "everything came at once");
}

/// The server did what it was asked to, and its answer was lost: that is not delivered, and the
/// next try does not wait behind it.
#[tokio::test]
async fn an_answer_that_is_swallowed_confirms_nothing_and_holds_nothing_up() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let (proxy, prefix) = (proxy(&server), server.fresh_prefix());
    let transport = at(&proxy.url(&server.url()), &prefix).units(1).build().unwrap();
    deliver(&transport, &messages(&["a"], 1)).await;
    proxy.swallow_answers();
    let sent = messages(&["a"], 3);
    let outcomes = publish_within(&transport, &sent, Duration::from_millis(300)).await;
    assert!(!outcomes.contains(&Some(Outcome::Delivered)), "{outcomes:?}");
    let length = async || {
        // More when a slow machine made the first one go out twice.
        server.cli(&["XLEN", &format!("{prefix}:{{orders:0}}")]).parse::<usize>().unwrap() >= 4
    };
    until("it was appended all the same", length).await;
    proxy.pass();
    deliver(&transport, &sent).await;
    let reader = subscribe(&transport, "reader").await;
    finish(&*reader, &sent).await;
}

#[tokio::test]
async fn who_receives_is_told_while_redis_is_away_and_goes_on_by_itself() {
    let Some(server) = Redis::newest().config("appendonly yes").start().or_skip() else { return };
    let transport = builder(&server).build().unwrap();
    let reader = subscribe(&transport, "reader").await;
    let before = messages(&["a"], 5);
    deliver(&transport, &before).await;
    finish(&*reader, &before).await;
    server.stop();
    let told = async {
        loop {
            match reader.next().await {
                Err(error) => return error,
                Ok(_) => sleep(EVERY).await,
            }
        }
    };
    let error = tokio::time::timeout(PATIENCE, told).await.expect("an error comes");
    assert!(error.is_retryable(), "{error}");
    server.start_again();
    let after = messages(&["a"], 5);
    deliver(&transport, &after).await;
    finish(&*reader, &after).await;
}

/// Everything is gone, the stream and its group: what is published from then on comes.
#[tokio::test]
async fn a_flushed_server_is_set_up_again() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let transport = builder(&server).build().unwrap();
    let reader = subscribe(&transport, "reader").await;
    let before = messages(&["a", "b"], 5);
    deliver(&transport, &before).await;
    finish(&*reader, &before).await;
    server.cli(&["FLUSHALL"]);
    let after = messages(&["a", "b"], 5);
    deliver(&transport, &after).await;
    finish(&*reader, &after).await;
}

/// P9: what a consumer had come to was lost with its group. It goes on by itself, and not in
/// silence.
#[tokio::test]
async fn who_receives_is_told_of_a_group_that_was_lost() {
    let Some(server) = Redis::newest().shared().or_skip() else { return };
    let prefix = server.fresh_prefix();
    let transport = at(&server.url(), &prefix).units(1).build().unwrap();
    let reader = subscribe(&transport, "reader").await;
    let before = messages(&["a"], 5);
    deliver(&transport, &before).await;
    finish(&*reader, &before).await;
    server.cli(&["XGROUP", "DESTROY", &format!("{prefix}:{{orders:0}}"), "reader"]);
    let told = async {
        loop {
            match reader.next().await {
                Err(error) if error.to_string().contains("was lost") => return error,
                _ => sleep(EVERY).await,
            }
        }
    };
    let error = tokio::time::timeout(PATIENCE, told).await.expect("an error comes");
    assert!(error.is_retryable() && error.to_string().contains("orders/0"), "{error}");
    let after = messages(&["a"], 5);
    deliver(&transport, &after).await;
    finish(&*reader, &after).await;
}

/// A consumer that has begun long ago begins nowhere anew: what was published before its group was
/// made again is not skipped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_was_lost_begins_with_what_is_there() {
    let Some(server) = Redis::newest().start().or_skip() else { return };
    let (proxy, prefix) = (proxy(&server), server.fresh_prefix());
    let near = at(&server.url(), &prefix).build().unwrap();
    deliver(&near, &messages(&["a", "b"], 5)).await;
    let far = at(&proxy.url(&server.url()), &prefix).start(Start::Newest).build().unwrap();
    let reader = subscribe(&far, "reader").await;
    let before = messages(&["a", "b"], 5);
    deliver(&near, &before).await;
    let came = next_deliveries(&*reader).await;
    assert!(before.iter().any(|it| it.message.id == id(&came[0])), "it began with what is newest");
    acknowledge(&*reader, &came).await;
    // It learns of it when the new messages are there.
    proxy.hold();
    server.cli(&["FLUSHALL"]);
    let after = messages(&["a", "b"], 5);
    deliver(&near, &after).await;
    proxy.pass();
    finish(&*reader, &after).await;
}
