//! Text that others wrote: markup, terminal escapes, characters that turn or hide text, great
//! lengths.

use outbox::admin::View;
use outbox::message::Outgoing;
use outbox::{Message, Route};

use crate::world::{PAGES, World, encoded};

const MARKUP: &str = "<script>alert('1')</script>\"><img src=x onerror=alert(1)>";
const TURNED: &str = "a\u{202e}cod\u{200b}\u{2066}";

async fn hostile() -> World {
    let world = World::new();
    for text in [MARKUP, TURNED] {
        let message = || {
            let payload = format!("{text}\u{1b}[2J");
            Message::new(text, text)
                .unwrap()
                .with_key(text)
                .unwrap()
                .with_content_type("text/html")
                .with_payload(payload.into_bytes())
                .with_header("x-note", text)
                .unwrap()
        };
        let ids: Vec<_> = (0..3).map(|_| Outgoing::from(message())).collect();
        let ids = world.append(ids).await;
        world.bury(ids[0], &format!("{text}\u{1b}]0;title\u{7}")).await;
        world.deliver(ids[2]).await;
        world.fail(ids[1], text, false).await;
        let due = outbox::Timestamp::now().plus(std::time::Duration::from_secs(9_000));
        let route = Route::new(text).unwrap();
        world.append(vec![Outgoing::from(message()).due_at(due), Outgoing::from(message()).by(route)]).await;
    }
    world
}

/// Asserts that nothing of a page is obeyed or hidden. Fields of forms hold the text itself,
/// quoted: they are sent as they are.
#[track_caller]
fn safe(path: &str, body: &str) {
    let mut parts = body.split(" value=\"");
    let mut body = parts.next().unwrap().to_owned();
    parts.for_each(|part| body.push_str(part.split_once('"').unwrap().1));
    assert_eq!(body.matches("<script").count(), 1, "{path}: {body}");
    assert!(!body.contains("<img"), "{path}: {body}");
    for char in ['\u{202e}', '\u{200b}', '\u{2066}', '\u{1b}', '\u{7}'] {
        assert!(!body.contains(char), "{path}: {char:?}");
    }
}

#[tokio::test]
async fn hostile_text_is_shown_and_does_nothing() {
    let world = hostile().await;
    let browser = world.browser();
    let mut paths: Vec<String> = PAGES.iter().map(|path| (*path).to_owned()).collect();
    for view in [View::Waiting, View::Parked, View::DeadLetters, View::History, View::Scheduled] {
        paths.push(format!("/messages?view={}", view.name()));
        for listed in world.view(view).await {
            paths.push(format!("/message?view={}&id={}", view.name(), listed.stored.message.id));
        }
    }
    for text in [MARKUP, TURNED] {
        let text = encoded(text);
        paths.push(format!("/key?topic={text}&key={text}"));
        paths.push(format!("/confirm?op=discard&topic={text}&key={text}&back=/{text}"));
        paths.push(format!("/confirm?op={text}"));
        paths.extend(["/dead", "/keys", "/messages", "/scheduled", "/audit", "/relays", "/topics"].map(|path| {
            format!("{path}?route={text}&topic={text}&key={text}&text={text}&cause={text}&view={text}&offset={text}&did={text}")
        }));
        paths.push(format!("/dead?since={text}&id={text}"));
        paths.push(format!("/{text}"));
    }
    for path in &paths {
        let answer = browser.get(path).await;
        assert!(!answer.status.is_server_error(), "{path}: {answer:#?}");
        safe(path, &answer.body);
    }
    browser.get("/dead").await.is(200).says("&lt;script&gt;").says("a\\u{202e}cod\\u{200b}");
}

#[tokio::test]
async fn hostile_keys_can_be_acted_on() {
    let world = hostile().await;
    let browser = world.browser();
    for text in [MARKUP, TURNED] {
        let path = format!("/key?topic={0}&key={0}", encoded(text));
        let page = browser.press(&path, "Discard all parked messages").await;
        safe(&path, &page.body);
        page.says("Discarded the messages of 1 key.");
    }
    assert!(world.failing().await.is_none());
}

#[tokio::test]
async fn a_great_payload_is_shown_in_part() {
    let world = World::new();
    let text = format!("{}{}", MARKUP, "\u{202e}x".repeat(300_000));
    let json = format!("[{}1]", "[1],".repeat(250_000));
    let message = |kind: &str, payload: Vec<u8>| {
        let message = Message::new("large", "large").unwrap();
        Outgoing::from(message.with_content_type(kind).with_payload(payload))
    };
    let messages = vec![
        message("text/plain", text.into_bytes()),
        message("application/json", json.into_bytes()),
        message("x", vec![0xff; 1 << 20]),
    ];
    let browser = world.browser();
    for id in world.append(messages).await {
        let path = format!("/message?id={id}");
        let page = browser.get(&path).await.is(200).says("; the first ");
        assert!(page.body.len() < 1_000_000, "{} bytes", page.body.len());
        safe(&path, &page.body);
    }
}
