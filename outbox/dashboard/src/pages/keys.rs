//! Failing and held keys.

use maud::html;
use outbox::Route;

use crate::operation::Operation;
use crate::problem::Problem;
use crate::selection::{PAGE, Selection};
use crate::view::fields::button;
use crate::view::{Page, empty, list};
use crate::visit::Visit;

/// Meaning of an empty page.
const NORMAL: &str = "This is normal. A key is here while its first message can't be delivered, or \
    while an operator holds it.";

/// Shows them, the longest failing first unless the newest are asked for.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    let selection = Selection::of(&visit.params, visit.now)?;
    let filter = selection.page(selection.offset, PAGE + 1);
    let mut keys = visit.ask(visit.store().failing_keys(&filter)).await?;
    let next = (keys.len() > PAGE).then_some(selection.offset + PAGE);
    keys.truncate(PAGE);
    let chosen = visit.params.only(&["route", "topic", "key", "since", "before"]);
    let body = html! {
        (list::filter(visit, &["route", "topic", "key", "since", "before"], &[]))
        @if keys.is_empty() {
            (empty("No key fails or is held.", NORMAL))
        } @else {
            (list::keys(visit, &keys))
            (list::pages(visit, selection.offset, keys.len(), next))
            @if visit.may_act() {
                div.buttons {
                    span.quiet { "All that the filter selects:" }
                    (button(visit, Operation::Release, "Release all", &chosen))
                    (button(visit, Operation::Skip, "Skip first of all", &chosen))
                    (button(visit, Operation::Discard, "Discard all", &chosen))
                }
            }
        }
        @if visit.may_act() { (hold(visit)) }
    };
    Ok(Page::live("Failing and held keys", body))
}

/// The form that holds a key, whatever its state.
fn hold(visit: &Visit) -> maud::Markup {
    html! {
        details.filter {
            summary { "Hold a key" }
            form method="post" action={ (visit.base) "/act" } {
                input type="hidden" name="op" value=(Operation::Hold.name());
                input type="hidden" name="back" value="/keys";
                input type="hidden" name="token" value=(visit.form_token());
                label { span { "Route" } input name="route" value=(Route::default()) required; }
                label { span { "Topic" } input name="topic" required autocomplete="off"; }
                label { span { "Key" } input name="key" required autocomplete="off"; }
                div.buttons { button.button { "Hold" } }
            }
        }
    }
}
