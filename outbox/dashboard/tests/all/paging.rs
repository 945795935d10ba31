//! Pages of lists.

use outbox::AdminExt;
use outbox::admin::View;
use outbox::message::Outgoing;

use crate::world::{World, order};

/// Every list has both ends, and its pages keep the order.
#[tokio::test]
async fn every_list_shows_the_newest_first_if_asked() {
    let world = World::full().await;
    for at in 0..60 {
        world.order(&format!("k{at:02}")).await;
    }
    let browser = world.browser();
    let first = browser.get("/messages?order=newest").await.is(200).says("k59").says("k10").hides("k09");
    browser.get(&first.link("Next ›")).await.is(200).says("k09").hides("k10");
    for path in ["/keys", "/dead", "/scheduled", "/messages?view=parked", "/messages?view=history"] {
        let newest = format!("{path}{}order=newest", if path.contains('?') { '&' } else { '?' });
        let page = browser.get(&newest).await.is(200);
        page.says("<option value=\"newest\" selected>");
    }
    let keys = browser.get("/keys?order=newest").await.body;
    assert!(keys.find(">held<") < keys.find(">failing<"), "the key that failed last is first");
}

#[tokio::test]
async fn a_list_is_read_page_by_page_with_its_filter() {
    let world = World::new();
    let messages = (0..120).map(|number| Outgoing::from(order(&format!("k{number:03}")))).collect();
    world.append(messages).await;
    let browser = world.browser();
    let first = browser.get("/messages?topic=orders").await.is(200).says("k000").says("k049").hides("k050");
    let second = browser.get(&first.link("Next ›")).await.is(200).says("k050").says("k099").hides("k049");
    let third =
        browser.get(&second.link("Next ›")).await.is(200).says("k119").says("101–120").hides("Next ›");
    let back = browser.get(&third.link("‹ Previous")).await.is(200).says("k050");
    browser.get(&back.link("« First")).await.is(200).says("k000").says("value=\"orders\"");
}

#[tokio::test]
async fn a_search_goes_on_behind_what_was_found() {
    let world = World::new();
    let messages = (0..260).map(|number| Outgoing::from(order(&format!("k{}", number % 2)))).collect();
    for id in world.append(messages).await.into_iter().take(130) {
        world.deliver(id).await;
    }
    let browser = world.browser();
    let first = browser.get("/messages?view=history&text=k1").await.is(200).hides(">k0<");
    let second =
        browser.get(&first.link("Next ›")).await.is(200).says(">k1</bdi>").hides(">k0<").hides("Next ›");
    let rows = |body: &str| body.matches("data-name=\"Key\"").count();
    assert_eq!(rows(&first.body) + rows(&second.body), 65);
}

#[tokio::test]
async fn failing_keys_and_the_audit_have_pages() {
    let world = World::new();
    for number in 0..60 {
        let id = world.order(&format!("k{number:02}")).await;
        world.fail(id, "no", true).await;
    }
    let browser = world.browser();
    let first = browser.get("/keys").await.is(200).says("k49").hides("k50");
    browser.get(&first.link("Next ›")).await.is(200).says("k59").hides("k49");
    browser.press("/keys", "Release all").await.says("Released 60 keys.");
    let first = browser.get("/audit").await.is(200).says("k59");
    browser.get(&first.link("Next ›")).await.is(200).says("k00").hides("k59");
}

#[tokio::test]
async fn an_offset_behind_the_end_is_an_empty_page() {
    let world = World::full().await;
    let browser = world.browser();
    for path in ["/keys", "/dead", "/causes", "/messages", "/scheduled", "/audit"] {
        for offset in ["1000000000", "18446744073709551615", "-1", "x"] {
            browser.get(&format!("{path}?offset={offset}")).await.is(200);
        }
    }
    assert_eq!(world.number(View::DeadLetters).await, 1);
}

/// A list leads to each of its messages, or the page says that it may be there.
#[tokio::test]
async fn a_message_far_behind_in_a_backlog_is_found_or_may_be_there() {
    let store = outbox::sqlite::SqliteStore::in_memory().await.unwrap();
    let world = World::of(store);
    let messages = (0..20_001).map(|number| Outgoing::from(order(&format!("k{number}")))).collect();
    let ids = world.append(messages).await;
    let browser = world.browser();
    for number in [0, 9_999, 10_001, 20_000] {
        let path = format!("/message?view=waiting&id={}", ids[number]);
        browser.get(&path).await.is(200).says(&format!("k{number}<"));
    }
    let between = browser.get(&format!("/message?id={}", ids[10_000])).await.is(404);
    between.says("more messages wait than a search looks at").hides("it was delivered");
    world.deliver(ids[0]).await;
    browser.get(&format!("/message?id={}", ids[10_000])).await.is(200);
    browser.get(&format!("/message?id={}", outbox::MessageId::new())).await.is(404).says("it was delivered");
}

/// Routes beyond those of the overview are counted, and their own pages tell the truth.
#[tokio::test]
async fn routes_that_are_not_shown_are_counted() {
    let world = World::new();
    for number in 0..40 {
        let route = outbox::Route::new(format!("spur-{number:02}")).unwrap();
        world.store.pause(&route, None).await.unwrap();
    }
    let browser = world.browser();
    browser.get("/").await.is(200).says("spur-30").hides("spur-31").says("and 9 others not");
    browser.get("/relays").await.is(200).says("spur-30").hides("spur-31").says("and 9 more");
    let topics = browser.get("/topics?route=spur-39").await.is(200);
    topics.says("Resume the route").says(">paused<").hides(">publishing<");
}
