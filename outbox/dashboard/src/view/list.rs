//! Lists: the filter above, rows of messages or keys, and the pages below.

use maud::{Markup, html};
use outbox::admin::{FailingKey, Listed, View};
use outbox::{KeyId, Route};

use crate::format;
use crate::operation::Operation;
use crate::params::Params;
use crate::selection::{NEWEST, ORDER, PAGE};
use crate::text;
use crate::view::fields;
use crate::visit::Visit;

/// Names of the fields of a filter: parameter, label, hint.
const FIELDS: &[(&str, &str, &str)] = &[
    ("route", "Route", "all"),
    ("topic", "Topic", "all"),
    ("key", "Key", "all"),
    ("type", "Type", "all"),
    ("id", "Id", "all"),
    ("since", "From", "2h, or 2030-01-31 12:00"),
    ("before", "Before", "UTC, or how long ago"),
    ("text", "Contains", "error, topic, key"),
];

/// Shows the filter of a list, with these fields and parameters that stay.
pub(crate) fn filter(visit: &Visit, names: &[&str], kept: &[&str]) -> Markup {
    let is_newest = visit.params.get(ORDER) == Some(NEWEST);
    let is_set = is_newest || names.iter().any(|name| visit.params.get(name).is_some());
    html! {
        details.filter open[is_set] {
            summary { "Filter" @if is_set { " " span.class { "on" } } }
            form method="get" action={ (visit.base) (visit.path) } {
                @for (name, value) in visit.params.only(kept).iter() {
                    input type="hidden" name=(name) value=(value);
                }
                @for (name, label, hint) in FIELDS.iter().filter(|(name, ..)| names.contains(name)) {
                    label {
                        span { (label) }
                        @let value = visit.params.get(name);
                        input name=(name) value=[value] placeholder=(hint) autocomplete="off" spellcheck="false";
                    }
                }
                label {
                    span { "Order" }
                    select name=(ORDER) {
                        option value="" { "oldest first" }
                        option value=(NEWEST) selected[is_newest] { "newest first" }
                    }
                }
                div.buttons {
                    button.button { "Apply" }
                    @if is_set {
                        a.button.plain href=(visit.link(&visit.path, &visit.params.only(kept))) { "Clear" }
                    }
                }
            }
        }
    }
}

/// Shows the way to the pages before and behind this one.
pub(crate) fn pages(visit: &Visit, offset: usize, shown: usize, next: Option<usize>) -> Markup {
    let at = |offset: usize| {
        visit.link(&visit.path, &visit.params.without(&["did"]).with("offset", offset.to_string()))
    };
    html! {
        @if offset > 0 || next.is_some() {
            nav.pages aria-label="Pages of the list" {
                @if offset > 0 {
                    a href=(visit.link(&visit.path, &visit.params.without(&["did", "offset"]))) { "« First" }
                    a href=(at(offset.saturating_sub(PAGE))) rel="prev" { "‹ Previous" }
                }
                span.quiet {
                    @if shown > 0 {
                        (format::number(offset as u64 + 1)) "–" (format::number((offset + shown) as u64))
                    }
                }
                @if let Some(next) = next { a href=(at(next)) rel="next" { "Next ›" } }
            }
        }
    }
}

/// Shows a key as a link to its story.
pub(crate) fn key_link(visit: &Visit, route: &Route, key: &KeyId) -> Markup {
    let to = visit
        .to("/key", &[("route", route.as_str()), ("topic", key.topic.as_str()), ("key", key.key.as_str())]);
    html! { a href=(to) { bdi { (text::short(key.key.as_str(), 60)) } } }
}

/// Returns the address of a message.
pub(crate) fn message_link(visit: &Visit, view: View, listed: &Listed) -> String {
    let id = listed.stored.message.id.to_string();
    visit.to("/message", &[("view", view.name()), ("route", listed.route.as_str()), ("id", &id)])
}

/// Returns the head of the column of [`Listed::at`].
pub(crate) const fn when(view: View) -> &'static str {
    match view {
        View::Waiting => "Appended",
        View::Parked => "Parked",
        View::DeadLetters => "Died",
        View::History => "Delivered",
        View::Scheduled => "Due",
    }
}

/// Shows messages. Those who may act can choose some, for these operations.
pub(crate) fn messages(visit: &Visit, view: View, found: &[Listed], operations: &[Operation]) -> Markup {
    let chooses = visit.may_act() && !operations.is_empty();
    let route = found.first().map(|listed| &listed.route);
    let has_routes = found.iter().any(|listed| Some(&listed.route) != route);
    let back = visit.params.without(&["did"]).to(&visit.path);
    let table = html! {
        table.list {
            thead {
                tr {
                    @if chooses { th.pick { span.hidden { "Choose" } } }
                    th { (when(view)) }
                    @if has_routes { th { "Route" } }
                    th { "Topic" }
                    th { "Key" }
                    th { "Type" }
                    @if view == View::DeadLetters {
                        th { "Reason" } th.number { "Attempts" } th.wide { "Last error" }
                    }
                    @else if view != View::Scheduled { th.number { "Position" } }
                    th { "Message" }
                }
            }
            tbody {
                @for listed in found { (message(visit, view, listed, has_routes, chooses)) }
            }
        }
    };
    html! {
        @if chooses {
            form.choose method="get" action={ (visit.base) "/confirm" } {
                input type="hidden" name="back" value=(back);
                input type="hidden" name="chosen" value="1";
                @if let Some(route) = visit.params.get("route") {
                    input type="hidden" name="route" value=(route);
                }
                div.scroll { (table) }
                div.buttons {
                    span.quiet { "Chosen ones:" }
                    @for operation in operations {
                        @let class = if operation.removes() { "button danger" } else { "button" };
                        button name="op" value=(operation.name()) class=(class) {
                            (operation.label())
                        }
                    }
                }
            }
        } @else {
            div.scroll { (table) }
        }
    }
}

fn message(visit: &Visit, view: View, listed: &Listed, has_routes: bool, chooses: bool) -> Markup {
    let message = &listed.stored.message;
    let id = message.id.to_string();
    html! {
        tr {
            @if chooses {
                td.pick { input type="checkbox" name="id" value=(id) aria-label={ "Choose " (id) }; }
            }
            td.nowrap data-name=(when(view)) { (format::ago(listed.at, visit.now)) }
            @if has_routes { td data-name="Route" { bdi { (text::short(listed.route.as_str(), 40)) } } }
            td data-name="Topic" { bdi { (text::short(message.topic.as_str(), 40)) } }
            td data-name="Key" {
                @if message.key.is_some() { (key_link(visit, &listed.route, &message.key_id())) }
                @else { span.quiet { "none" } }
            }
            td data-name="Type" { bdi { (text::short(&message.event_type, 40)) } }
            @if view == View::DeadLetters {
                @let death = listed.death.clone().unwrap_or_default();
                td data-name="Reason" { (text::short(&death.reason, 30)) }
                td.number data-name="Attempts" { (death.attempts) }
                td.wide data-name="Last error" { (fields::failure(death.last_failure.as_ref(), 120)) }
            } @else if view != View::Scheduled {
                td.number data-name="Position" { (listed.stored.position) }
            }
            td.nowrap data-name="Message" {
                a.id href=(message_link(visit, view, listed)) title=(id) { "…" (tail(&id)) }
            }
        }
    }
}

/// Shows the head of a list: the names of its columns, `#` in front of numbers, `~` of wide ones.
pub(crate) fn head(names: &[&str]) -> Markup {
    html! {
        thead {
            tr {
                @for name in names {
                    @if let Some(name) = name.strip_prefix('#') { th.number { (name) } }
                    @else if let Some(name) = name.strip_prefix('~') { th.wide { (name) } }
                    @else { th { (name) } }
                }
            }
        }
    }
}

/// Returns the end of an id, which is its random part.
pub(crate) fn tail(id: &str) -> &str {
    id.get(id.len().saturating_sub(12)..).unwrap_or(id)
}

/// Returns the state of a key.
pub(crate) fn state(key: &FailingKey) -> Markup {
    html! { @if key.held { span.state.bad { "held" } } @else { span.state.warn { "retrying" } } }
}

/// Shows failing and held keys.
pub(crate) fn keys(visit: &Visit, keys: &[FailingKey]) -> Markup {
    let first = keys.first().map(|key| &key.route);
    let has_routes = keys.iter().any(|key| Some(&key.route) != first);
    html! {
        div.scroll {
            table.list {
                thead {
                    tr {
                        th { "State" } th { "Key" } th { "Topic" }
                        @if has_routes { th { "Route" } }
                        th { "Since" }
                        th.number { "Attempts" }
                        th.number { "Parked" }
                        th { "Next try" }
                        th.wide { "Last error" }
                    }
                }
                tbody {
                    @for key in keys {
                        tr {
                            td data-name="State" { (state(key)) }
                            td data-name="Key" { (key_link(visit, &key.route, &key.key)) }
                            td data-name="Topic" { bdi { (text::short(key.key.topic.as_str(), 40)) } }
                            @if has_routes {
                                td data-name="Route" { bdi { (text::short(key.route.as_str(), 40)) } }
                            }
                            td.nowrap data-name="Since" { (format::ago(key.since, visit.now)) }
                            td.number data-name="Attempts" { (key.attempts) }
                            td.number data-name="Parked" { (format::number(key.parked)) }
                            td.nowrap data-name="Next try" {
                                @match key.next_attempt_at {
                                    Some(at) => (format::ago(at, visit.now)),
                                    None => span.quiet { "operator" },
                                }
                            }
                            td.wide data-name="Last error" {
                                (fields::failure(key.last_failure.as_ref(), 120))
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the parameters that name a key.
pub(crate) fn key_params(route: &Route, key: &KeyId) -> Params {
    Params::from_iter([("route", route.as_str()), ("topic", key.topic.as_str()), ("key", key.key.as_str())])
}
