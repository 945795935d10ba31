//! Style, script and icon: parts of the program, so that nothing is loaded from elsewhere.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Path of the assets.
pub(crate) const FOLDER: &str = "/assets/";

const STYLE: &str = include_str!("assets/style.css");
const SCRIPT: &str = include_str!("assets/live.js");
const ICON: &str = include_str!("assets/icon.svg");

/// Returns an asset.
pub(crate) async fn serve(Path(name): Path<String>) -> Response {
    let (kind, content) = match name.as_str() {
        "style.css" => ("text/css; charset=utf-8", STYLE),
        "live.js" => ("text/javascript; charset=utf-8", SCRIPT),
        "icon.svg" => ("image/svg+xml", ICON),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    ([(header::CONTENT_TYPE, kind)], content).into_response()
}
