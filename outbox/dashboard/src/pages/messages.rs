//! Messages that wait, are parked, or were delivered.

use maud::html;
use outbox::admin::View;

use crate::operation::Operation;
use crate::problem::Problem;
use crate::scan::scan;
use crate::selection::{NAMES, PAGE, Selection};
use crate::view::fields::button;
use crate::view::{Page, empty, list};
use crate::visit::Visit;

/// Views of the page.
const VIEWS: [(View, &str); 3] =
    [(View::Waiting, "Waiting"), (View::Parked, "Parked"), (View::History, "History")];

/// Meaning of an empty page of waiting messages with a filter: stores look no further.
const SEARCHED: &str = "A search stops after about 10,000 messages from the start of the list. Clear the filter, or list \
    the newest first.";

/// Shows messages of a view.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    let asked = visit.params.get("view").unwrap_or(VIEWS[0].0.name());
    let view = VIEWS.iter().map(|(view, _)| *view).find(|view| view.name() == asked);
    let view = view.ok_or_else(|| {
        Problem::missing(
            format!("there is no view {asked:?} of messages"),
            "choose waiting, parked or history",
        )
    })?;
    let selection = Selection::of(&visit.params, visit.now)?;
    let scan = scan(visit, view, &selection, selection.offset, PAGE).await?;
    let operations: &[Operation] = if view == View::History { &[Operation::Replay] } else { &[] };
    let chosen = visit.params.only(NAMES);
    let body = html! {
        p.tabs {
            @for (other, name) in VIEWS {
                @let to = visit.link("/messages", &chosen.with("view", other.name()));
                a href=(to) aria-current=[(other == view).then_some("page")] {
                    (name)
                }
            }
        }
        (list::filter(visit, &["route", "topic", "key", "type", "id", "since", "before", "text"], &["view"]))
        @if scan.found.is_empty() {
            @if chosen.to("").is_empty() { (nothing(view)) }
            @else if view == View::Waiting { (empty("No message fits the filter.", SEARCHED)) }
            @else { (empty("No message fits the filter.", "Clear the filter to see all.")) }
        } @else {
            (list::messages(visit, view, &scan.found, operations))
        }
        (list::pages(visit, selection.offset, scan.looked_at, scan.next))
        @if view == View::History && !scan.found.is_empty() && visit.may_act() {
            div.buttons {
                span.quiet { "All that the filter selects:" }
                (button(visit, Operation::Replay, "Replay all", &chosen))
            }
        }
    };
    Ok(Page::live("Messages", body))
}

fn nothing(view: View) -> maud::Markup {
    match view {
        View::Waiting => {
            empty("No message waits.", "This is normal: relays deliver messages within moments.")
        }
        View::Parked => empty(
            "No message is parked.",
            "This is normal. Messages are parked behind the failing or held message of their key.",
        ),
        _ => empty(
            "The history is empty.",
            "Delivered messages are deleted, unless the store is configured to keep them.",
        ),
    }
}
