//! Access: who is admitted, and what others see.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use outbox::admin::View;
use outbox_dashboard::{Access, Role, User};

use crate::world::{Answer, Browser, PAGES, World};

const OPERATOR: &str = "operator-secret-1";
const READER: &str = "reader-secret-22";

fn users() -> [User; 2] {
    [User::operator("ann", OPERATOR), User::read_only("bob", READER)]
}

fn with(world: &World, access: Access) -> Browser {
    Browser::of(world.builder().access(access).build()).at(Some("203.0.113.7:1"))
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{name}:{password}")))
}

/// Asserts that an answer shows nothing of the outbox.
#[track_caller]
fn nothing(answer: Answer) {
    answer.hides("orders").hides("Dead letters").hides("-secret");
}

#[tokio::test]
async fn without_settings_only_this_machine_is_let_in() {
    let world = World::full().await;
    world.browser().get("/").await.is(200);
    world.browser().at(Some("[::1]:5")).get("/").await.is(200);
    world.browser().at(Some("[::ffff:127.0.0.1]:5")).get("/").await.is(200);
    for path in PAGES {
        nothing(world.browser().at(Some("203.0.113.7:1")).get(path).await.is(403).says("203.0.113.7"));
        nothing(world.browser().at(None).get(path).await.is(403).says("into_make_service_with_connect_info"));
        nothing(
            world
                .browser()
                .with("x-forwarded-for", "1.2.3.4")
                .get(path)
                .await
                .is(403)
                .says("a proxy has forwarded"),
        );
    }
}

#[tokio::test]
async fn a_name_that_leads_here_from_elsewhere_is_refused() {
    let world = World::full().await;
    let mut browser = world.browser();
    browser.host = "evil.example:9464";
    nothing(browser.get("/").await.is(403).says("is not a name of this machine"));
    browser.host = "localhost:9464";
    browser.get("/").await.is(200);
    let mut named = Browser::of(world.builder().origin("http://dash.test:9464").build());
    named.host = "dash.test:9464";
    named.get("/").await.is(200);
}

#[tokio::test]
async fn a_token_opens_and_nothing_else_does() {
    let world = World::full().await;
    let browser = with(&world, Access::tokens(users()).unwrap());
    nothing(browser.get("/").await.is(401));
    nothing(browser.another().with("authorization", bearer("operator-secret-2")).get("/").await.is(401));
    nothing(browser.another().with("authorization", basic("ann", OPERATOR)).get("/").await.is(401));
    browser
        .another()
        .with("authorization", bearer(OPERATOR))
        .get("/dead")
        .await
        .is(200)
        .says("operator")
        .says(">Requeue all<");
    browser
        .another()
        .with("authorization", bearer(READER))
        .get("/dead")
        .await
        .is(200)
        .says("read-only")
        .hides(">Requeue all<");
}

#[tokio::test]
async fn a_token_is_typed_into_a_form_and_forgotten_at_the_end() {
    let world = World::full().await;
    let browser = with(&world, Access::tokens(users()).unwrap()).with("accept", "text/html");
    let asked = browser.get("/dead?topic=orders").await.is(303);
    assert_eq!(asked.location(), "/login?next=%2Fdead%3Ftopic%3Dorders");
    let form = browser.get(&asked.location()).await.is(200).hides("orders.").form("Log in");
    browser.get("/assets/style.css").await.is(200);
    browser.get("/assets/style.css/more").await.is(404);
    browser.send(&form.clone().with("secret", "wrong-wrong-wrong")).await.is(401).says("is wrong");
    let logged_in = browser.send(&form.clone().with("secret", OPERATOR)).await.is(303);
    assert_eq!(logged_in.location(), "/dead?topic=orders");
    let cookie = logged_in.headers["set-cookie"].to_str().unwrap();
    assert!(cookie.contains("HttpOnly; SameSite=Strict") && !cookie.contains(OPERATOR), "{cookie}");
    let page = browser.get("/dead?topic=orders").await.is(200).says("ann");
    nothing(browser.another().get("/dead").await.is(303));

    let out = browser.send(&page.form("Log out")).await.is(303);
    assert_eq!(out.location(), "/login");
    assert!(out.headers["set-cookie"].to_str().unwrap().contains("Max-Age=0"), "{out:?}");
    browser.get("/dead").await.is(303);
    // A page that is still open.
    browser.send(&page.form("Log out")).await.is(401).says("href=\"/login\"");
    // The form of one browser is of no use in another.
    browser.another().send(&form.with("secret", OPERATOR)).await.is(403);
}

#[tokio::test]
async fn a_path_behind_the_login_stays_here() {
    let world = World::new();
    let browser = with(&world, Access::tokens(users()).unwrap());
    let form = browser.get("/login?next=//evil.example").await.is(200).form("Log in");
    let to = browser.send(&form.with("next", "https://evil.example").with("secret", OPERATOR)).await.is(303);
    assert_eq!(to.location(), "/");
}

#[tokio::test]
async fn who_fails_too_often_waits_also_with_the_right_secret() {
    let world = World::full().await;
    for (access, wrong, right) in [
        (Access::tokens(users()).unwrap(), bearer("wrong-wrong-wrong"), bearer(OPERATOR)),
        (Access::basic(users()).unwrap(), basic("ann", "wrong-wrong-wrong"), basic("ann", OPERATOR)),
    ] {
        let browser = with(&world, access);
        for _ in 0..5 {
            browser.another().with("authorization", wrong.clone()).get("/").await.is(401);
        }
        let refused = browser.another().with("authorization", right.clone()).get("/").await.is(429);
        let wait: u64 = refused.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((1..=11).contains(&wait), "{wait}");
        nothing(refused);
        browser.another().at(Some("198.51.100.9:1")).with("authorization", right).get("/").await.is(200);
    }
}

#[tokio::test]
async fn failures_of_the_form_count_too() {
    let world = World::new();
    let browser = with(&world, Access::tokens(users()).unwrap());
    let form = browser.get("/login").await.form("Log in").with("secret", "wrong-wrong-wrong");
    for _ in 0..5 {
        browser.send(&form).await.is(401);
    }
    browser.send(&form.with("secret", OPERATOR)).await.is(429).says("too many attempts");
}

#[tokio::test]
async fn a_name_and_a_password_open() {
    let world = World::full().await;
    let browser = with(&world, Access::basic(users()).unwrap());
    let refused = browser.get("/").await.is(401);
    assert!(refused.headers["www-authenticate"].to_str().unwrap().starts_with("Basic "));
    nothing(refused);
    for (name, password) in [("ann", READER), ("bob", OPERATOR), ("", OPERATOR), ("ann", "")] {
        nothing(browser.another().with("authorization", basic(name, password)).get("/").await.is(401));
    }
    let browser = with(&world, Access::basic(users()).unwrap());
    browser
        .another()
        .with("authorization", basic("ann", OPERATOR))
        .get("/dead")
        .await
        .is(200)
        .says(">Requeue all<");
    browser.with("authorization", basic("bob", READER)).get("/dead").await.is(200).hides(">Requeue all<");
}

#[tokio::test]
async fn a_header_counts_from_a_trusted_proxy_only() {
    let world = World::full().await;
    let access = || Access::proxy("x-user", ["10.0.0.0/8"], ["ann"]).unwrap();
    let proxy = || Browser::of(world.builder().access(access()).build()).at(Some("10.1.2.3:1"));
    proxy().with("x-user", "ann").get("/dead").await.is(200).says(">Requeue all<");
    proxy().with("x-user", "carl").get("/dead").await.is(200).says("carl").hides(">Requeue all<");
    nothing(proxy().get("/").await.is(401).says("x-user"));
    nothing(proxy().with("x-user", "carl").with("x-user", "ann").get("/").await.is(401));
    nothing(proxy().at(Some("203.0.113.7:1")).with("x-user", "ann").get("/").await.is(403));
    nothing(proxy().at(Some("127.0.0.1:1")).with("x-user", "ann").get("/").await.is(403));
    nothing(proxy().at(None).with("x-user", "ann").get("/").await.is(403));
}

#[tokio::test]
async fn payloads_are_for_their_role() {
    let world = World::full().await;
    let id = world.view(View::DeadLetters).await[0].stored.message.id;
    let path = format!("/message?id={id}");
    let browser = with(&world, Access::tokens(users()).unwrap());
    let reader = || browser.another().with("authorization", bearer(READER));
    reader().get(&path).await.is(200).says("hidden").hides("4111-secret").hides("acme-secret");
    browser
        .another()
        .with("authorization", bearer(OPERATOR))
        .get(&path)
        .await
        .says("4111-secret")
        .says("acme-secret");
    let open = world.builder().access(Access::tokens(users()).unwrap()).payloads_for(Role::ReadOnly).build();
    Browser::of(open).with("authorization", bearer(READER)).get(&path).await.says("4111-secret");
}

#[tokio::test]
async fn every_answer_tells_browsers_what_they_may_do() {
    let world = World::full().await;
    let ours = world.browser();
    let strange = world.browser().at(None);
    let paths = PAGES.into_iter().chain(["/nothing", "/settings", "/assets/style.css", "/confirm", "/login"]);
    for path in paths {
        for browser in [&ours, &strange] {
            let headers = browser.get(path).await.headers;
            let of = |name: &str| headers[name].to_str().unwrap().to_owned();
            let policy = of("content-security-policy");
            assert!(
                policy.starts_with("default-src 'none'; style-src 'self'; script-src 'self'"),
                "{policy}"
            );
            assert!(policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"), "{policy}");
            assert_eq!(of("x-frame-options"), "DENY");
            assert_eq!(of("x-content-type-options"), "nosniff");
            assert_eq!(
                (of("cache-control"), of("referrer-policy")),
                ("no-store".to_owned(), "same-origin".to_owned())
            );
        }
    }
}

#[tokio::test]
async fn no_secret_is_printed() {
    let world = World::new();
    let builder = world.builder().access(Access::basic(users()).unwrap());
    let printed = format!("{builder:?} {:?}", users());
    let printed = format!("{printed} {:?}", builder.build());
    assert!(!printed.contains("secret-1") && !printed.contains("secret-22"), "{printed}");
}
