//! `check` and `doctor`: is everything ready, and is anything wrong?

use std::time::Duration;

use outbox::admin::{Diagnosis, DiagnosisKind};
use outbox::{Admin, Route, Store, Transport};
use serde_json::json;

use crate::app::{App, count};
use crate::commands::backup::Signs;
use crate::commands::examine;
use crate::commands::status::Picture;
use crate::exit::{Exit, Failed, Outcome};
use crate::findings::Finding;
use crate::open::{self, Missing};
use crate::redact;

/// Age of the oldest message from which `doctor` finds it too old.
const MAX_AGE: Duration = Duration::from_secs(60);

/// Longest wait for a broker, or for its examination.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// Checks database and broker; the first problem is the answer.
pub(crate) async fn run(app: &App) -> Outcome {
    let store = app.store().await?;
    ready(app, "store", store.name(), app.settings.store()?)?;
    if let Some(url) = &app.settings.transport {
        let transport = app.transport()?;
        reach(&*transport).await?;
        ready(app, "transport", transport.name(), url)?;
    }
    Ok(Exit::Done)
}

fn ready(app: &App, what: &str, name: &str, url: &str) -> Result<(), Failed> {
    let url = redact::url(url);
    app.out.say(
        &format!("{what} {name} is ready: {url}"),
        &json!({ "checked": what, "kind": name, "url": url, "ready": true }),
    )
}

pub(crate) async fn reach(transport: &dyn Transport) -> Result<(), Failed> {
    match tokio::time::timeout(PATIENCE, transport.check()).await {
        Ok(checked) => Ok(checked?),
        Err(_) => Err(Failed::error(format!(
            "the broker ({}) gave no answer within {} s; check address, network and state of the broker",
            transport.name(),
            PATIENCE.as_secs()
        ))),
    }
}

/// Checks everything, and reports all that it finds.
pub(crate) async fn doctor(app: &App) -> Outcome {
    let mut findings = settings(app);
    let (mut checked, mut unchecked) = (vec!["settings"], Vec::new());
    let store = match open::store(&app.settings, Missing::Refuse).await {
        Ok(store) => Some(store),
        Err(error @ Failed::Usage(_)) => return Err(error),
        Err(error) => {
            findings.push(of_store("store", &error));
            None
        }
    };
    let (mut ready, mut is_served) = (None, false);
    if let Some(store) = &store {
        checked.push("store");
        match Store::check(&**store).await {
            Ok(()) => {
                ready = Some(&**store);
                checked.push("backlog");
                let picture = Picture::take(&**store, &[Route::default()], MAX_AGE).await?;
                is_served = picture.is_served();
                findings.extend(picture.findings);
                checked.push("positions");
                findings.extend(Signs::look(&**store).await?.wrong());
                checked.push("database");
                let (unseen, found): (Vec<Diagnosis>, Vec<Diagnosis>) = Admin::diagnose(&**store)
                    .await?
                    .into_iter()
                    .partition(|diagnosis| diagnosis.kind == DiagnosisKind::Unseen);
                findings.extend(found.iter().map(Finding::of_diagnosis));
                unchecked.extend(unseen.iter().map(Finding::of_diagnosis));
            }
            Err(error) => findings.push(of_store("schema", &error.into())),
        }
    }
    if app.settings.transport.is_some() || !app.settings.routes.is_empty() {
        checked.extend(["transport", "broker"]);
        let examined = examine::brokers(app, ready).await?;
        findings.extend(examined.findings);
        unchecked.extend(examined.unchecked);
    }
    report(app, &checked, is_served, (&findings, &unchecked))
}

/// Returns the finding about a store that is not ready.
fn of_store(code: &'static str, error: &Failed) -> Finding {
    let (text, remedy) = error.parts();
    let remedy = remedy.unwrap_or_else(|| "correct what the error names".to_owned());
    Finding::new(code, format!("store: {text}"), remedy)
}

/// Returns the problems of settings that are valid as TOML.
fn settings(app: &App) -> Vec<Finding> {
    let mut findings: Vec<Finding> = app
        .settings
        .relay
        .problems()
        .into_iter()
        .map(|problem| Finding::new("settings", format!("relay: {problem}"), "correct the setting"))
        .collect();
    if app.settings.transport.is_none() {
        findings.push(Finding::new(
            "no-transport",
            "no broker is named: it was not checked",
            "give its URL with --transport, or in OUTBOX_TRANSPORT",
        ));
    }
    findings
}

/// Shows the findings. What this user may not see is no finding, and not healthy either.
fn report(
    app: &App,
    checked: &[&str],
    is_served: bool,
    (findings, unchecked): (&[Finding], &[Finding]),
) -> Outcome {
    let end = Ok(Exit::of_findings(!findings.is_empty()));
    if app.out.is_json() {
        let list = |findings: &[Finding]| findings.iter().map(Finding::json).collect::<Vec<_>>();
        app.out.object(&json!({
            "checked": checked,
            "healthy": findings.is_empty() && unchecked.is_empty(),
            "findings": list(findings),
            "unchecked": list(unchecked),
        }))?;
        return end;
    }
    app.out.text(&format!("checked: {}", checked.join(", ")))?;
    for finding in findings {
        app.out.say(&finding.lines(), &serde_json::Value::Null)?;
    }
    for Finding { text, remedy, .. } in unchecked {
        app.out.text(&format!("not checked: {text}\n  remedy: {remedy}"))?;
    }
    let found = findings.len() as u64;
    app.out.text(&match found {
        0 if unchecked.is_empty() && is_served => "all is well".to_owned(),
        0 if unchecked.is_empty() => "all is well, but no relay is running".to_owned(),
        0 => "nothing wrong in what was checked".to_owned(),
        found => count(found, "finding"),
    })?;
    end
}
