//! Settings of the dashboard and of the program that serves it.

use maud::html;

use crate::format;
use crate::problem::Problem;
use crate::text;
use crate::view::Page;
use crate::view::fields::fields;
use crate::visit::Visit;

/// Shows them.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    let app = &visit.app;
    let identity = visit.ask(visit.store().identity()).await?;
    let payloads = match app.payloads_for {
        crate::Role::Operator => "operators",
        crate::Role::ReadOnly => "every visitor",
    };
    let role = if visit.may_act() { "operator" } else { "read-only" };
    let own = [
        ("Store", html! { (app.store.name()) }),
        ("Identity", html! { code { (identity) } }),
        ("Version", html! { (env!("CARGO_PKG_VERSION")) }),
        ("Access", html! { (text::line(&app.gate.access().text())) }),
        ("You", html! { bdi { (text::short(&visit.principal.name, 100)) } ", " (role) }),
        ("Payloads", html! { "seen by " (payloads) }),
        ("Store timeout", html! { (format::age(app.store_timeout)) }),
        ("Samples", html! { "every " (format::age(app.sample_every)) ", kept for 24h in memory" }),
    ];
    let body = html! {
        (fields(&own))
        @if let Some(relay) = &app.relay {
            h2 { "Relay of this process" }
            @let stats = relay.stats();
            (fields(&[
                ("Id", html! { code { (relay.id()) } }),
                ("Delivered", html! { (format::number(stats.delivered)) }),
                ("Failed attempts", html! { (format::number(stats.failed)) }),
                ("Unknown outcomes", html! { (format::number(stats.unknown)) }),
                ("Dead letters", html! { (format::number(stats.dead_lettered)) }),
                ("In flight", html! { (format::number(stats.in_flight as u64)) }),
                ("Restarts", html! { (format::number(stats.restarts)) }),
            ]))
        }
        @if !app.settings.is_empty() {
            h2 { "Configuration" }
            table.headers {
                tbody {
                    @for (name, value) in &app.settings {
                        tr { th { (text::line(name)) } td { (text::short(&app.redacted(value), 1_000)) } }
                    }
                }
            }
        }
    };
    Ok(Page::still("Settings", body))
}
