//! An outbox with messages in every state, and a browser.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use outbox::admin::{Filter, Listed, View};
use outbox::backend::{KeyTransition, LeaseRequest, RowId, Step, Then, Transitioned};
use outbox::error::Failure;
use outbox::memory::MemoryStore;
use outbox::message::Outgoing;
use outbox::relay::RelayId;
use outbox::{Message, MessageId, Route, Transactional};
use outbox_dashboard::{Dashboard, DashboardBuilder};
use tower::ServiceExt;

/// All pages, with what they need.
pub(crate) const PAGES: [&str; 9] =
    ["/", "/keys", "/dead", "/causes", "/messages", "/scheduled", "/relays", "/topics", "/audit"];

/// An outbox, in memory unless a test brings a store.
pub(crate) struct World<S = MemoryStore> {
    pub(crate) store: S,
    relay: RelayId,
}

impl World {
    /// Creates an empty outbox that keeps a history.
    pub(crate) fn new() -> Self {
        Self::of(MemoryStore::builder().history(Duration::from_secs(3_600)).build())
    }

    /// Creates an outbox with a message in each state.
    pub(crate) async fn full() -> Self {
        let world = Self::new();
        world.fill().await;
        world
    }
}

impl<S: Transactional + Clone> World<S> {
    /// Returns the outbox of a store.
    pub(crate) fn of(store: S) -> Self {
        Self { store, relay: RelayId::new() }
    }

    /// Returns the builder of its dashboard.
    pub(crate) fn builder(&self) -> DashboardBuilder {
        Dashboard::builder(self.store.clone()).store_timeout(Duration::from_secs(60))
    }

    /// Returns a browser on this machine, with the default access.
    pub(crate) fn browser(&self) -> Browser {
        Browser::of(self.builder().build())
    }

    /// Appends messages.
    pub(crate) async fn append(&self, messages: Vec<Outgoing>) -> Vec<MessageId> {
        let ids = messages.iter().map(|outgoing| outgoing.message.id).collect();
        let mut tx = self.store.begin().await.unwrap();
        self.store.append(&mut tx, &messages).await.unwrap();
        self.store.commit(tx).await.into_result().unwrap();
        ids
    }

    /// Appends a message of the topic `orders`.
    pub(crate) async fn order(&self, key: &str) -> MessageId {
        self.append(vec![order(key).into()]).await[0]
    }

    async fn lease(&self) -> Vec<outbox::backend::Lease> {
        let mut request = LeaseRequest::new(self.relay, Route::default(), Duration::from_secs(600));
        request.label = "relay-1".to_owned();
        request.fingerprint = 1;
        self.store.lease(&request).await.unwrap().leases
    }

    /// Registers a relay of another program, which reaches its broker or not.
    pub(crate) async fn serve(&self, label: &str, route: &str, reaches: bool) {
        let route = Route::new(route).unwrap();
        let mut request = LeaseRequest::new(RelayId::new(), route, Duration::from_secs(600));
        (request.label, request.transport_available) = (label.to_owned(), reaches);
        self.store.lease(&request).await.unwrap();
    }

    /// Returns messages of a view.
    pub(crate) async fn view(&self, view: View) -> Vec<Listed> {
        self.store.browse(view, &Filter::all_routes()).await.unwrap()
    }

    /// Returns the number of messages of a view.
    pub(crate) async fn number(&self, view: View) -> usize {
        self.view(view).await.len()
    }

    /// Returns the only failing key.
    pub(crate) async fn failing(&self) -> Option<outbox::admin::FailingKey> {
        self.store.failing_keys(&Filter::all_routes()).await.unwrap().pop()
    }

    async fn step(&self, id: MessageId, step: impl FnOnce(RowId) -> Step) {
        let leases = self.lease().await;
        let waiting = self.view(View::Waiting).await;
        let row = waiting.iter().find(|listed| listed.stored.message.id == id).unwrap();
        let key = row.stored.message.key_id();
        let bucket = key.bucket();
        let epoch = leases.iter().find(|lease| lease.bucket == bucket).unwrap().epoch;
        let route = Route::default();
        let step = step(row.stored.row());
        let transition = KeyTransition::new(route, self.relay, (bucket, epoch), key, None, step);
        let answer = self.store.transition(&[transition]).await.unwrap();
        assert!(matches!(answer[..], [Transitioned::Done(_)]), "{answer:?}");
    }

    /// Lets a waiting message fail; the key is retried much later, or held.
    pub(crate) async fn fail(&self, id: MessageId, error: &str, holds: bool) {
        let then = if holds { Then::Hold } else { Then::RetryAfter(Duration::from_secs(3_000)) };
        let (first, last) = (Failure::new("timeout", "no answer"), Failure::new("schema", error));
        self.step(id, |row| Step::Fail { row, attempts: 3, first, last, then, behind: Vec::new() }).await;
    }

    /// Makes a waiting message a dead letter.
    pub(crate) async fn bury(&self, id: MessageId, error: &str) {
        let (first, last) = (Failure::new("timeout", "no answer"), Failure::new("schema", error));
        self.step(id, |row| Step::Bury {
            row,
            discard: false,
            reason: "exhausted",
            attempts: 5,
            first,
            last,
        })
        .await;
    }

    /// Delivers a waiting message, which joins the history.
    pub(crate) async fn deliver(&self, id: MessageId) {
        let waiting = self.view(View::Waiting).await;
        let row = waiting.iter().find(|listed| listed.stored.message.id == id).unwrap().stored.row();
        self.store.settle(&Route::default(), &[row]).await.unwrap();
    }

    /// Makes a message in each state, of the keys `waiting`, `failing`, `held`, `dead`, `past` and
    /// `later`.
    pub(crate) async fn fill(&self) {
        let failing = self.order("failing").await;
        self.fail(failing, "no such column: total", false).await;
        let held = self.order("held").await;
        self.fail(held, "no such table: orders", true).await;
        let dead = self.order("dead").await;
        self.bury(dead, "order 17: no such column").await;
        let past = self.order("past").await;
        self.deliver(past).await;
        self.order("waiting").await;
        let due = outbox::Timestamp::now().plus(Duration::from_secs(7_200));
        self.append(vec![Outgoing::from(order("later")).due_at(due)]).await;
    }
}

/// Returns a message of the topic `orders`.
pub(crate) fn order(key: &str) -> Message {
    Message::new("orders", "order.placed")
        .unwrap()
        .with_key(key)
        .unwrap()
        .with_payload(r#"{"card":"4111-secret","total":12345678901234567890}"#)
        .with_header("tenant", "acme-secret")
        .unwrap()
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    /// Asserts a status, and returns the answer.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{self:#?}");
        self
    }

    /// Asserts that the page contains a text, and returns the answer.
    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(self.body.contains(text), "no {text:?} in {}", self.body);
        self
    }

    /// Asserts that the page does not contain a text, and returns the answer.
    #[track_caller]
    pub(crate) fn hides(self, text: &str) -> Self {
        assert!(!self.body.contains(text), "{text:?} in {}", self.body);
        self
    }

    /// Returns where the answer leads.
    #[track_caller]
    pub(crate) fn location(&self) -> String {
        let location = self.headers.get(header::LOCATION).unwrap_or_else(|| panic!("{self:#?}"));
        location.to_str().unwrap().to_owned()
    }

    /// Returns the address of the link with this text.
    #[track_caller]
    pub(crate) fn link(&self, text: &str) -> String {
        let at = self
            .body
            .find(&format!(">{text}</a>"))
            .unwrap_or_else(|| panic!("no link {text:?} in {}", self.body));
        let tag = &self.body[..at];
        let tag = &tag[tag.rfind("<a ").unwrap()..];
        attribute(tag, "href").unwrap()
    }

    /// Returns the target and the fields of the form that has a button with this text.
    #[track_caller]
    pub(crate) fn form(&self, button: &str) -> Form {
        let with_button = self.body.split("<form").skip(1).find_map(|form| {
            let form = form.split("</form>").next().unwrap();
            // Tests look for forms that act; lists have one that only asks.
            let acts = !form.contains("class=\"choose\"");
            (acts && form.contains(&format!(">{button}</button>"))).then_some(form)
        });
        let form = with_button.unwrap_or_else(|| panic!("no form with {button:?} in {}", self.body));
        let inputs = form.split("<input").skip(1).map(|input| input.split('>').next().unwrap());
        let fields = inputs.filter_map(|input| {
            Some((attribute(input, "name")?, attribute(input, "value").unwrap_or_default()))
        });
        Form { action: attribute(form, "action").unwrap(), fields: fields.collect() }
    }
}

/// A form of a page.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub(crate) action: String,
    pub(crate) fields: Vec<(String, String)>,
}

impl Form {
    /// Returns it with another value of a field.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.retain(|(given, _)| given != name);
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the value of a field.
    pub(crate) fn field(&self, name: &str) -> &str {
        &self.fields.iter().find(|(given, _)| given == name).unwrap().1
    }

    fn body(&self) -> String {
        let mut body = String::new();
        for (name, value) in &self.fields {
            if !body.is_empty() {
                body.push('&');
            }
            body.push_str(&format!("{}={}", encoded(name), encoded(value)));
        }
        body
    }
}

/// Percent-encodes a value.
pub(crate) fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn attribute(tag: &str, name: &str) -> Option<String> {
    let rest = tag.split(&format!(" {name}=\"")).nth(1)?;
    let value = rest.split('"').next()?;
    Some(value.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
}

/// A browser, with its cookies.
pub(crate) struct Browser {
    router: Router,
    cookies: Mutex<BTreeMap<String, String>>,
    pub(crate) peer: Option<&'static str>,
    pub(crate) host: &'static str,
    /// Headers of every request.
    pub(crate) headers: Vec<(&'static str, String)>,
}

impl Browser {
    /// Creates a browser on this machine.
    pub(crate) fn of(router: Router) -> Self {
        let (peer, host) = (Some("127.0.0.1:50000"), "127.0.0.1:9464");
        Self { router, cookies: Mutex::default(), peer, host, headers: Vec::new() }
    }

    /// Returns another browser of the same dashboard.
    pub(crate) fn another(&self) -> Self {
        Self {
            peer: self.peer,
            host: self.host,
            headers: self.headers.clone(),
            ..Self::of(self.router.clone())
        }
    }

    /// Returns this browser with a header in every request.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns this browser at another address.
    pub(crate) fn at(mut self, peer: Option<&'static str>) -> Self {
        self.peer = peer;
        self
    }

    /// Asks for a page.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, &[], String::new()).await
    }

    /// Sends a form, as its page would.
    pub(crate) async fn send(&self, form: &Form) -> Answer {
        let origin = format!("http://{}", self.host);
        self.send_from(form, &[("origin", &origin), ("sec-fetch-site", "same-origin")]).await
    }

    /// Sends a form with other headers.
    pub(crate) async fn send_from(&self, form: &Form, headers: &[(&str, &str)]) -> Answer {
        self.ask(Method::POST, &form.action, headers, form.body()).await
    }

    /// Opens a page, and presses a button: its form is sent, or its link asks first and is
    /// confirmed. Returns the page that follows.
    pub(crate) async fn press(&self, path: &str, button: &str) -> Answer {
        let page = self.get(path).await.is(200);
        let form = if page.body.contains(&format!(">{button}</a>")) {
            self.get(&page.link(button)).await.is(200).form_of_confirmation()
        } else {
            page.form(button)
        };
        let sent = self.send(&form).await.is(303);
        self.get(&sent.location()).await.is(200)
    }

    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, self.host);
        let of_all = self.headers.iter().map(|(name, value)| (*name, value.as_str()));
        for (name, value) in of_all.chain(headers.iter().copied()) {
            request = request.header(name, value);
        }
        let cookies: Vec<String> =
            self.cookies.lock().unwrap().iter().map(|(name, value)| format!("{name}={value}")).collect();
        if !cookies.is_empty() {
            request = request.header(header::COOKIE, cookies.join("; "));
        }
        let mut request = request.body(Body::from(body)).unwrap();
        if let Some(peer) = self.peer {
            request.extensions_mut().insert(ConnectInfo(peer.parse::<SocketAddr>().unwrap()));
        }
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        for cookie in parts.headers.get_all(header::SET_COOKIE) {
            let (name, value) = cookie.to_str().unwrap().split(';').next().unwrap().split_once('=').unwrap();
            self.cookies.lock().unwrap().insert(name.to_owned(), value.to_owned());
        }
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: parts.status,
            headers: parts.headers,
            body: String::from_utf8(body.to_vec()).unwrap(),
        }
    }
}

impl Answer {
    /// Returns the form of a page that asks.
    #[track_caller]
    pub(crate) fn form_of_confirmation(&self) -> Form {
        let form = self.body.split("/act\"").nth(1).unwrap_or_else(|| panic!("{self:#?}"));
        let label = form.split("<button").nth(1).and_then(|button| button.split(['<', '>']).nth(1));
        self.form(label.unwrap())
    }
}

impl Form {
    /// Returns the form with its target checked.
    #[track_caller]
    pub(crate) fn with_action(self, action: &str) -> Self {
        assert_eq!(self.action, action);
        self
    }
}
