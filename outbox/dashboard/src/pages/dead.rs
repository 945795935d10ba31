//! Dead letters.

use maud::html;
use outbox::admin::View;

use crate::format::number;
use crate::operation::Operation;
use crate::problem::Problem;
use crate::scan::scan;
use crate::selection::{NAMES, PAGE, Selection};
use crate::view::fields::button;
use crate::view::{Page, empty, list};
use crate::visit::Visit;

/// Meaning of an empty page.
const NORMAL: &str = "This is normal. A message is here after it exhausted its attempts, was rejected for \
    good, or was skipped or discarded.";

/// Shows them, the oldest first unless the newest are asked for.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    let selection = Selection::of(&visit.params, visit.now)?;
    let scan = scan(visit, View::DeadLetters, &selection, selection.offset, PAGE).await?;
    let chosen = visit.params.only(NAMES);
    let body = html! {
        p.tabs {
            a aria-current="page" { "By message" }
            a href=(visit.link("/causes", &chosen.without(&["cause"]))) { "By cause" }
        }
        (list::filter(visit, &["route", "topic", "key", "type", "id", "since", "before", "text"], &["cause"]))
        @if selection.cause.is_some() {
            p {
                span.chip { "one cause" }
                " " a href=(visit.link("/dead", &chosen.without(&["cause"]))) { "show all causes" }
            }
        }
        @if scan.found.is_empty() {
            @if chosen.to("").is_empty() {
                (empty("No dead letters.", NORMAL))
            } @else {
                (empty("No dead letter fits the filter.", "Clear the filter to see all."))
            }
        } @else {
            (list::messages(visit, View::DeadLetters, &scan.found, &[Operation::Requeue, Operation::Purge]))
        }
        @if !selection.is_plain() {
            p.quiet {
                (number(scan.looked_at as u64)) " dead letters searched" @if scan.next.is_some() {
                    "; the next page searches on"
                }
                "."
            }
        }
        (list::pages(visit, selection.offset, scan.looked_at, scan.next))
        @if !scan.found.is_empty() && visit.may_act() {
            div.buttons {
                span.quiet { "All that the filter selects:" }
                (button(visit, Operation::Requeue, "Requeue all", &chosen))
                (button(visit, Operation::Purge, "Purge all", &chosen))
            }
        }
    };
    Ok(Page::live("Dead letters", body))
}
