//! `status`: the backlog, and what needs attention.

use std::time::Duration;

use outbox::Route;
use outbox::admin::Filter;
use outbox::backend::{Backlog, Unserved, View};
use serde_json::{Value, json};

use crate::app::App;
use crate::args::StatusArgs;
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
    // Ctrl-C ends the program.
    loop {
        let picture = Picture::take(&*store, &args.route, args.max_age).await?;
        if !app.out.is_json() {
            // Clears the terminal.
            app.out.text("\u{1b}[2J\u{1b}[H")?;
        }
        show(app, &picture)?;
        tokio::time::sleep(pause).await;
    }
}

/// Number of dead letters whose routes are shown: the oldest ones.
const LOOKED_AT: usize = 50;

/// State of a store at one time.
pub(crate) struct Picture {
    store: &'static str,
    routes: Vec<(Route, Backlog)>,
    unserved: Vec<Unserved>,
    pub(crate) findings: Vec<Finding>,
}

impl Picture {
    /// Asks the store.
    pub(crate) async fn take(
        store: &dyn Database,
        routes: &[Route],
        max_age: Duration,
    ) -> Result<Self, Failed> {
        let unserved = store.unserved(max_age).await?;
        let dead = Filter { limit: Some(LOOKED_AT), ..Filter::all_routes() };
        let dead = store.browse(View::DeadLetters, &dead).await?;
        let mut names: Vec<Route> = routes.to_vec();
        // Routes of inboxes have no relay of their own name, but failing keys and dead letters.
        let failing = store.failing_keys(&Filter::all_routes()).await?;
        let found = failing.into_iter().map(|key| key.route);
        names.extend(
            found
                .chain(dead.into_iter().map(|letter| letter.route))
                .chain(unserved.iter().filter(|it| it.can_be_served).map(|it| it.route.clone())),
        );
        let mut picture = Self { store: store.name(), routes: Vec::new(), unserved, findings: Vec::new() };
        for route in names {
            if picture.routes.iter().any(|(known, _)| *known == route) {
                continue;
            }
            let backlog = store.backlog(&route).await?;
            let mut findings = findings::of_backlog(&route, &backlog, max_age);
            if picture.unserved.iter().any(|it| it.route == route) {
                // It is told once.
                findings.retain(|finding| !matches!(finding.code, "unowned" | "old"));
            }
            picture.findings.extend(findings);
            picture.routes.push((route, backlog));
        }
        picture.findings.extend(picture.unserved.iter().map(findings::of_unserved));
        Ok(picture)
    }

    fn json(&self) -> Value {
        json!({
            "store": self.store,
            "healthy": self.findings.is_empty(),
            "routes": self.routes.iter().map(|(route, backlog)| object(route, backlog)).collect::<Vec<_>>(),
            "unserved": self.unserved.iter().map(|it| json!({
                "route": it.route.as_str(),
                "oldest_age_seconds": it.oldest_age.as_secs_f64(),
                "can_be_served": it.can_be_served,
            })).collect::<Vec<_>>(),
            "findings": self.findings.iter().map(Finding::json).collect::<Vec<_>>(),
        })
    }

    /// Returns the routes as rows of a table.
    fn rows(&self) -> Vec<Row> {
        let row = |(route, backlog): &(Route, Backlog)| {
            let more = if backlog.pending_is_at_least { "+" } else { "" };
            let cells = vec![
                route.to_string(),
                format!("{}{more}", backlog.pending),
                backlog.oldest_age.map_or_else(|| "-".to_owned(), time::age),
                backlog.parked.to_string(),
                backlog.retrying_keys.to_string(),
                backlog.held_keys.to_string(),
                backlog.dead.to_string(),
                backlog.scheduled.to_string(),
            ];
            Row { json: object(route, backlog), cells }
        };
        self.routes.iter().map(row).collect()
    }
}

fn object(route: &Route, backlog: &Backlog) -> Value {
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
    })
}

fn show(app: &App, picture: &Picture) -> Outcome {
    if app.out.is_json() {
        app.out.object(&picture.json())?;
    } else {
        app.out.list(
            &["route", "pending", "oldest", "parked", "retrying keys", "held keys", "dead", "scheduled"],
            &picture.rows(),
        )?;
        if picture.findings.is_empty() {
            app.out.text("\nhealthy")?;
        }
        for finding in &picture.findings {
            app.out.say(&format!("\n{}", finding.lines()), &Value::Null)?;
        }
    }
    Ok(Exit::of_findings(!picture.findings.is_empty()))
}
