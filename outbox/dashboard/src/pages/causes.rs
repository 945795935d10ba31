//! Dead letters by their causes.

use std::collections::{BTreeMap, BTreeSet};

use maud::html;
use outbox::Timestamp;
use outbox::admin::{Listed, View};

use crate::cause::Cause;
use crate::format::{self, number};
use crate::operation::Operation;
use crate::problem::Problem;
use crate::scan::scan;
use crate::selection::{NAMES, Selection};
use crate::text;
use crate::view::fields::button;
use crate::view::{Page, empty, list};
use crate::visit::Visit;

/// Number of topics that are named of a cause.
const TOPICS: usize = 3;

/// Meaning of an empty page.
const NORMAL: &str =
    "This is normal. Dead letters with the same error, numbers and ids aside, are one cause.";

/// Dead letters of one cause.
struct Group {
    number: u64,
    first: Timestamp,
    last: Timestamp,
    topics: BTreeSet<String>,
}

/// Shows causes, the most frequent first.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    let selection = Selection::of(&visit.params, visit.now)?;
    let scan = scan(visit, View::DeadLetters, &selection, selection.offset, usize::MAX).await?;
    let chosen = visit.params.only(NAMES);
    let groups = grouped(&scan.found);
    let body = html! {
        p.tabs {
            a href=(visit.link("/dead", &chosen)) { "By message" }
            a aria-current="page" { "By cause" }
        }
        (list::filter(visit, &["route", "topic", "key", "type", "since", "before", "text"], &[]))
        @if groups.is_empty() {
            (empty("No dead letters.", NORMAL))
        } @else {
            div.scroll {
                table.list {
                    (list::head(&["#Messages", "Reason", "~Error", "Topics", "First", "Last", ""]))
                    tbody {
                        @for (cause, group) in &groups {
                            @let these = chosen.with("cause", cause.code());
                            tr {
                                td.number data-name="Messages" {
                                    a href=(visit.link("/dead", &these)) { (number(group.number)) }
                                }
                                td data-name="Reason" { (text::short(&cause.reason, 30)) }
                                td.wide data-name="Error" {
                                    @if cause.class.is_empty() && cause.text.is_empty() {
                                        span.quiet { "none recorded" }
                                    }
                                    @else { span.class { (text::short(&cause.class, 64)) } " " (cause.text) }
                                }
                                td data-name="Topics" { (topics(&group.topics)) }
                                td.nowrap data-name="First" { (format::ago(group.first, visit.now)) }
                                td.nowrap data-name="Last" { (format::ago(group.last, visit.now)) }
                                td.nowrap {
                                    (button(visit, Operation::Requeue, "Requeue", &these)) " "
                                    (button(visit, Operation::Purge, "Purge", &these))
                                }
                            }
                        }
                    }
                }
            }
            p.quiet {
                "Causes of " (number(scan.looked_at as u64)) " dead letters"
                @if scan.next.is_some() { "; there are more, on the next page" } "."
            }
            (list::pages(visit, selection.offset, scan.looked_at, scan.next))
        }
    };
    Ok(Page::live("Dead letters by cause", body))
}

fn topics(topics: &BTreeSet<String>) -> String {
    let named: Vec<String> = topics.iter().take(TOPICS).map(|topic| text::short(topic, 40)).collect();
    let more = topics.len().saturating_sub(TOPICS);
    if more == 0 { named.join(", ") } else { format!("{} and {more} more", named.join(", ")) }
}

fn grouped(found: &[Listed]) -> Vec<(Cause, Group)> {
    let mut groups: BTreeMap<Cause, Group> = BTreeMap::new();
    for listed in found {
        let at = listed.at;
        let new = || Group { number: 0, first: at, last: at, topics: BTreeSet::new() };
        let group = groups.entry(Cause::of(listed)).or_insert_with(new);
        group.number += 1;
        (group.first, group.last) = (group.first.min(at), group.last.max(at));
        group.topics.insert(listed.stored.message.topic.to_string());
    }
    let mut groups: Vec<(Cause, Group)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.number));
    groups
}
