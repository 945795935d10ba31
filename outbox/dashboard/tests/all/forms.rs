//! Forms that were not sent by this page: from other sites, other sessions, and by those who only
//! look.

use outbox::admin::{Filter, View};
use outbox::{Admin, Route};
use outbox_dashboard::{Access, User};

use crate::world::{Browser, PAGES, World};

/// Operations that would change the full outbox.
const OPERATIONS: [&str; 10] = [
    "op=requeue&route=default",
    "op=purge&route=default",
    "op=replay&route=default",
    "op=cancel&route=default",
    "op=hold&topic=orders&key=waiting",
    "op=release&topic=orders&key=held",
    "op=skip&topic=orders&key=failing",
    "op=discard&topic=orders&key=held",
    "op=pause&route=default",
    "op=resume&route=default",
];

/// All that a forged operation could change.
async fn state(world: &World) -> (Vec<usize>, Vec<bool>, usize, bool) {
    let mut numbers = Vec::new();
    for view in [View::Waiting, View::Parked, View::DeadLetters, View::History, View::Scheduled] {
        numbers.push(world.number(view).await);
    }
    let keys = world.store.failing_keys(&Filter::all_routes()).await.unwrap();
    let audit = world.store.audit(&Filter::all_routes()).await.unwrap().len();
    let routes = world.store.routes().await.unwrap();
    let paused = routes.iter().any(|status| status.route == Route::default() && status.paused.route);
    (numbers, keys.iter().map(|key| key.held).collect(), audit, paused)
}

fn form(operation: &str, token: &str) -> crate::world::Form {
    let fields = operation.split('&').map(|pair| pair.split_once('=').unwrap());
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    crate::world::Form { action: "/act".to_owned(), fields }.with("token", token)
}

async fn token(browser: &Browser) -> String {
    browser.get("/keys").await.is(200).form("Hold").field("token").to_owned()
}

#[tokio::test]
async fn another_site_can_send_nothing() {
    let world = World::full().await;
    let browser = world.browser();
    let (before, token) = (state(&world).await, token(&browser).await);
    let ours = "http://127.0.0.1:9464";
    for operation in OPERATIONS {
        let form = form(operation, &token);
        for headers in [
            &[("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")][..],
            &[("origin", "https://evil.example")],
            &[("origin", "null")],
            &[("origin", "http://127.0.0.1:9465")],
            &[("origin", ours), ("sec-fetch-site", "cross-site")],
            &[("origin", ours), ("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "none")],
            &[],
        ] {
            browser.send_from(&form, headers).await.is(403).says("cross-site");
        }
    }
    assert_eq!(state(&world).await, before);
}

#[tokio::test]
async fn a_form_of_our_own_page_is_taken_though_its_origin_is_hidden() {
    let world = World::full().await;
    let browser = world.browser();
    // As a browser sends it, where a proxy has added the referrer policy `no-referrer`.
    let hidden = [("origin", "null"), ("sec-fetch-site", "same-origin")];
    browser.send_from(&form(OPERATIONS[4], &token(&browser).await), &hidden).await.is(303);
    browser.send_from(&form(OPERATIONS[4], ""), &hidden).await.is(403).says("form-token");
}

#[tokio::test]
async fn a_token_of_another_session_or_none_does_nothing() {
    let world = World::full().await;
    let (ours, theirs) = (world.browser(), world.browser());
    let shared = ours.another();
    let (before, stolen) = (state(&world).await, token(&theirs).await);
    token(&shared).await;
    for operation in OPERATIONS {
        for token in [stolen.as_str(), "", "x", "AAAA"] {
            ours.send(&form(operation, token)).await.is(403).says("form-token");
        }
        // The token of another browser of the same dashboard.
        let token = token(&ours).await;
        shared.send(&form(operation, &token)).await.is(403).says("form-token");
    }
    assert_eq!(state(&world).await, before);
}

#[tokio::test]
async fn a_token_is_of_the_visitor_who_got_the_page() {
    let world = World::full().await;
    let access = Access::proxy("x-user", ["127.0.0.0/8"], ["ann", "eve"]).unwrap();
    let mut browser = Browser::of(world.builder().access(access).build()).with("x-user", "ann");
    let token = token(&browser).await;
    browser.headers = vec![("x-user", "eve".to_owned())];
    let before = state(&world).await;
    browser.send(&form(OPERATIONS[1], &token)).await.is(403).says("form-token");
    assert_eq!(state(&world).await, before);
    browser.headers = vec![("x-user", "ann".to_owned())];
    browser.send(&form(OPERATIONS[1], &token)).await.is(303);
    assert_ne!(state(&world).await, before);
}

#[tokio::test]
async fn those_who_look_have_no_button_and_can_send_none() {
    let world = World::full().await;
    let access = Access::tokens([User::read_only("bob", "reader-secret-22")]).unwrap();
    let browser = Browser::of(world.builder().access(access).build());
    let browser = browser.with("authorization", "Bearer reader-secret-22");
    let id = world.view(View::DeadLetters).await[0].stored.message.id;
    let more = [
        format!("/message?id={id}"),
        "/key?topic=orders&key=failing".to_owned(),
        "/messages?view=history".to_owned(),
    ];
    let page = browser.get("/").await.is(200);
    let token = page.form("Log out").field("token").to_owned();
    for path in PAGES.iter().map(|path| (*path).to_owned()).chain(more) {
        browser.get(&path).await.is(200).hides("/act\"").hides("/confirm").hides("checkbox");
    }
    let before = state(&world).await;
    for operation in OPERATIONS {
        browser.send(&form(operation, &token)).await.is(403).says("bob is a reader, and may change nothing");
        browser
            .get(&format!("/confirm?{operation}"))
            .await
            .is(403)
            .says("bob is a reader, and may change nothing");
    }
    assert_eq!(state(&world).await, before);
}

#[tokio::test]
async fn a_large_form_is_refused() {
    let world = World::full().await;
    let browser = world.browser();
    let token = token(&browser).await;
    let before = state(&world).await;
    let large = form(OPERATIONS[1], &token).with("text", &"x".repeat(100_000));
    browser.send(&large).await.is(413);
    assert_eq!(state(&world).await, before);
}

#[tokio::test]
async fn a_result_is_shown_to_its_session_only() {
    let world = World::full().await;
    let browser = world.browser();
    let sent = browser.send(&form(OPERATIONS[4], &token(&browser).await)).await.is(303);
    browser.get(&sent.location()).await.says("Held the key waiting of orders.");
    world.browser().get(&sent.location()).await.is(200).hides("Held the key");
    browser.get("/?did=Call+0900").await.is(200).hides("Call 0900");
}
