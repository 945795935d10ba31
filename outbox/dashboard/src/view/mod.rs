//! The frame of every page, and the parts that several pages have.

pub(crate) mod chart;
pub(crate) mod fields;
pub(crate) mod list;
pub(crate) mod payload;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use crate::app::App;
use crate::format;
use crate::problem::Problem;
use crate::text;
use crate::visit::Visit;

/// A page: its title, and what is below the title.
pub(crate) struct Page {
    pub(crate) title: String,
    pub(crate) body: Markup,
    /// True if the script may show it again and again.
    pub(crate) is_live: bool,
}

impl Page {
    /// Creates a page that is shown again and again.
    pub(crate) fn live(title: impl Into<String>, body: Markup) -> Self {
        Self { title: title.into(), body, is_live: true }
    }

    /// Creates a page that stays.
    pub(crate) fn still(title: impl Into<String>, body: Markup) -> Self {
        Self { title: title.into(), body, is_live: false }
    }
}

/// Pages of the navigation, each with the paths that belong to it.
const NAVIGATION: &[(&str, &str, &[&str])] = &[
    ("/", "Overview", &["/"]),
    ("/keys", "Keys", &["/keys", "/key"]),
    ("/dead", "Dead letters", &["/dead", "/causes"]),
    ("/messages", "Messages", &["/messages", "/message"]),
    ("/scheduled", "Scheduled", &["/scheduled"]),
    ("/relays", "Relays", &["/relays"]),
    ("/topics", "Topics", &["/topics"]),
    ("/audit", "Audit", &["/audit"]),
    ("/settings", "Settings", &["/settings"]),
];

/// Returns the answer of a page, or of its problem.
pub(crate) fn answer(visit: &Visit, page: Result<Page, Problem>) -> Response {
    let (status, page) = match page {
        Ok(page) => (StatusCode::OK, page),
        Err(problem) => {
            if problem.status.is_server_error() {
                tracing::warn!(
                    code = problem.code,
                    path = visit.path,
                    "{}",
                    visit.app.redacted(&problem.text)
                );
            }
            let body = self::problem(&visit.app, &problem);
            (problem.status, Page::still(problem.title, body))
        }
    };
    html_response(status, &framed(visit, &page))
}

/// Returns the answer to somebody who is not let in.
pub(crate) fn problem_alone(app: &App, base: &str, problem: &Problem) -> Response {
    let body = html! {
        (self::problem(app, problem))
        @if problem.code == "unauthorized" && app.gate.access().has_form() {
            div.buttons { a.button href={ (base) "/login" } { "Log in" } }
        }
    };
    html_response(problem.status, &bare(app, base, problem.title, &body))
}

/// Returns an answer.
pub(crate) fn html_response(status: StatusCode, page: &Markup) -> Response {
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    (status, [(header::CONTENT_TYPE, kind)], page.0.clone()).into_response()
}

fn problem(app: &App, problem: &Problem) -> Markup {
    html! {
        section.problem {
            p.what { (text::short(&app.redacted(&problem.text), 2_000)) }
            p { strong { "What to do: " } (text::line(&problem.remedy)) "." }
            p.quiet { "code " code { (problem.code) } }
        }
    }
}

fn head(app: &App, base: &str, title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            meta name="robots" content="noindex, nofollow";
            title { (title) " · " (app.title) }
            link rel="icon" type="image/svg+xml" href={ (base) "/assets/icon.svg" };
            link rel="stylesheet" href={ (base) "/assets/style.css" };
            script src={ (base) "/assets/live.js" } defer {}
        }
    }
}

/// Returns a page without navigation.
pub(crate) fn bare(app: &App, base: &str, title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(app, base, title))
            body.bare {
                main { h1 { (title) } (body) }
            }
        }
    }
}

/// Returns a page with navigation.
fn framed(visit: &Visit, page: &Page) -> Markup {
    let (app, base) = (&*visit.app, visit.base.as_str());
    html! {
        (DOCTYPE)
        html lang="en" {
            (head(app, base, &page.title))
            body {
                a.skip href="#main" { "Skip to the content" }
                header {
                    a.brand href={ (base) "/" } { span.mark aria-hidden="true" {} (app.title) }
                    nav aria-label="Pages" {
                        @for (path, name, paths) in NAVIGATION {
                            @let is_here = paths.contains(&visit.path.as_str());
                            a href={ (base) (path) } aria-current=[is_here.then_some("page")] {
                                (name)
                            }
                        }
                    }
                    div.who {
                        span { (text::short(&visit.principal.name, 40)) }
                        span.quiet { @if visit.may_act() { "operator" } @else { "read-only" } }
                        @if app.gate.access().has_form() {
                            form method="post" action={ (base) "/logout" } {
                                input type="hidden" name="token" value=(visit.form_token());
                                button.plain { "Log out" }
                            }
                        }
                    }
                }
                main #main data-live[page.is_live] {
                    @if let Some(notice) = visit.notice() {
                        p.notice role="status" { (text::short(&notice, 600)) }
                    }
                    h1 { (page.title) }
                    (page.body)
                    footer.quiet {
                        "Read " time datetime=(visit.now) { (format::at(visit.now)) } " UTC. "
                        "Ages are of the database's clock; other times are UTC."
                        span.live hidden { " Refreshes every 5 seconds." }
                        strong.stale hidden { " The last refresh failed; this page shows older data." }
                    }
                }
            }
        }
    }
}

/// Shows that a list is empty, and what that means.
pub(crate) fn empty(what: &str, meaning: &str) -> Markup {
    html! { div.empty { p { strong { (what) } } p.quiet { (meaning) } } }
}
