//! Carrying out an operation, and the way back.

use axum::response::{IntoResponse, Redirect, Response};

use crate::pages::login::local;
use crate::params::Params;
use crate::plan::Plan;
use crate::problem::Problem;
use crate::visit::{Visit, seconds};

/// Checks that a form was made for this session and visitor.
pub(crate) fn check_token(visit: &Visit, params: &Params) -> Result<(), Problem> {
    let token = params.get("token").unwrap_or_default();
    if visit.session.takes(token, &visit.principal.name, &visit.app.key) {
        return Ok(());
    }
    Err(Problem::forbidden(
        "form-token",
        "the form has expired, or belongs to another browser or user; nothing was done",
        "go back, load the page again, and repeat it",
    ))
}

/// Checks that the visitor may carry out operations.
pub(crate) fn check_role(visit: &Visit) -> Result<(), Problem> {
    if visit.may_act() {
        return Ok(());
    }
    let text = format!("{} is a reader, and may change nothing", visit.principal.name);
    Err(Problem::forbidden("read-only", text, "ask an operator, or log in as one"))
}

/// Carries out the operation of a form, and leads back to the page that it came from.
pub(crate) async fn act(visit: &Visit, params: &Params) -> Result<Response, Problem> {
    check_role(visit)?;
    check_token(visit, params)?;
    let plan = Plan::of(visit, params)?;
    let most = params.get("most").and_then(|most| most.parse().ok());
    let done = plan.carry_out(visit, most).await;
    visit.app.changed();
    let done = done?;
    let result = plan.result(&done);
    tracing::info!(user = visit.principal.name, operation = plan.operation.name(), "{result}");
    let notice = visit.session.notice(&result, &visit.app.key, seconds(visit.now));
    let back = local(params.get("back"));
    let (path, query) = back.split_once('?').unwrap_or((&back, ""));
    let to = Params::parse(query.as_bytes()).with("did", notice);
    Ok(Redirect::to(&visit.link(path, &to)).into_response())
}
