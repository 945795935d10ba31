//! Every page, of an empty outbox and of a full one.

use std::time::Duration;

use outbox::admin::View;

use crate::world::{PAGES, World};

#[tokio::test]
async fn every_page_of_an_empty_outbox_says_what_is_normal() {
    let browser = World::new().browser();
    let empty = [
        ("/", "Nothing waits for long, but no relay is running."),
        ("/keys", "No key fails or is held."),
        ("/dead", "No dead letters."),
        ("/causes", "No dead letters."),
        ("/messages", "No message waits."),
        ("/messages?view=parked", "No message is parked."),
        ("/messages?view=history", "The history is empty."),
        ("/scheduled", "No message is scheduled."),
        ("/relays", "No relay has served this route lately."),
        ("/topics", "No topic of this route has messages that wait."),
        ("/audit", "No operation is recorded."),
        ("/settings", "this machine only"),
    ];
    for (path, text) in empty {
        browser.get(path).await.is(200).says(text);
    }
}

#[tokio::test]
async fn every_page_of_a_full_outbox_shows_it() {
    let world = World::full().await;
    let browser = world.browser();
    browser.get("/").await.is(200).says("1 held key").says("1 dead letter").says(">Scheduled<");
    browser.get("/").await.says("failing, and being retried: ");
    browser.get("/keys").await.is(200).says("no such column: total").says("retrying").says("held");
    browser.get("/dead").await.is(200).says("order 17: no such column").says("exhausted");
    browser.get("/causes").await.is(200).says("order #: no such column");
    browser.get("/messages").await.is(200).says("waiting").hides("past");
    browser.get("/messages?view=parked").await.is(200).says("failing");
    browser.get("/messages?view=history").await.is(200).says("past");
    browser.get("/scheduled").await.is(200).says("later");
    browser.get("/relays").await.is(200).says("relay-1").says("live").says("bucket 255");
    browser.get("/topics").await.is(200).says("orders").says("publishing");
}

#[tokio::test]
async fn relays_that_do_not_reach_their_broker_need_attention() {
    let world = World::new();
    let browser = world.browser();
    world.serve("shop-1", "default", true).await;
    browser.get("/").await.is(200).says("Everything flows. Nothing needs attention.");
    browser.get("/key?topic=orders&key=a").await.is(200).says("The key flows");
    world.serve("shop-2", "default", false).await;
    // This one gives way to a newer program.
    world.serve("billing", "inbox/billing", false).await;
    let page = browser.get("/").await.is(200).says("the broker is unavailable to the relay");
    page.says(">shop-2</bdi>").hides("billing</bdi></a> (for").hides("Everything flows");
    let world = World::new();
    world.serve("shop-1", "default", false).await;
    world.browser().get("/key?topic=orders&key=a").await.is(200).says("does not reach the broker");
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_is_gone_has_no_color_of_a_bucket_and_no_transport() {
    let world = World::new();
    world.serve("shop-1", "default", true).await;
    tokio::time::advance(Duration::from_secs(700)).await;
    let page = world.browser().get("/relays").await.is(200).says("gone").says("shop-1");
    page.says("swatch none").hides(">available<");
}

/// Nothing waits for long yet, but it would.
#[tokio::test]
async fn messages_that_no_relay_owns_need_attention() {
    let world = World::new();
    world.order("waiting").await;
    world.browser().get("/").await.is(200).says("no relay owns ").says(">1 bucket</a> with messages.");
}

#[tokio::test(start_paused = true)]
async fn old_messages_behind_a_failing_key_are_not_called_the_oldest() {
    let world = World::new();
    let failing = world.order("failing").await;
    world.fail(failing, "no such column: total", false).await;
    tokio::time::advance(Duration::from_secs(120)).await;
    let browser = world.browser();
    browser
        .get("/")
        .await
        .says("the oldest message of failing keys has waited for")
        .hides("the oldest message has");
    world.order("waiting").await;
    tokio::time::advance(Duration::from_secs(120)).await;
    browser.get("/").await.says("the oldest message has waited for").hides("message of failing keys");
}

#[tokio::test]
async fn a_key_has_its_timeline_and_both_errors() {
    let world = World::full().await;
    let page = world.browser().get("/key?topic=orders&key=failing").await.is(200);
    let page = page.says("no answer").says("no such column: total").says("was appended; it is parked");
    page.says("next try, number 4").says("The first message of the key fails.");
    let page = world.browser().get("/key?topic=orders&key=dead").await.is(200);
    page.says("became a dead letter: exhausted").says("left a gap").hides(">Release");
    world.browser().get("/key?topic=orders&key=other").await.is(200).says("neither fails nor is held");
    world.browser().get("/key?topic=orders").await.is(400).says("topic or key is missing");
}

#[tokio::test]
async fn a_key_that_an_operator_released_tells_no_error() {
    let world = World::full().await;
    let browser = world.browser();
    browser.press("/key?topic=orders&key=waiting", "Hold").await.says("An operator holds the key.");
    browser.press("/key?topic=orders&key=waiting", "Release: try again now").await;
    browser
        .get("/key?topic=orders&key=waiting")
        .await
        .says("an operator released the key")
        .hides("none recorded")
        .hides("held by an operator");
}

#[tokio::test]
async fn pauses_need_attention() {
    let world = World::full().await;
    let browser = world.browser();
    browser.press("/topics", "Pause").await;
    browser.get("/").await.is(200).says("the topic orders is paused");
    browser.get("/key?topic=orders&key=waiting").await.says("Publishing is paused").hides("The key flows");
    browser.press("/topics", "Pause the route").await;
    browser.get("/").await.is(200).says("the route is paused").hides("the topic orders is paused");
}

#[tokio::test]
async fn a_message_is_shown_wherever_it_is() {
    let world = World::full().await;
    let browser = world.browser();
    for view in [View::Waiting, View::Parked, View::DeadLetters, View::History, View::Scheduled] {
        let id = world.view(view).await[0].stored.message.id;
        let page = browser.get(&format!("/message?id={id}")).await.is(200);
        // A number of any length stays as it was written.
        page.says("acme-secret").says("&quot;total&quot;: 12345678901234567890").says(&id.to_string());
    }
    let missing = outbox::MessageId::new();
    browser.get(&format!("/message?id={missing}")).await.is(404).says(&missing.to_string());
    browser.get("/message?id=12").await.is(400).says("is not the id of a message");
}

#[tokio::test]
async fn first_and_last_error_of_a_dead_letter_are_compared() {
    let world = World::full().await;
    let id = world.view(View::DeadLetters).await[0].stored.message.id;
    let page = world.browser().get(&format!("/message?id={id}")).await.is(200);
    page.says("First error").says("<mark>[timeout] no answer</mark>").says("Last error");
}

#[tokio::test]
async fn lists_are_searched_and_filtered() {
    let world = World::new();
    for number in 0..4 {
        let id = world.order(&format!("key-{number}")).await;
        world.bury(id, if number % 2 == 0 { "no such column" } else { "constraint violated" }).await;
    }
    let browser = world.browser();
    browser
        .get("/dead?text=COLUMN")
        .await
        .is(200)
        .says("key-0")
        .says("key-2")
        .hides("key-1")
        .says("4 dead letters searched");
    browser.get("/dead?key=key-3").await.is(200).says("key-3").hides("key-1");
    browser.get("/dead?since=1h").await.says("key-0");
    browser.get("/dead?before=1h").await.says("No dead letter fits the filter.");
    browser.get("/dead?since=noon").await.is(400).says("noon");
    let causes = browser.get("/causes").await.is(200);
    let one = browser.get(&causes.link("2")).await.is(200);
    assert_ne!(one.body.contains("key-0"), one.body.contains("key-1"), "one cause of two");
    browser.get("/messages?view=other").await.is(404).says("choose waiting, parked or history");
}

#[tokio::test]
async fn an_unknown_page_is_a_page_too() {
    let browser = World::new().browser();
    browser.get("/nothing").await.is(404).says("there is no page").says("Overview");
    browser.get("/act").await.is(404);
    browser.get("/assets/nothing").await.is(404);
}

#[tokio::test]
async fn assets_are_served_and_pages_load_nothing_else() {
    let world = World::full().await;
    let browser = world.browser();
    for path in PAGES {
        let page = browser.get(path).await.is(200);
        for attribute in [" src=\"", " href=\"", " action=\""] {
            for target in page.body.split(attribute).skip(1).map(|rest| rest.split('"').next().unwrap()) {
                let is_local = target == "#main" || (target.starts_with('/') && !target.starts_with("//"));
                assert!(is_local, "{path}: {attribute}{target}");
            }
        }
        assert_eq!(page.body.matches("<script").count(), 1, "{path}");
        for tag in page.body.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
            let names: Vec<&str> = tag.split("=\"").filter_map(|part| part.rsplit(' ').next()).collect();
            let is_name = |name: &&&str| !name.contains('"');
            let is_inline =
                names.iter().filter(is_name).any(|name| *name == "style" || name.starts_with("on"));
            assert!(!is_inline, "{path}: {tag}");
            // Browsers ignore the second of two.
            assert!(tag.matches(" class=").count() <= 1, "{path}: {tag}");
        }
    }
    for (path, kind) in
        [("style.css", "text/css"), ("live.js", "text/javascript"), ("icon.svg", "image/svg+xml")]
    {
        let asset = browser.get(&format!("/assets/{path}")).await.is(200);
        assert!(asset.headers["content-type"].to_str().unwrap().starts_with(kind));
        assert!(
            !asset.body.replace("http://www.w3.org/2000/svg", "").contains("http"),
            "{path} loads something"
        );
    }
}
