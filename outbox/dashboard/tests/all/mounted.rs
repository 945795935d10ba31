//! The dashboard within another service, and its charts.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use outbox::memory::MemoryTransport;
use outbox::relay::ReasonKind;
use outbox::{AdminExt, Relay, Store};

use crate::world::{Browser, World};

#[tokio::test]
async fn a_nested_dashboard_has_its_own_paths() {
    let world = World::full().await;
    let service =
        Router::new().route("/", get(|| async { "the shop" })).nest("/ops/outbox", world.builder().build());
    let browser = Browser::of(service);
    browser.get("/").await.is(200).says("the shop");
    let page = browser.get("/ops/outbox").await.is(200).says("\"/ops/outbox/assets/style.css\"");
    let cookie = page.headers["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("; Path=/ops/outbox;"), "{cookie}");
    assert_eq!(page.link("Dead letters"), "/ops/outbox/dead");
    browser.get("/ops/outbox/assets/style.css").await.is(200);
    let dead = browser.get("/ops/outbox/dead").await.is(200);
    let asks = browser.get(&dead.link("Purge all")).await.is(200);
    let sent = browser.send(&asks.form("Purge").with_action("/ops/outbox/act")).await.is(303);
    assert!(sent.location().starts_with("/ops/outbox/dead?did="), "{}", sent.location());
    browser.get(&sent.location()).await.is(200).says("Purged 1 dead letter.");
}

#[tokio::test]
async fn behind_a_proxy_that_removes_a_path_links_have_it() {
    let world = World::new();
    let dashboard = world.builder().base_path("/ops/").origin("https://ops.example.com").build();
    let page = Browser::of(dashboard).get("/keys").await.is(200);
    assert_eq!(page.link("Keys"), "/ops/keys");
}

/// The relay's own reasons do not repeat those that the page shows with a link.
#[tokio::test(start_paused = true)]
async fn reasons_of_the_relay_are_shown_once() {
    let world = World::full().await;
    let relay = Relay::builder(world.store.clone(), MemoryTransport::new()).start().await.unwrap();
    world.store.pause(&outbox::Route::default(), None).await.unwrap();
    let browser = Browser::of(world.builder().relay(relay.observer().clone()).build());
    // A heartbeat has read what is paused, and the maintenance has counted.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let kinds: Vec<ReasonKind> = relay.health().reasons.into_iter().map(|reason| reason.kind).collect();
    assert!(kinds.contains(&ReasonKind::Paused) && kinds.contains(&ReasonKind::DeadLetters), "{kinds:?}");
    let page = browser.get("/").await.is(200).says("1 dead letter").says("the route is paused");
    page.hides("paused by an operator").hides("waiting for an operator: ");
}

#[tokio::test]
async fn charts_have_samples_and_the_figures_of_the_relay() {
    let world = World::new();
    let transport = MemoryTransport::builder().consumer("orders", "test").confirm_on_enqueue().build();
    let relay = Relay::builder(world.store.clone(), transport).start().await.unwrap();
    world.order("a").await;
    let dashboard =
        world.builder().relay(relay.observer().clone()).sample_every(Duration::from_secs(1)).build();
    let browser = Browser::of(dashboard);
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let page = browser
            .get("/")
            .await
            .is(200)
            .says("Delivered by this relay")
            .says("From append to confirmation");
        if page.body.contains("<svg") && relay.stats().settled == 1 {
            break;
        }
        assert!(tokio::time::Instant::now() < limit, "no sample came: {}", page.body);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    browser.get("/?span=24h").await.is(200).says("Last 24 hours");
    browser.get("/settings").await.is(200).says("Relay of this process").says(&relay.id().to_string());
    browser.get("/relays").await.is(200).says("this process");
    assert!(relay.stop(Duration::from_secs(60)).await);
    assert_eq!(world.store.backlog(&outbox::Route::default()).await.unwrap().pending, 0);
}

#[tokio::test]
async fn settings_are_shown_without_secrets() {
    let world = World::new();
    let builder = world.builder().title("shop").setting("store", "postgres://app:s3cret@db/shop");
    let browser = Browser::of(builder.redact(|text| text.replace("s3cret", "***")).build());
    browser
        .get("/settings")
        .await
        .is(200)
        .says("postgres://app:***@db/shop")
        .hides("s3cret")
        .says("shop</a>");
}
