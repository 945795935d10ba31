//! Topics and routes: figures, and pauses.

use std::collections::BTreeSet;

use maud::{Markup, html};
use outbox::admin::{Paused, TopicFigures};
use outbox::{Route, Topic};

use crate::format::{self, age};
use crate::operation::Operation;
use crate::params::Params;
use crate::problem::Problem;
use crate::selection::Selection;
use crate::text;
use crate::view::fields::button;
use crate::view::{Page, empty, list};
use crate::visit::Visit;

use super::relays::routes_as_tabs;

/// Meaning of an empty page.
const NORMAL: &str = "This is normal. Topics are here while something of them waits, fails, or is dead.";

/// Columns of the table.
const HEAD: &[&str] =
    &["Topic", "State", "#Waiting", "#Oldest", "#Parked", "#Retrying keys", "#Held keys", "#Dead", ""];

/// Shows them.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    let route = Selection::of(&visit.params, visit.now)?.filter.route.unwrap_or_default();
    let routes = visit.app.routes().await?;
    let figures = visit.app.topics(&route).await?;
    let paused = routes.iter().find(|status| status.route == route);
    let paused = paused.map(|status| status.paused.clone()).unwrap_or_default();
    let is_at_least = figures.iter().any(|figures| figures.is_at_least);
    let name = Params::from_iter([("route", route.as_str())]);
    let body = html! {
        (routes_as_tabs(visit, "/topics", &routes, &route))
        div.pause {
            p {
                "Route " b { bdi { (text::line(route.as_str())) } } " "
                @if paused.route { span.state.bad { "paused" } } @else { span.state.good { "publishing" } }
            }
            @if paused.route { (button(visit, Operation::Resume, "Resume the route", &name)) }
            @else { (button(visit, Operation::Pause, "Pause the route", &name)) }
        }
        (topics(visit, &route, &figures, &paused))
        @if is_at_least {
            p.quiet {
                "Counting stopped at a limit: the figures are lower bounds, and topics may be missing."
            }
        }
        @if visit.may_act() { (pause(visit, &route)) }
    };
    Ok(Page::live("Topics and routes", body))
}

fn topics(visit: &Visit, route: &Route, figures: &[TopicFigures], paused: &Paused) -> Markup {
    let known: BTreeSet<&Topic> = figures.iter().map(|figures| &figures.topic).collect();
    let others: Vec<TopicFigures> =
        paused.topics.iter().filter(|topic| !known.contains(topic)).cloned().map(TopicFigures::new).collect();
    let quiet =
        |number: u64| html! { @if number == 0 { span.quiet { "0" } } @else { (format::number(number)) } };
    let to =
        |path: &str, topic: &Topic| visit.to(path, &[("route", route.as_str()), ("topic", topic.as_str())]);
    html! {
        @if figures.is_empty() && others.is_empty() {
            (empty("No topic of this route has messages that wait.", NORMAL))
        } @else {
            div.scroll {
                table.list {
                    (list::head(HEAD))
                    tbody {
                        @for figures in figures.iter().chain(&others) {
                            @let topic = &figures.topic;
                            @let name = Params::from_iter([("route", route.as_str()), ("topic", topic.as_str())]);
                            @let is_paused = paused.topics.contains(topic);
                            tr {
                                td data-name="Topic" {
                                    a href=(to("/messages", topic)) {
                                        bdi { (text::short(topic.as_str(), 60)) }
                                    }
                                }
                                td data-name="State" {
                                    @if is_paused { span.state.bad { "paused" } }
                                    @else if paused.route { span.state.warn { "route paused" } }
                                    @else { span.state.good { "publishing" } }
                                }
                                td.number data-name="Waiting" { (quiet(figures.waiting)) }
                                td.number data-name="Oldest" {
                                    @match figures.oldest_age {
                                        Some(oldest) => (age(oldest)), None => span.quiet { "–" }
                                    }
                                }
                                td.number data-name="Parked" { (quiet(figures.parked)) }
                                td.number data-name="Retrying keys" {
                                    a href=(to("/keys", topic)) { (quiet(figures.retrying_keys)) }
                                }
                                td.number data-name="Held keys" {
                                    a href=(to("/keys", topic)) { (quiet(figures.held_keys)) }
                                }
                                td.number data-name="Dead" {
                                    a href=(to("/dead", topic)) { (quiet(figures.dead)) }
                                }
                                td {
                                    @if is_paused { (button(visit, Operation::Resume, "Resume", &name)) }
                                    @else { (button(visit, Operation::Pause, "Pause", &name)) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The form that pauses a topic of which nothing waits.
fn pause(visit: &Visit, route: &Route) -> Markup {
    html! {
        details.filter {
            summary { "Pause another topic" }
            form method="get" action={ (visit.base) "/confirm" } {
                input type="hidden" name="op" value=(Operation::Pause.name());
                input type="hidden" name="route" value=(route);
                input type="hidden" name="back" value=(visit.params.only(&["route"]).to("/topics"));
                label { span { "Topic" } input name="topic" required autocomplete="off"; }
                div.buttons { button.button { "Pause" } }
            }
        }
    }
}
