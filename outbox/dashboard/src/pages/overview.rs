//! The overview: what waits, what needs attention, and how it was in the last hours.

use std::time::Duration;

use maud::{Markup, html};
use outbox::Timestamp;
use outbox::admin::{Ownership, Paused, RelayStatus, RouteStatus};
use outbox::relay::{Backlog, ReasonKind, RelayObserver, Status, Unserved};

use crate::app::MAX_ROUTES;
use crate::format::{self, age, count, number};
use crate::problem::Problem;
use crate::series::{Value, values};
use crate::text;
use crate::view::chart::{Form, Line, chart};
use crate::view::{Page, list};
use crate::visit::Visit;

/// Reasons of a relay's health that this page shows itself, with links.
const SHOWN: &[ReasonKind] = &[
    ReasonKind::DeadLetters,
    ReasonKind::HeldKeys,
    ReasonKind::OldestAge,
    ReasonKind::Paused,
    ReasonKind::UnservedRoute,
];

/// Age of the oldest message from which it needs attention.
const OLD: Duration = Duration::from_secs(60);

/// Number of points of a line.
const POINTS: usize = 180;

/// Spans of the charts: name in the address, label, hours.
const SPANS: [(&str, &str, u64); 3] = [("1h", "1 hour", 1), ("6h", "6 hours", 6), ("24h", "24 hours", 24)];

/// Columns of the table of routes.
const HEAD: &[&str] = &[
    "Route",
    "#Pending",
    "#Oldest",
    "#Parked",
    "#Retrying keys",
    "#Held keys",
    "#Dead",
    "#Scheduled",
    "Relays",
];

/// A route, with what is known of it.
struct View {
    status: RouteStatus,
    backlog: Backlog,
    ownership: Ownership,
}

/// Shows it.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    let mut routes = Vec::new();
    let known = visit.app.routes().await?;
    let hidden = known.len().saturating_sub(MAX_ROUTES);
    for status in known.into_iter().take(MAX_ROUTES) {
        let backlog = visit.app.backlog(&status.route).await?;
        let ownership = visit.ask(visit.store().ownership(&status.route)).await?;
        routes.push(View { status, backlog, ownership });
    }
    let unserved = visit.ask(visit.store().unserved(OLD)).await?;
    let body = html! {
        (attention(visit, &routes, &unserved))
        (tiles(visit, &routes))
        (charts(visit))
        h2 { "Routes" }
        (table(visit, &routes, &unserved))
        @if hidden > 0 {
            p.quiet {
                "This page shows and adds up " (MAX_ROUTES) " routes, and " (count(hidden as u64, "other"))
                " not: " code { "outbox status" } " looks at all."
            }
        }
    };
    Ok(Page::live("Overview", body))
}

/// Shows what needs attention, or that nothing does.
fn attention(visit: &Visit, routes: &[View], unserved: &[Unserved]) -> Markup {
    let mut found: Vec<(&str, Markup)> = Vec::new();
    if let Some(relay) = &visit.app.relay {
        let health = relay.health();
        for reason in health.reasons.iter().filter(|reason| !SHOWN.contains(&reason.kind)) {
            let class = if reason.status == Status::Unhealthy { "bad" } else { "warn" };
            found.push((class, html! { (text::short(&visit.app.redacted(&reason.text), 400)) }));
        }
    }
    for it in unserved.iter().take(10) {
        let remedy = if it.can_be_served { "Start a relay of it." } else { "Correct its name in the rows." };
        found.push((
            "bad",
            html! {
                (of(it.route.as_str())) "no running relay serves it; its oldest message has waited for "
                (age(it.oldest_age)) ". " (remedy)
            },
        ));
    }
    for View { status, backlog, ownership } in routes {
        let (route, name) = (&status.route, status.route.as_str());
        let is_unserved = unserved.iter().any(|it| it.route == *route);
        if let Some(paused) = paused(&status.paused) {
            let to = visit.to("/topics", &[("route", name)]);
            found
                .push(("warn", html! { (of(name)) a href=(to) { (paused) } ", until an operator resumes." }));
        }
        if let Some(away) = unreachable(visit, name, ownership) {
            found.push(("bad", html! { (of(name)) (away) }));
        }
        let is_old = |oldest: &Duration| *oldest > OLD && !is_unserved;
        if let Some(oldest) = backlog.oldest_pending_age.filter(is_old) {
            found.push(("warn", html! { (of(name)) "the oldest message has waited for " (age(oldest)) "." }));
        } else if let Some(oldest) = backlog.oldest_age.filter(is_old) {
            let what = "the oldest message of failing keys has waited for ";
            found.push(("warn", html! { (of(name)) (what) (age(oldest)) "." }));
        }
        if backlog.unowned_buckets > 0 && !is_unserved {
            let (to, unowned) = (visit.to("/relays", &[("route", name)]), backlog.unowned_buckets);
            let what = count(unowned, "bucket");
            found.push((
                "warn",
                html! { (of(name)) "no relay owns " a href=(to) { (what) } " with messages." },
            ));
        }
        let number = |figure, noun| {
            let more = if backlog.is_at_least(figure) { "at least " } else { "" };
            format!("{more}{}", count(figure, noun))
        };
        if backlog.retrying_keys > 0 {
            let (to, what) = (visit.to("/keys", &[("route", name)]), number(backlog.retrying_keys, "key"));
            let failing = "failing, and being retried: ";
            found.push(("warn", html! { (of(name)) (failing) a href=(to) { (what) } "." }));
        }
        if backlog.held_keys > 0 {
            found.push(("warn", decide(visit, name, "/keys", &number(backlog.held_keys, "held key"))));
        }
        if backlog.dead > 0 {
            found.push(("warn", decide(visit, name, "/causes", &number(backlog.dead, "dead letter"))));
        }
    }
    let is_live = |view: &View| view.ownership.relays.iter().any(|relay| relay.live);
    html! {
        @if found.is_empty() && !routes.iter().any(is_live) {
            p.verdict { "Nothing waits for long, but no relay is running." }
        } @else if found.is_empty() {
            p.verdict.good { "Everything flows. Nothing needs attention." }
        } @else {
            ul.verdict { @for (class, what) in &found { li class=(class) { (what) } } }
        }
    }
}

fn of(route: &str) -> Markup {
    html! { "Route " b { bdi { (text::short(route, 64)) } } ": " }
}

/// Says which relays do not reach their broker. The relay of this process says so itself, and a
/// member of an inbox has no broker of its own.
fn unreachable(visit: &Visit, route: &str, ownership: &Ownership) -> Option<Markup> {
    let own = visit.app.relay.as_ref().map(RelayObserver::id);
    let is_away = |relay: &&RelayStatus| relay.live && relay.unavailable_since.is_some();
    let mut away = ownership.relays.iter().filter(is_away).filter(|relay| Some(relay.relay) != own);
    let first = away.next().filter(|_| !route.starts_with("inbox/"))?;
    let since = age(ownership.now.since(first.unavailable_since?));
    let more = away.count() as u64;
    Some(html! {
        "the broker is unavailable to the relay "
        a href=(visit.to("/relays", &[("route", route)])) { bdi { (text::short(&first.label, 60)) } }
        " (for over " (since) ")" @if more > 0 { " and " (count(more, "other")) } "."
    })
}

/// Says what of a route is paused.
fn paused(paused: &Paused) -> Option<String> {
    match paused.topics.as_slice() {
        _ if paused.route => Some("the route is paused".to_owned()),
        [] => None,
        [topic] => Some(format!("the topic {} is paused", text::short(topic.as_str(), 64))),
        topics => Some(format!("{} are paused", count(topics.len() as u64, "topic"))),
    }
}

fn decide(visit: &Visit, route: &str, path: &str, what: &str) -> Markup {
    html! { (of(route)) a href=(visit.to(path, &[("route", route)])) { (what) } ", until an operator decides." }
}

/// Shows the figures of all routes.
fn tiles(visit: &Visit, routes: &[View]) -> Markup {
    let sum = |figure: fn(&Backlog) -> u64| routes.iter().map(|view| figure(&view.backlog)).sum::<u64>();
    let plus = |more| if more { "+" } else { "" };
    let more = |figure: fn(&Backlog) -> u64| {
        plus(routes.iter().any(|view| view.backlog.is_at_least(figure(&view.backlog))))
    };
    let total = |figure: fn(&Backlog) -> u64| format!("{}{}", number(sum(figure)), more(figure));
    let oldest = routes.iter().filter_map(|view| view.backlog.oldest_age).max();
    let failing = sum(|backlog| backlog.retrying_keys + backlog.held_keys);
    let (parked, dead) = (sum(|backlog| backlog.parked), sum(|backlog| backlog.dead));
    let is_cut = plus(routes.iter().any(|view| view.backlog.pending_is_at_least));
    let pending = format!("{}{is_cut}", number(sum(|backlog| backlog.pending)));
    let (age, waits) =
        oldest.map_or(("–".to_owned(), "nothing waits"), |oldest| (age(oldest), "has waited"));
    let flag = |is: bool, class| if is { class } else { "" };
    let held = format!("{} held", total(|backlog| backlog.held_keys));
    let tiles = [
        ("Oldest", "/messages", age, flag(oldest > Some(OLD), "warn"), waits),
        ("Pending", "/messages", pending, "", "to be sent"),
        (
            "Parked",
            "/messages?view=parked",
            total(|backlog| backlog.parked),
            flag(parked > 0, "warn"),
            "behind failing keys",
        ),
        ("Failing keys", "/keys", number(failing), flag(failing > 0, "warn"), held.as_str()),
        ("Dead letters", "/dead", total(|backlog| backlog.dead), flag(dead > 0, "bad"), "given up"),
        ("Scheduled", "/scheduled", total(|backlog| backlog.scheduled), "", "due later"),
    ];
    html! {
        div.tiles {
            @for (label, path, value, class, note) in &tiles {
                a class={ "tile " (class) } href={ (visit.base) (path) } {
                    span { (label) } b { (value) } small { (note) }
                }
            }
        }
    }
}

fn seconds(value: f64) -> String {
    age(Duration::from_secs_f64(value.clamp(0.0, 1e9)))
}

fn whole(value: f64) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts are positive and small"
    )]
    number(value.max(0.0).round() as u64)
}

fn rate(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}/s") } else { format!("{}/s", whole(value)) }
}

/// Shows the charts of the last hours.
fn charts(visit: &Visit) -> Markup {
    let asked = visit.params.get("span").unwrap_or(SPANS[0].0);
    let (_, label, hours) = SPANS.into_iter().find(|(name, ..)| *name == asked).unwrap_or(SPANS[0]);
    let span = Duration::from_secs(hours * 3_600);
    let now = visit.now;
    let at = |part: u32| {
        let ago = i64::try_from((span / 2 * part).as_micros()).unwrap_or_default();
        let text = format::at(Timestamp::from_micros(now.as_micros() - ago));
        text.get(11..16).unwrap_or_default().to_owned()
    };
    let (start, middle, end) = (at(2), at(1), at(0));
    let series = visit.app.series();
    let line = |name: &'static str, class: &'static str, value: Value| Line {
        name,
        class,
        values: series.bins(now, span, POINTS, value),
    };
    let waiting = [line("all", "c1", values::waiting), line("parked", "c2", values::parked)];
    let aside = [line("failing keys", "c2", values::failing), line("dead letters", "c4", values::dead)];
    let shown =
        |title: &str, lines: &[Line<'_>], form: Form| chart(title, lines, form, [&start, &middle, &end]);
    html! {
        div.charthead {
            h2 { "Last " (label.trim_start_matches("1 ")) }
            p.tabs {
                @for (name, label, of) in SPANS {
                    a href=(visit.to("/", &[("span", name)])) aria-current=[(of == hours).then_some("page")] {
                        (label)
                    }
                }
            }
        }
        div.charts {
            (shown("Age of the oldest message", &[line("age", "c1", values::oldest)], seconds))
            (shown("Messages that wait", &waiting, whole))
            @if visit.app.relay.is_some() {
                (shown("Delivered by this relay", &[line("delivered", "c3", values::rate)], rate))
                (shown("From append to confirmation", &[line("mean", "c3", values::latency)], seconds))
            }
            (shown("Set aside", &aside, whole))
        }
    }
}

fn table(visit: &Visit, routes: &[View], unserved: &[Unserved]) -> Markup {
    let quiet =
        |number: u64| html! { @if number == 0 { span.quiet { "0" } } @else { (format::number(number)) } };
    html! {
        div.scroll {
            table.list {
                (list::head(HEAD))
                tbody {
                    @for View { status, backlog, .. } in routes {
                        @let (route, name) = (&status.route, status.route.as_str());
                        @let counted = |figure| html! { (quiet(figure)) @if backlog.is_at_least(figure) { "+" } };
                        tr {
                            td data-name="Route" {
                                a href=(visit.to("/topics", &[("route", name)])) {
                                    bdi { (text::short(name, 64)) }
                                }
                            }
                            td.number data-name="Pending" {
                                (quiet(backlog.pending)) @if backlog.pending_is_at_least { "+" }
                            }
                            td.number data-name="Oldest" {
                                @match backlog.oldest_age {
                                    Some(oldest) => (age(oldest)), None => span.quiet { "–" }
                                }
                            }
                            td.number data-name="Parked" { (counted(backlog.parked)) }
                            td.number data-name="Retrying keys" { (counted(backlog.retrying_keys)) }
                            td.number data-name="Held keys" { (counted(backlog.held_keys)) }
                            td.number data-name="Dead" { (counted(backlog.dead)) }
                            td.number data-name="Scheduled" { (counted(backlog.scheduled)) }
                            td data-name="Relays" {
                                a href=(visit.to("/relays", &[("route", name)])) {
                                    @if unserved.iter().any(|it| it.route == *route) {
                                        span.state.bad { "none" }
                                    }
                                    @else if backlog.unowned_buckets > 0 {
                                        span.state.warn {
                                            (count(backlog.unowned_buckets, "unowned bucket"))
                                        }
                                    }
                                    @else { "show" }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}
