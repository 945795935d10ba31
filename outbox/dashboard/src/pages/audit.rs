//! The audit: who did what.

use maud::{Markup, html};
use outbox::admin::AuditEntry;
use serde_json::Value;

use crate::format::{self, number};
use crate::problem::Problem;
use crate::selection::{PAGE, Selection};
use crate::text;
use crate::view::{Page, empty, list};
use crate::visit::Visit;

/// Number of ids that are shown of an entry.
const IDS: usize = 3;

/// Meaning of an empty page.
const NORMAL: &str =
    "Each operation that changes something is here: who did it, when, and to which messages.";

/// Shows operations, the newest first.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    let selection = Selection::of(&visit.params, visit.now)?;
    let filter = selection.page(selection.offset, PAGE + 1).with_newest();
    let mut entries = visit.ask(visit.store().audit(&filter)).await?;
    let next = (entries.len() > PAGE).then_some(selection.offset + PAGE);
    entries.truncate(PAGE);
    let body = html! {
        (list::filter(visit, &["route", "topic", "key", "id", "since", "before"], &[]))
        @if entries.is_empty() {
            (empty("No operation is recorded.", NORMAL))
        } @else {
            div.scroll {
                table.list {
                    (list::head(&["When", "Who", "Operation", "Route", "Topic", "Key", "#Messages", "~Which"]))
                    tbody { @for entry in &entries { (row(visit, entry)) } }
                }
            }
        }
        (list::pages(visit, selection.offset, entries.len(), next))
    };
    Ok(Page::live("Audit", body))
}

/// Returns the arguments of an operation as words: `before 2030-01-31T12:00:00Z, limit 500`.
fn detail(json: &str) -> String {
    let Ok(Value::Object(arguments)) = serde_json::from_str(json) else { return json.to_owned() };
    let words = arguments.iter().map(|(name, value)| match value {
        Value::String(text) => format!("{name} {text}"),
        other => format!("{name} {other}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

fn row(visit: &Visit, entry: &AuditEntry) -> Markup {
    let name = |text: Option<&str>| {
        html! {
            @match text { Some(text) => bdi { (text::short(text, 60)) }, None => span.quiet { "any" } }
        }
    };
    html! {
        tr {
            td.nowrap data-name="When" {
                time datetime=(entry.at) title=(format::distance(entry.at, visit.now)) {
                    (format::at(entry.at))
                }
            }
            td data-name="Who" { bdi { (text::short(entry.actor.as_str(), 80)) } }
            td data-name="Operation" { b { (text::short(&entry.operation, 40)) } }
            td data-name="Route" { (name(entry.route.as_ref().map(|route| route.as_str()))) }
            td data-name="Topic" { (name(entry.topic.as_ref().map(|topic| topic.as_str()))) }
            td data-name="Key" { (name(entry.key.as_ref().map(|key| key.as_str()))) }
            td.number data-name="Messages" { (number(entry.affected)) }
            td.wide data-name="Which" {
                @for id in entry.ids.iter().take(IDS) {
                    @let id = id.to_string();
                    a.id href=(visit.to("/message", &[("id", &id)])) title=(id) { "…" (list::tail(&id)) } " "
                }
                @if entry.ids.len() > IDS { span.quiet { "and more " } }
                @if entry.detail != "{}" { span.quiet { (text::short(&detail(&entry.detail), 160)) } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::detail;

    #[test]
    fn arguments_are_told_as_words() {
        assert_eq!(
            detail(r#"{"ids":3,"since":"2030-01-31T12:00:00Z"}"#),
            "ids 3, since 2030-01-31T12:00:00Z"
        );
        assert_eq!(detail(r#"{"edited":["payload"]}"#), r#"edited ["payload"]"#);
        assert_eq!(detail("no json"), "no json");
    }
}
