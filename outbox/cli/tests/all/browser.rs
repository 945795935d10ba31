//! The dashboard in a real browser: Chromium, driven by its WebDriver. Requests that tests build by
//! hand have the headers that a browser is believed to send; here it sends its own.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use outbox::Exhausted;
use outbox_servers::skip;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::outbox::{DONE, Daemon, Outbox, PATIENCE, until};
use crate::world;

/// Arguments of a browser that shows nothing, and asks nobody.
const ARGUMENTS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// Name of an element in the answers of a WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Returns the first text that is outside of the window, or of the card that it belongs to.
const WIDE: &str = "
    const outside = (inner, outer) => inner.width > 0 && (inner.right > outer.right + 1 || inner.bottom > outer.bottom + 1);
    const box = (it) => it.getBoundingClientRect();
    const page = { right: innerWidth, bottom: Infinity };
    const scrolls = '.payload, .scroll:not(:has(.list))';
    for (const it of document.querySelectorAll('main *')) {
        const card = it.closest('.list tr, .chart');
        if (!it.closest(scrolls) && !it.closest('thead') && (outside(box(it), page) || card && outside(box(it), box(card)))) {
            return it.textContent || it.outerHTML;
        }
    }
    return document.documentElement.scrollWidth > innerWidth ? 'the page' : '';";

/// A browser of a phone's width, with an empty profile.
struct Chromium {
    driver: Child,
    port: u16,
    session: String,
    site: String,
    /// Keeps the profile.
    _folder: TempDir,
    /// Pages that were wider than the window.
    wide: RefCell<Vec<String>>,
}

impl Chromium {
    /// Starts a browser, if there is one.
    fn start(site: &str) -> Option<Self> {
        let start = Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).spawn();
        let Ok(mut driver) = start else {
            skip("chromedriver is not installed (Debian: chromium and chromium-driver)");
            return None;
        };
        let said = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let port = said.into_iter().find_map(|line| {
            line.split("successfully on port ").nth(1)?.trim_end_matches('.').parse::<u16>().ok()
        });
        let folder = tempfile::tempdir().unwrap();
        let (session, wide) = (String::new(), RefCell::default());
        let mut browser =
            Self { driver, port: port.unwrap(), session, site: site.to_owned(), _folder: folder, wide };
        let profile = format!("--user-data-dir={}", browser._folder.path().display());
        let arguments: Vec<&str> = ARGUMENTS.iter().copied().chain([profile.as_str()]).collect();
        let phone = json!({ "deviceMetrics": { "width": 390, "height": 844, "pixelRatio": 1.0 } });
        let options = json!({ "args": arguments, "mobileEmulation": phone });
        let wanted = json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options } } });
        let began = browser.ask("POST", "/session", &wanted);
        began["sessionId"].as_str().unwrap().clone_into(&mut browser.session);
        Some(browser)
    }

    /// Sends a command to the driver, and returns its answer.
    #[track_caller]
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            answer.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            if let Some(told) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = told.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).unwrap();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert!(answer["value"]["error"].is_null(), "{method} {path}: {answer}");
        answer["value"].clone()
    }

    #[track_caller]
    fn command(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("/session/{}{path}", self.session), body)
    }

    #[track_caller]
    fn element(&self, xpath: &str) -> String {
        let found = self.command("/element", &json!({ "using": "xpath", "value": xpath }));
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    /// Clicks on what leads to another page, and waits for it: a click returns before a form is
    /// sent.
    #[track_caller]
    fn click(&self, xpath: &str) {
        self.script("window.isOld = true");
        self.click_here(xpath);
        let is_there = "return window.isOld !== true && document.readyState === 'complete'";
        until("the next page is there", || self.script(is_there) == true);
    }

    /// Clicks on what changes only the page itself.
    #[track_caller]
    fn click_here(&self, xpath: &str) {
        self.command(&format!("/element/{}/click", self.element(xpath)), &json!({}));
    }

    #[track_caller]
    fn write(&self, xpath: &str, text: &str) {
        self.command(&format!("/element/{}/value", self.element(xpath)), &json!({ "text": text }));
    }

    fn script(&self, script: &str) -> Value {
        self.command("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Opens a page, and sees whether it fits into the window.
    #[track_caller]
    fn open(&self, path: &str) {
        self.command("/url", &json!({ "url": format!("{}{path}", self.site) }));
        let wide = self.script(WIDE);
        if wide != "" {
            self.wide.borrow_mut().push(format!("{path}: {wide}"));
        }
    }

    /// Presses a button of a page, confirms what it asks, and returns what is told.
    #[track_caller]
    fn press(&self, path: &str, button: &str) -> String {
        self.open(path);
        self.click(&format!("//main//*[self::a or self::button][normalize-space()='{button}']"));
        self.confirm()
    }

    /// Confirms what a page asks, if it does, and returns what is told.
    #[track_caller]
    fn confirm(&self) -> String {
        if self.script("return document.querySelector('.confirm form') !== null") == true {
            self.click("//div[@class='confirm']//form//button");
        }
        let told = "return (document.querySelector('.notice') ?? document.body).innerText";
        self.script(told).as_str().unwrap().to_owned()
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.ask("DELETE", &format!("/session/{}", self.session), &Value::Null);
        }
        let _ended = self.driver.kill();
        let _reaped = self.driver.wait();
    }
}

#[test]
fn a_browser_logs_in_and_its_buttons_work_on_a_phone() {
    const SECRET: &str = "operator-secret-1";
    let outbox = Outbox::sqlite();
    for (key, dead) in [("dead", 1), ("other", 2), ("held", 2)] {
        outbox.publish(&["orders", "--key", key, "--type", "poison"]);
        let exhausted = if key == "held" { Exhausted::Hold } else { Exhausted::DeadLetter };
        world::relay(&outbox, exhausted, |backlog| backlog.dead == dead && backlog.pending == 0);
    }
    outbox.publish(&["orders", "--key", "later", "--due", "2h"]);
    let mut command = outbox.command(&["dashboard", "--http", "0"]);
    command.env("OUTBOX_DASHBOARD_TOKEN", SECRET);
    let daemon = Daemon::of(command);
    let site = format!("http://{}", daemon.started["http"].as_str().unwrap());
    let Some(browser) = Chromium::start(&site) else { return };

    browser.open("/topics");
    browser.write("//input[@name='secret']", SECRET);
    browser.click("//button");
    assert_eq!(browser.script("return location.pathname"), "/topics", "where the visitor wanted to go");
    browser.open("/dead");
    for letter in [2, 1] {
        browser.click_here(&format!("(//input[@type='checkbox'])[{letter}]"));
    }
    // The second one is not chosen any more.
    browser.click_here("(//input[@type='checkbox'])[2]");
    browser.click("//form[@class='choose']//button[normalize-space()='Requeue']");
    assert_eq!(
        browser.script("return document.querySelector('.question').innerText"),
        "Requeue 1 dead letter?"
    );
    assert!(browser.confirm().contains("Requeued 1 dead letter."));
    for (path, button, said) in [
        ("/dead", "Requeue", "no message is selected"),
        ("/dead", "Requeue all", "Requeued 1 dead letter."),
        ("/key?topic=orders&key=held", "Release: try again now", "Released 1 key."),
        ("/key?topic=orders&key=held", "Hold", "Held the key held of orders."),
        ("/key?topic=orders&key=held", "Skip the first message", "Skipped the first message of 1 key."),
        ("/causes", "Purge", "Purged 1 dead letter."),
        ("/scheduled", "Cancel all", "Canceled 1 scheduled message."),
        ("/topics", "Pause the route", "Paused the route default."),
        ("/topics", "Resume the route", "Resumed the route default."),
    ] {
        let told = browser.press(path, button);
        assert!(told.contains(said), "{button} on {path}: {told}");
    }
    for path in ["/", "/keys", "/messages", "/relays", "/audit", "/settings"] {
        browser.open(path);
    }
    // No card has a label without a value, which would hang out of it.
    let empty =
        "return [...document.querySelectorAll('main td:empty')].filter((it) => it.offsetHeight).length";
    browser.open("/audit");
    assert_eq!(browser.script(empty), 0);
    assert_eq!(browser.wide.take(), Vec::<String>::new(), "pages that are wider than a phone");
    // A page that refreshes leaves the focus where the keyboard has put it.
    browser.open("/topics");
    browser.script(
        "window.before = document.querySelector('main'); document.querySelector('main summary').focus()",
    );
    until("the page is refreshed", || {
        browser.script("return document.querySelector('main') !== window.before") == true
    });
    let focused = browser.script("return document.activeElement.textContent");
    assert_eq!(focused, "Pause another topic");
    browser.click("//button[normalize-space()='Log out']");
    browser.open("/dead");
    assert_eq!(browser.script("return location.pathname"), "/login");
    drop(browser);
    daemon.signal("-TERM");
    assert_eq!(daemon.end(), DONE);
}
