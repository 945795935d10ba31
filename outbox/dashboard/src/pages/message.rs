//! One message.

use maud::{Markup, html};
use outbox::MessageId;
use outbox::admin::{Filter, Listed, Position, View};

use crate::format::{self, bytes};
use crate::operation::Operation;
use crate::params::Params;
use crate::problem::Problem;
use crate::selection::Selection;
use crate::text;
use crate::view::fields::{self, button, fields as named};
use crate::view::payload::payload;
use crate::view::{Page, list};
use crate::visit::Visit;

/// Views in which a message is looked for, in this order.
const VIEWS: [View; 5] = [View::DeadLetters, View::Parked, View::Waiting, View::Scheduled, View::History];

/// Number of waiting messages that a store looks at from either end, at least: see [`Filter`].
const SEARCHED: usize = 10_000;

/// Shows a message: of the view that the address names, or wherever it is.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    let selection = Selection::of(&visit.params, visit.now)?;
    let Some([id]) = selection.filter.ids.as_deref() else {
        return Err(Problem::bad("the id of one message is missing", "follow a link of a list"));
    };
    let asked = visit.params.get("view");
    let first = VIEWS.into_iter().find(|view| Some(view.name()) == asked);
    for view in first.into_iter().chain(VIEWS.into_iter().filter(|view| Some(*view) != first)) {
        if let Some(listed) = find(visit, view, &selection, *id).await? {
            return Ok(Page::still(
                format!("Message …{}", list::tail(&id.to_string())),
                shown(visit, view, &listed),
            ));
        }
    }
    let middle = Filter { limit: Some(1), offset: 2 * SEARCHED, ..Filter::all_routes() };
    if !visit.ask(visit.store().browse(View::Waiting, &middle)).await?.is_empty() {
        let searched = format::number(SEARCHED as u64);
        return Err(Problem::missing(
            format!(
                "the message {id} was not found, but more messages wait than a search looks at, which are \
                 {searched} at either end of the list: it may be one of the others"
            ),
            "go back to the list, or look again when fewer wait",
        ));
    }
    Err(Problem::missing(
        format!("the message {id} is not there: it was delivered and is not kept, or an operator removed it"),
        "go back to the list",
    ))
}

/// Looks for a message in a view: among those that wait from either end, because a store looks at a
/// limited number of these.
async fn find(
    visit: &Visit,
    view: View,
    selection: &Selection,
    id: MessageId,
) -> Result<Option<Listed>, Problem> {
    for newest in [false, true] {
        let filter = Filter { ids: Some(vec![id]), limit: Some(1), newest, ..selection.filter.clone() };
        let found = visit.ask(visit.store().browse(view, &filter)).await?.pop();
        if found.is_some() || view != View::Waiting {
            return Ok(found);
        }
    }
    Ok(None)
}

fn shown(visit: &Visit, view: View, listed: &Listed) -> Markup {
    let message = &listed.stored.message;
    let name = Params::from_iter([("route", listed.route.to_string()), ("id", message.id.to_string())]);
    // The page of a message that is removed would tell that it is not there.
    let back = |path: &str| name.with("back", path);
    html! {
        (facts(visit, view, listed))
        @if let Some(death) = &listed.death {
            (fields::compared(death.first_failure.as_ref(), death.last_failure.as_ref()))
        }
        div.buttons {
            @match view {
                View::DeadLetters => {
                    (button(visit, Operation::Requeue, "Requeue", &name))
                    (button(visit, Operation::Purge, "Purge", &back("/dead")))
                }
                View::History => (button(visit, Operation::Replay, "Replay", &name)),
                View::Scheduled => (button(visit, Operation::Cancel, "Cancel", &back("/scheduled"))),
                View::Waiting | View::Parked => {}
            }
        }
        h2 { "Headers" }
        @if message.headers.is_empty() {
            p.quiet { "The message has no headers." }
        } @else {
            table.headers {
                tbody {
                    @for (name, value) in message.headers.iter() {
                        tr {
                            th { bdi { (text::line(name)) } }
                            td {
                                @if visit.may_see_payloads() { bdi { (text::short(value, 2_000)) } }
                                @else { span.quiet { "hidden" } }
                            }
                        }
                    }
                }
            }
        }
        h2 { "Payload" }
        @if visit.may_see_payloads() {
            (payload(message))
        } @else {
            p.quiet {
                (bytes(message.payload.len())) " of " (text::short(&message.content_type, 100))
                ", hidden: your role does not see payloads."
            }
        }
    }
}

fn facts(visit: &Visit, view: View, listed: &Listed) -> Markup {
    let (message, stored) = (&listed.stored.message, &listed.stored);
    let state = match view {
        View::Waiting => html! { span.state { "waiting" } },
        View::Parked => html! { span.state.warn { "parked" } },
        View::DeadLetters => html! { span.state.bad { "dead letter" } },
        View::History => html! { span.state.good { "delivered" } },
        View::Scheduled => html! { span.state { "scheduled" } },
    };
    let mut all = vec![
        ("State", state),
        ("Id", html! { code { (message.id) } }),
        ("Topic", html! { bdi { (text::line(message.topic.as_str())) } }),
        (
            "Key",
            html! {
                @if message.key.is_some() { (list::key_link(visit, &listed.route, &message.key_id())) }
                @else { span.quiet { "none" } }
            },
        ),
        ("Route", html! { bdi { (text::line(listed.route.as_str())) } }),
        (
            "Type",
            html! { bdi { (text::short(&message.event_type, 255)) } " " span.quiet { "version " (message.schema_version) } },
        ),
        (list::when(view), format::when(listed.at, visit.now)),
        ("Occurred", format::when(message.occurred_at, visit.now)),
    ];
    if stored.position != Position::START {
        if view != View::Waiting {
            all.push(("Appended", format::when(stored.appended_at, visit.now)));
        }
        all.push(("Position", html! { (stored.position) }));
        all.push(("Bucket", html! { (stored.bucket) }));
    }
    if let Some(death) = &listed.death {
        all.push(("Reason", html! { (text::short(&death.reason, 40)) }));
        all.push(("Attempts", html! { (death.attempts) }));
    }
    named(&all)
}
