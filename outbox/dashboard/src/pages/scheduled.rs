//! Scheduled messages.

use maud::html;
use outbox::admin::View;

use crate::operation::Operation;
use crate::problem::Problem;
use crate::scan::scan;
use crate::selection::{NAMES, PAGE, Selection};
use crate::view::fields::button;
use crate::view::{Page, empty, list};
use crate::visit::Visit;

/// Meaning of an empty page.
const NORMAL: &str = "Messages that are appended with a due time are here until then.";

/// Shows them, the next due first unless the last are asked for.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    let selection = Selection::of(&visit.params, visit.now)?;
    let scan = scan(visit, View::Scheduled, &selection, selection.offset, PAGE).await?;
    let chosen = visit.params.only(NAMES);
    let body = html! {
        (list::filter(visit, &["route", "topic", "key", "type", "id", "since", "before", "text"], &[]))
        @if scan.found.is_empty() {
            @if chosen.to("").is_empty() {
                (empty("No message is scheduled.", NORMAL))
            } @else {
                (empty("No scheduled message fits the filter.", "Clear the filter to see all."))
            }
        } @else {
            (list::messages(visit, View::Scheduled, &scan.found, &[Operation::Cancel]))
            @if visit.may_act() {
                div.buttons {
                    span.quiet { "All that the filter selects:" }
                    (button(visit, Operation::Cancel, "Cancel all", &chosen))
                }
            }
        }
        (list::pages(visit, selection.offset, scan.looked_at, scan.next))
    };
    Ok(Page::live("Scheduled messages", body))
}
