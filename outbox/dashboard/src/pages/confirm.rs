//! The page that asks before an operation, and says how many messages it hits.

use maud::html;

use crate::pages::act::check_role;
use crate::pages::login::local;
use crate::params::Params;
use crate::plan::{Plan, Target};
use crate::problem::Problem;
use crate::selection::NAMES;
use crate::text;
use crate::view::{Page, list};
use crate::visit::Visit;

/// Asks.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    check_role(visit)?;
    let plan = Plan::of(visit, &visit.params)?;
    let extent = plan.extent(visit).await?;
    let back = local(visit.params.get("back"));
    let is_empty = match &plan.target {
        Target::Messages(..) => extent.messages == 0,
        Target::Keys(..) => extent.keys == 0,
        Target::Key(..) | Target::Scope(..) => false,
    };
    if is_empty {
        let text = format!(
            "nothing is selected: no {} fits, or a relay or another operator was faster",
            plan.operation.noun()
        );
        return Err(Problem::missing(text, "go back, and choose at least one"));
    }
    let mut form = visit.params.only(NAMES).with("op", plan.operation.name()).with("back", back.clone());
    if let (Target::Messages(..), false) = (&plan.target, extent.is_at_least) {
        // The question did not cover messages that arrive meanwhile.
        form = form.with("most", extent.messages.to_string());
    }
    // The first key press must remove nothing.
    let removes = plan.operation.removes();
    let class = if removes { "button danger" } else { "button primary" };
    let question = plan.question(&extent);
    let body = html! {
        div.confirm {
            p.question { (text::short(&question, 400)) "?" }
            p { (plan.operation.effect()) }
            (scope(&visit.params))
            @if extent.is_at_least {
                p.quiet { "Counting stopped at a limit. There may be more; the operation reaches those too." }
            }
            form method="post" action={ (visit.base) "/act" } {
                @for (name, value) in form.iter() { input type="hidden" name=(name) value=(value); }
                input type="hidden" name="token" value=(visit.form_token());
                div.buttons {
                    button class=(class) autofocus[!removes] { (plan.operation.label()) }
                    a.button.plain href={ (visit.base) (back) } autofocus[removes] { "Back, do nothing" }
                }
            }
        }
        @if !extent.first.is_empty() {
            h2 { "The first of them" }
            @if let Target::Messages(view, _) = &plan.target {
                (list::messages(visit, *view, &extent.first, &[]))
            }
        }
        @if !extent.first_keys.is_empty() {
            h2 { "The first of them" }
            (list::keys(visit, &extent.first_keys))
        }
    };
    Ok(Page::still("Are you sure?", body))
}

/// Shows what the filter selects.
fn scope(params: &Params) -> maud::Markup {
    let names = [
        ("route", "route"),
        ("topic", "topic"),
        ("key", "key"),
        ("type", "type"),
        ("since", "from"),
        ("before", "before"),
        ("text", "containing"),
    ];
    let parts: Vec<_> = names.iter().filter_map(|(name, label)| Some((*label, params.get(name)?))).collect();
    let ids = params.all("id").count();
    html! {
        p.scope {
            @if ids > 0 { span.chip { (ids) " chosen" } " " }
            @if params.get("route").is_none() && ids == 0 {
                span.chip.warn { "all routes, inboxes included" } " "
            }
            @if params.get("cause").is_some() { span.chip { "one cause" } " " }
            @for (label, value) in parts {
                span.chip { (label) " " b { bdi { (text::short(value, 80)) } } } " "
            }
        }
    }
}
