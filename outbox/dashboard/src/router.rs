//! Addresses of the pages.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};

use crate::app::App;
use crate::params::Params;
use crate::problem::Problem;
use crate::view::answer;
use crate::visit::Visit;
use crate::{assets, guard, pages};

/// Maximum size of a form, in bytes.
const MAX_FORM: usize = 64 * 1_024;

/// Returns the handler of a page.
macro_rules! page {
    ($page:path) => {
        get(|Extension(visit): Extension<Visit>| async move { answer(&visit, $page(&visit).await) })
    };
}

/// Returns the router of all pages.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", page!(pages::overview::page))
        .route("/keys", page!(pages::keys::page))
        .route("/key", page!(pages::key::page))
        .route("/dead", page!(pages::dead::page))
        .route("/causes", page!(pages::causes::page))
        .route("/messages", page!(pages::messages::page))
        .route("/message", page!(pages::message::page))
        .route("/scheduled", page!(pages::scheduled::page))
        .route("/relays", page!(pages::relays::page))
        .route("/topics", page!(pages::topics::page))
        .route("/audit", page!(pages::audit::page))
        .route("/settings", page!(pages::settings::page))
        .route("/confirm", page!(pages::confirm::page))
        .route("/act", post(act))
        .route("/logout", post(pages::login::log_out))
        .route("/assets/{name}", get(assets::serve))
        .fallback(missing)
        .method_not_allowed_fallback(missing)
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .layer(from_fn_with_state(app, guard::guard))
}

async fn act(Extension(visit): Extension<Visit>, body: Bytes) -> Response {
    match pages::act::act(&visit, &Params::parse(&body)).await {
        Ok(response) => response,
        Err(problem) => answer(&visit, Err(problem)),
    }
}

async fn missing(visit: Option<Extension<Visit>>) -> Response {
    // Assets are served to everybody, and so is their absence.
    let Some(Extension(visit)) = visit else { return StatusCode::NOT_FOUND.into_response() };
    let problem = Problem::missing(format!("there is no page {:?}", visit.path), "choose one of those above");
    answer(&visit, Err(problem))
}
