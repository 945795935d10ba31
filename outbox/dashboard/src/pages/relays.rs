//! Relays of a route, and the buckets that they own.

use std::collections::BTreeMap;

use maud::{Markup, html};
use outbox::Route;
use outbox::admin::{BucketOwner, Ownership, RouteStatus};
use outbox::relay::RelayId;

use crate::app::MAX_ROUTES;
use crate::format::{self, age, count};
use crate::problem::Problem;
use crate::selection::Selection;
use crate::text;
use crate::view::{Page, empty, list};
use crate::visit::Visit;

/// Number of colors that tell relays apart.
const COLORS: usize = 6;

/// Meaning of an empty page.
const NORMAL: &str = "Relays of every process are listed here from their first heartbeat on.";

/// Shows them.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    let route = Selection::of(&visit.params, visit.now)?.filter.route.unwrap_or_default();
    let routes = visit.app.routes().await?;
    let ownership = visit.ask(visit.store().ownership(&route)).await?;
    let body = html! {
        (routes_as_tabs(visit, "/relays", &routes, &route))
        @if ownership.relays.is_empty() {
            (empty("No relay has served this route lately.", NORMAL))
        } @else {
            (relays(visit, &route, &ownership))
            h2 { "Buckets" }
            (buckets(visit, &ownership))
        }
    };
    Ok(Page::live("Relays and buckets", body))
}

/// Shows the routes, of which one is chosen.
pub(crate) fn routes_as_tabs(visit: &Visit, path: &str, routes: &[RouteStatus], chosen: &Route) -> Markup {
    let hidden = routes.len().saturating_sub(MAX_ROUTES);
    let routes: Vec<&Route> = routes.iter().take(MAX_ROUTES).map(|status| &status.route).collect();
    html! {
        @if routes.len() > 1 || !routes.contains(&chosen) {
            p.tabs {
                @for route in routes.iter().copied().chain((!routes.contains(&chosen)).then_some(chosen)) {
                    @let (to, is_here) = (visit.to(path, &[("route", route.as_str())]), route == chosen);
                    a href=(to) aria-current=[is_here.then_some("page")] {
                        bdi { (text::short(route.as_str(), 40)) }
                    }
                }
                @if hidden > 0 { span.quiet { "and " (format::number(hidden as u64)) " more" } }
            }
        }
    }
}

fn color(relays: &BTreeMap<RelayId, usize>, relay: RelayId) -> String {
    relays.get(&relay).map_or_else(|| "none".to_owned(), |number| format!("r{}", number % COLORS))
}

fn numbered(ownership: &Ownership) -> BTreeMap<RelayId, usize> {
    let live = ownership.relays.iter().filter(|relay| relay.live || relay.buckets > 0);
    live.enumerate().map(|(number, status)| (status.relay, number)).collect()
}

fn relays(visit: &Visit, route: &Route, ownership: &Ownership) -> Markup {
    // An inbox's transport is its handlers: it gives way while they are too old.
    let ill = if route.as_str().starts_with("inbox/") { "gives way or unavailable" } else { "unavailable" };
    let numbers = numbered(ownership);
    let live: Vec<_> = ownership.relays.iter().filter(|relay| relay.live).collect();
    let agree = live.windows(2).all(|pair| pair[0].fingerprint == pair[1].fingerprint);
    let is_own = |relay| visit.app.relay.as_ref().is_some_and(|own| own.id() == relay);
    html! {
        @if !agree {
            p.notice.bad { "Relays of this route are configured differently. Deploy one configuration." }
        }
        div.scroll {
            table.list {
                (list::head(&["State", "Relay", "Id", "#Buckets", "Lease", "Transport"]))
                tbody {
                    @for status in &ownership.relays {
                        tr {
                            td data-name="State" {
                                @if status.live { span.state.good { "live" } } @else { span.state { "gone" } }
                            }
                            td data-name="Relay" {
                                i class={ "swatch " (color(&numbers, status.relay)) } aria-hidden="true" {} " "
                                bdi { (text::short(&status.label, 60)) }
                                @if is_own(status.relay) { " " span.chip { "this process" } }
                            }
                            td data-name="Id" {
                                code title=(status.relay) { "…" (list::tail(&status.relay.to_string())) }
                            }
                            td.number data-name="Buckets" { (status.buckets) }
                            td.nowrap data-name="Lease" {
                                @if status.live {
                                    "ends in " (age(status.expires_at.since(ownership.now))) span.quiet {
                                        " of " (age(status.lasts))
                                    }
                                }
                                @else { "ended " (age(ownership.now.since(status.expires_at))) " ago" }
                            }
                            td data-name="Transport" {
                                @match status.unavailable_since {
                                    Some(at) => {
                                        span.state.bad { (ill) }
                                        " for " (age(ownership.now.since(at)))
                                    }
                                    None if status.live => span.quiet { "available" },
                                    None => span.quiet { "–" },
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn buckets(visit: &Visit, ownership: &Ownership) -> Markup {
    let numbers = numbered(ownership);
    let unowned = ownership.buckets.iter().filter(|bucket| bucket.owner.is_none()).count();
    let label = |relay| {
        ownership.relay(relay).map_or_else(|| relay.to_string(), |status| text::short(&status.label, 60))
    };
    let spoken = |bucket: &BucketOwner| {
        let since = bucket.since.map_or_else(String::new, |at| format!(", since {}", format::at(at)));
        let owner = bucket.owner.map_or_else(|| "no owner".to_owned(), label);
        format!("bucket {}: {owner}, epoch {}{since}", bucket.bucket, bucket.epoch)
    };
    html! {
        @if unowned > 0 {
            p {
                span.state.warn { (count(unowned as u64, "bucket")) " without an owner" }
                " A live relay takes them at its next heartbeat."
            }
        }
        div.buckets role="list" {
            @for bucket in &ownership.buckets {
                @let class = bucket.owner.map_or_else(|| "none".to_owned(), |owner| color(&numbers, owner));
                @let told = spoken(bucket);
                span role="listitem" class={ (class) @if bucket.yielding { " yielding" } }
                title=(told) aria-label=(told) {}
            }
        }
        p.quiet {
            "Each square is one of 256 buckets, which share the keys. "
            "Hover over it for its owner, epoch and start."
        }
        details {
            summary { "As a table" }
            div.scroll {
                table.list {
                    (list::head(&["#Bucket", "Owner", "#Epoch", "Since", "#Read from"]))
                    tbody {
                        @for bucket in &ownership.buckets {
                            tr {
                                td.number data-name="Bucket" { (bucket.bucket) }
                                td data-name="Owner" {
                                    @match bucket.owner {
                                        Some(owner) => bdi { (label(owner)) }, None => span.quiet { "none" }
                                    }
                                    @if bucket.yielding { " " span.chip { "gives it up" } }
                                }
                                td.number data-name="Epoch" { (bucket.epoch) }
                                td.nowrap data-name="Since" {
                                    @if let Some(at) = bucket.since { (format::ago(at, visit.now)) }
                                }
                                td.number data-name="Read from" { (bucket.low_water) }
                            }
                        }
                    }
                }
            }
        }
    }
}
