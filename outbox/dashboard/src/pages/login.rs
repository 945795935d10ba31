//! Logging in with a token, and out.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::{Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use outbox::Timestamp;

use crate::app::App;
use crate::guard::explained;
use crate::params::Params;
use crate::problem::Problem;
use crate::session::Session;
use crate::view;
use crate::visit::{Visit, seconds};

/// Maximum size of the form, in bytes.
const MAX_FORM: usize = 16 * 1_024;

/// Visitor of a form, before anybody is known.
const NOBODY: &str = "";

/// A request that stands in front of the gate.
pub(crate) struct Door<'d> {
    pub(crate) app: &'d Arc<App>,
    pub(crate) base: &'d str,
    pub(crate) host: &'d str,
    pub(crate) peer: Option<IpAddr>,
    pub(crate) secure: bool,
    pub(crate) session: &'d Session,
    pub(crate) now: Timestamp,
}

impl Door<'_> {
    fn with_cookie(&self, session: &Session, mut response: Response) -> Response {
        let cookie = session.cookie(self.host, self.base, self.secure, &self.app.key);
        if let Ok(cookie) = HeaderValue::from_str(&cookie) {
            response.headers_mut().append(header::SET_COOKIE, cookie);
        }
        response
    }
}

/// Shows the form, or takes it.
pub(crate) async fn answer(door: &Door<'_>, request: Request) -> Response {
    let query = Params::parse(request.uri().query().unwrap_or_default().as_bytes());
    if *request.method() != Method::POST {
        let next = local(query.get("next"));
        return door.with_cookie(door.session, form(door, StatusCode::OK, &next, None));
    }
    let body = to_bytes(request.into_body(), MAX_FORM).await.unwrap_or_default();
    let params = Params::parse(&body);
    let next = local(params.get("next"));
    if !door.session.takes(params.get("token").unwrap_or_default(), NOBODY, &door.app.key) {
        let text = "the form has expired, or belongs to another browser";
        let problem = Problem::bad(text, "enter the token again");
        return door.with_cookie(door.session, form(door, StatusCode::FORBIDDEN, &next, Some(&problem)));
    }
    match door.app.gate.log_in(door.peer, params.get("secret").unwrap_or_default(), Instant::now()) {
        Ok(principal) => {
            tracing::info!(user = principal.name, "logged in to the dashboard");
            // A new session: its id is unknown to everyone else.
            let session = Session::begin(Some(principal.name), seconds(door.now));
            let to = format!("{}{next}", door.base);
            door.with_cookie(&session, Redirect::to(&to).into_response())
        }
        Err(refusal) => {
            tracing::warn!(peer = ?door.peer, "a login to the dashboard failed");
            let problem = explained(&refusal);
            form(door, problem.status, &next, Some(&problem))
        }
    }
}

/// Returns a path within the dashboard, whatever the address says.
pub(crate) fn local(path: Option<&str>) -> String {
    let is_local = |path: &&str| {
        path.starts_with('/')
            && !path.starts_with("//")
            && path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
    };
    path.filter(is_local).unwrap_or("/").to_owned()
}

fn form(door: &Door<'_>, status: StatusCode, next: &str, problem: Option<&Problem>) -> Response {
    let token = door.session.form_token(NOBODY, &door.app.key);
    let body: Markup = html! {
        @if let Some(problem) = problem {
            p.notice.bad role="alert" { (problem.text) ". " (problem.remedy) "." }
        }
        form.login method="post" action={ (door.base) "/login" } {
            input type="hidden" name="token" value=(token);
            input type="hidden" name="next" value=(next);
            label {
                span { "Token" }
                input type="password" name="secret" required autofocus autocomplete="current-password";
            }
            button.button { "Log in" }
        }
    };
    view::html_response(status, &view::bare(door.app, door.base, &door.app.title, &body))
}

/// Ends a session.
pub(crate) async fn log_out(Extension(visit): Extension<Visit>, body: Bytes) -> Response {
    let params = Params::parse(&body);
    if let Err(problem) = super::act::check_token(&visit, &params) {
        return view::answer(&visit, Err(problem));
    }
    let mut response = Redirect::to(&format!("{}/login", visit.base)).into_response();
    if let Ok(cookie) = HeaderValue::from_str(&Session::farewell(&visit.host, &visit.base)) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::local;

    #[test]
    fn a_path_leads_nowhere_else() {
        assert_eq!(local(Some("/keys?topic=a")), "/keys?topic=a");
        for path in
            [None, Some("//evil.example"), Some("https://evil.example"), Some("/\\evil.example"), Some("/\n")]
        {
            assert_eq!(local(path), "/", "{path:?}");
        }
    }
}
