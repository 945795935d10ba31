//! `status`: the backlog, and what needs attention.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::Duration;

use outbox::Route;
use outbox::admin::Ownership;
use outbox::relay::{Backlog, Unserved};
use serde_json::{Value, json};

use crate::app::App;
use crate::args::StatusArgs;
use crate::commands::overview;
use crate::commands::signals::Signals;
use crate::exit::{Exit, Failed, Outcome};
use crate::findings::{self, Finding};
use crate::open::Database;
use crate::out::Row;
use crate::time;

pub(crate) async fn run(app: &App, args: &StatusArgs) -> Outcome {
    let store = app.store().await?;
    let Some(pause) = args.watch else {
        return show(app, &Picture::take(&*store, &args.route, args.max_age).await?);
    };
    again_and_again(app, pause, async || show(app, &Picture::take(&*store, &args.route, args.max_age).await?))
        .await
}

/// `top`: the status with relays and topics, live on a terminal, once elsewhere.
pub(crate) async fn top(app: &App, args: &StatusArgs) -> Outcome {
    let store = app.store().await?;
    let look = async || {
        let picture = Picture::take(&*store, &args.route, args.max_age).await?;
        if app.out.is_json() {
            return show(app, &picture);
        }
        let shown = show(app, &picture)?;
        for RouteView { route, ownership, .. } in &picture.routes {
            app.out.say(&format!("\n{route}: relays {}", overview::live(ownership)), &Value::Null)?;
            let topics = overview::topic_rows(&*store, route).await?;
            app.out.list(
                &["topic", "waiting", "oldest", "parked", "retrying keys", "held keys", "dead"],
                &topics,
            )?;
        }
        Ok(shown)
    };
    if app.out.is_json() || !std::io::stdout().is_terminal() {
        return look().await;
    }
    again_and_again(app, args.watch.unwrap_or(PAUSE), look).await
}

/// Pause of `top` between two looks.
const PAUSE: Duration = Duration::from_secs(2);

/// Shows something on a clear terminal, until a signal ends the program.
async fn again_and_again(app: &App, pause: Duration, show: impl AsyncFn() -> Outcome) -> Outcome {
    let mut signals = Signals::listen()?;
    tokio::select! {
        ended = forever(app, pause, show) => ended,
        () = signals.next() => Ok(Exit::Done),
    }
}

async fn forever(app: &App, pause: Duration, show: impl AsyncFn() -> Outcome) -> Outcome {
    loop {
        if !app.out.is_json() {
            // Clears the terminal.
            app.out.text("\u{1b}[2J\u{1b}[H")?;
        }
        show().await?;
        tokio::time::sleep(pause).await;
    }
}

/// State of a store at one time.
pub(crate) struct Picture {
    store: &'static str,
    routes: Vec<RouteView>,
    unserved: Vec<Unserved>,
    pub(crate) findings: Vec<Finding>,
}

/// A route, as `status` shows it.
struct RouteView {
    route: Route,
    backlog: Backlog,
    ownership: Ownership,
}

impl Picture {
    /// Asks the store.
    pub(crate) async fn take(
        store: &dyn Database,
        routes: &[Route],
        max_age: Duration,
    ) -> Result<Self, Failed> {
        let unserved = store.unserved(max_age).await?;
        let mut picture = Self { store: store.name(), routes: Vec::new(), unserved, findings: Vec::new() };
        let unserved = picture.unserved.iter().filter(|it| it.can_be_served).map(|it| it.route.clone());
        let known = store.routes().await?.into_iter().map(|status| status.route);
        // Every route is looked at: however many dead letters and failing keys one has, it hides no
        // other. Routes of inboxes, too, have no relay of their own name.
        let names: Vec<Route> = routes.iter().cloned().chain(unserved).chain(known).collect();
        let mut seen = BTreeSet::new();
        for route in names {
            if !seen.insert(route.clone()) {
                continue;
            }
            let is_unserved = picture.unserved.iter().any(|it| it.route == route);
            let (backlog, ownership) = (store.backlog(&route).await?, store.ownership(&route).await?);
            let mut of_backlog = findings::of_backlog(&route, &backlog, max_age);
            if is_unserved {
                // It is told once.
                of_backlog.retain(|finding| !matches!(finding.code, "unowned" | "old"));
            }
            // Causes come before what they cause.
            let mut found: Vec<Finding> =
                findings::of_pauses(&route, &ownership.paused).into_iter().collect();
            found.extend(findings::of_unreachable(&route, &ownership));
            found.extend(of_backlog);
            found.extend(findings::of_relays(&route, &ownership));
            if is_unserved || !found.is_empty() || routes.contains(&route) {
                picture.routes.push(RouteView { route, backlog, ownership });
            }
            picture.findings.extend(found);
        }
        picture.findings.extend(picture.unserved.iter().map(findings::of_unserved));
        Ok(picture)
    }

    fn json(&self) -> Value {
        json!({
            "store": self.store,
            "healthy": self.findings.is_empty(),
            "routes": self.routes.iter().map(object).collect::<Vec<_>>(),
            "unserved": self.unserved.iter().map(|it| json!({
                "route": it.route.as_str(),
                "oldest_age_seconds": it.oldest_age.as_secs_f64(),
                "can_be_served": it.can_be_served,
            })).collect::<Vec<_>>(),
            "findings": self.findings.iter().map(Finding::json).collect::<Vec<_>>(),
        })
    }

    /// Returns true if a relay of a route that is shown is alive.
    pub(crate) fn is_served(&self) -> bool {
        self.routes.iter().any(|view| view.ownership.relays.iter().any(|relay| relay.live))
    }

    /// Returns the routes as rows of a table.
    fn rows(&self) -> Vec<Row> {
        let row = |view: &RouteView| {
            let RouteView { route, backlog, ownership } = view;
            let more = if backlog.pending_is_at_least { "+" } else { "" };
            let figure = |figure| format!("{figure}{}", if backlog.is_at_least(figure) { "+" } else { "" });
            let cells = vec![
                route.to_string(),
                format!("{}{more}", backlog.pending),
                backlog.oldest_age.map_or_else(|| "-".to_owned(), time::age),
                figure(backlog.parked),
                figure(backlog.retrying_keys),
                figure(backlog.held_keys),
                figure(backlog.dead),
                figure(backlog.scheduled),
                ownership.relays.iter().filter(|relay| relay.live).count().to_string(),
                overview::paused(&ownership.paused),
            ];
            Row { json: object(view), cells }
        };
        self.routes.iter().map(row).collect()
    }
}

fn object(RouteView { route, backlog, ownership }: &RouteView) -> Value {
    json!({
        "route": route.as_str(),
        "pending": backlog.pending,
        "pending_is_at_least": backlog.pending_is_at_least,
        "oldest_age_seconds": backlog.oldest_age.map(|age| age.as_secs_f64()),
        "parked": backlog.parked,
        "retrying_keys": backlog.retrying_keys,
        "held_keys": backlog.held_keys,
        "dead_letters": backlog.dead,
        "scheduled": backlog.scheduled,
        "unowned_buckets": backlog.unowned_buckets,
        "counting_limit": backlog.counting_limit,
        "relays": ownership.relays.iter().map(overview::relay_object).collect::<Vec<_>>(),
        "paused": overview::paused_object(&ownership.paused),
    })
}

fn show(app: &App, picture: &Picture) -> Outcome {
    if app.out.is_json() {
        app.out.object(&picture.json())?;
    } else {
        app.out.list(
            &[
                "route",
                "pending",
                "oldest",
                "parked",
                "retrying keys",
                "held keys",
                "dead",
                "scheduled",
                "relays",
                "paused",
            ],
            &picture.rows(),
        )?;
        if picture.findings.is_empty() {
            app.out.text(if picture.is_served() {
                "\nhealthy"
            } else {
                "\nhealthy, but no relay is running"
            })?;
        }
        for finding in &picture.findings {
            app.out.say(&format!("\n{}", finding.lines()), &Value::Null)?;
        }
    }
    Ok(Exit::of_findings(!picture.findings.is_empty()))
}
