//! The guard in front of every page: who asks, from where, and what every answer says to browsers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, OriginalUri, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use outbox::Timestamp;

use crate::access::{Asked, Refusal};
use crate::app::App;
use crate::pages::login::{self, Door};
use crate::params::Params;
use crate::problem::Problem;
use crate::session::Session;
use crate::visit::{Visit, seconds};
use crate::{assets, sampler, view};

/// Pages load only what this router serves, can't be framed, and send forms nowhere else.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Headers of every answer. With the referrer policy `no-referrer`, browsers would send the forms
/// of our own pages with `Origin: null`.
const HEADERS: [(HeaderName, &str); 8] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("permissions-policy"), "camera=(), geolocation=(), microphone=()"),
];

/// Lets a request in, with its [`Visit`], or refuses it.
pub(crate) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    sampler::start(&app);
    let mut response = pass(&app, request, next).await;
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn pass(app: &Arc<App>, mut request: Request, next: Next) -> Response {
    let now = Timestamp::now();
    let host = host(&request);
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let base = base(app, &request);
    let path = request.uri().path().to_owned();
    let headers = request.headers();
    let session = Session::of(headers, &host, &app.key, seconds(now));
    let is_new = session.is_none();
    let session = session.unwrap_or_else(|| Session::begin(None, seconds(now)));
    let secure = is_secure(headers);
    let door = Door { app, base: &base, host: &host, peer, secure, session: &session, now };

    if let Err(problem) = same_origin(app, &host, &request) {
        return view::problem_alone(app, &base, &problem);
    }
    if app.gate.access().has_form() {
        if path.starts_with(assets::FOLDER) {
            return next.run(request).await;
        }
        if path == "/login" {
            return login::answer(&door, request).await;
        }
    }
    let asked = Asked {
        headers: request.headers(),
        host: &host,
        peer,
        user: session.user.as_deref(),
        now: Instant::now(),
    };
    let principal = match app.gate.admit(asked, &app.hosts) {
        Ok(principal) => principal,
        Err(refusal) => return refused(&door, &request, &refusal),
    };
    let cookie = is_new.then(|| session.cookie(&host, &base, secure, &app.key));
    let params = Params::parse(request.uri().query().unwrap_or_default().as_bytes());
    let visit = Visit { app: Arc::clone(app), host, base, path, params, principal, session, now };
    request.extensions_mut().insert(visit);
    let mut response = next.run(request).await;
    if let Some(cookie) = cookie.and_then(|cookie| HeaderValue::from_str(&cookie).ok()) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

/// Returns the host that the browser asked.
fn host(request: &Request) -> String {
    let header = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = || request.uri().authority().map(ToString::to_string);
    header.map(str::to_owned).or_else(authority).unwrap_or_default().to_ascii_lowercase()
}

/// Returns the path under which the dashboard is mounted: what a router around it has removed.
fn base(app: &App, request: &Request) -> String {
    if let Some(base) = &app.base {
        return base.clone();
    }
    let inner = request.uri().path();
    let outer = request.extensions().get::<OriginalUri>().map_or(inner, |uri| uri.path());
    outer
        .strip_suffix(inner)
        .unwrap_or(if inner == "/" { outer } else { "" })
        .trim_end_matches('/')
        .to_owned()
}

/// Returns true if the browser speaks TLS, at least with a proxy.
fn is_secure(headers: &HeaderMap) -> bool {
    let is = |name: &str, begins: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).is_some_and(|value| value.starts_with(begins))
    };
    is("origin", "https:") || is("x-forwarded-proto", "https")
}

/// Refuses what another site's page has sent. Forms also carry a token, which is checked with them.
fn same_origin(app: &App, host: &str, request: &Request) -> Result<(), Problem> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(());
    }
    let text = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or("invalid"));
    let (site, origin) = (text("sec-fetch-site"), text("origin"));
    let is_ours = |origin: &str| {
        let origin = origin.to_ascii_lowercase();
        app.origins.contains(&origin)
            || origin.split_once("://").is_some_and(|(scheme, from)| {
                matches!(scheme, "http" | "https") && !host.is_empty() && from == host
            })
    };
    let refuse = |text: String| {
        let remedy = "use the forms of this page; behind a proxy that replaces the Host header, name the \
                      origin of the dashboard in its settings";
        Err(Problem::forbidden("cross-site", text, remedy))
    };
    match (site, origin) {
        (Some(site), _) if site != "same-origin" => {
            refuse(format!("the request comes from another site ({site})"))
        }
        // Pages can't write Sec-Fetch-Site. A proxy may add a referrer policy that hides the
        // origin.
        (Some(_), Some("null")) => Ok(()),
        (_, Some(origin)) if !is_ours(origin) => {
            refuse(format!("the request comes from a page of {origin:?}, and this is {host:?}"))
        }
        (None, None) => refuse("the request does not say which page it comes from".to_owned()),
        _ => Ok(()),
    }
}

/// Answers a request that is not let in.
fn refused(door: &Door<'_>, request: &Request, refusal: &Refusal) -> Response {
    let wants_page = request
        .headers()
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("text/html"));
    if *refusal == Refusal::Anonymous && wants_page && request.method() == Method::GET {
        let next = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let next = Params::from_iter([("next", next)]);
        return Redirect::to(&next.to(&format!("{}/login", door.base))).into_response();
    }
    let mut response = view::problem_alone(door.app, door.base, &explained(refusal));
    let headers = response.headers_mut();
    match refusal {
        Refusal::NoPassword => challenge(headers, "Basic realm=\"outbox\", charset=\"UTF-8\""),
        Refusal::Wrong if !door.app.gate.access().has_form() => {
            challenge(headers, "Basic realm=\"outbox\", charset=\"UTF-8\"");
        }
        Refusal::Anonymous | Refusal::Wrong => challenge(headers, "Bearer realm=\"outbox\""),
        Refusal::TooMany(wait) => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
        }
        _ => {}
    }
    response
}

fn challenge(headers: &mut HeaderMap, how: &'static str) {
    headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(how));
}

/// Returns the problem that a refusal is, with what whoever runs the service can do.
pub(crate) fn explained(refusal: &Refusal) -> Problem {
    let forbidden = |text: String, remedy: &str| Problem::forbidden("access", text, remedy);
    const CONFIGURE: &str =
        "configure an access mode: a token, a password, or the header of a proxy that authenticates";
    let unauthorized = |text: &str, remedy: &str| Problem {
        status: StatusCode::UNAUTHORIZED,
        title: "Not logged in",
        ..Problem::forbidden("unauthorized", text, remedy)
    };
    match refusal {
        Refusal::UnknownPeer => forbidden(
            "this service does not pass on the addresses of its clients, so none can be admitted by address"
                .to_owned(),
            "serve the router with `into_make_service_with_connect_info::<SocketAddr>()`, or configure an \
             access mode that needs no address",
        ),
        Refusal::Remote(peer) => forbidden(
            format!("only connections from this machine are admitted, and this one comes from {peer}"),
            CONFIGURE,
        ),
        Refusal::Forwarded => forbidden(
            "only connections from this machine are admitted, and a proxy has forwarded this one".to_owned(),
            CONFIGURE,
        ),
        Refusal::Host(host) => forbidden(
            format!("{host:?} is not a name of this machine"),
            "open the page as http://127.0.0.1 with its port, or name the origin of the dashboard in its \
             settings",
        ),
        Refusal::NotAProxy(peer) => forbidden(
            format!("{peer} is not one of the trusted proxies"),
            "open the page through the proxy, or add its address to the proxies of the dashboard",
        ),
        Refusal::Unnamed(name) => unauthorized(
            "the proxy named no user, or several",
            &format!("have the proxy authenticate visitors, and set the header {name} once"),
        ),
        Refusal::Anonymous => {
            unauthorized("a token is needed", "log in, or send it as `Authorization: Bearer`")
        }
        Refusal::NoPassword => {
            unauthorized("name and password are needed", "enter them when the browser asks")
        }
        Refusal::Wrong => {
            unauthorized("the token, the name or the password is wrong", "check it, and try again")
        }
        Refusal::TooMany(wait) => Problem {
            status: StatusCode::TOO_MANY_REQUESTS,
            title: "Too many failed attempts",
            ..Problem::forbidden(
                "rate-limited",
                format!(
                    "too many attempts from this address failed; the next one is possible in {} s",
                    wait.as_secs() + 1
                ),
                "wait, and check the secret meanwhile",
            )
        },
    }
}
