//! `backup-check`: the signs of a restored backup, of a copy, and of tables that are of different
//! times.

use std::time::Duration;

use outbox::admin::{AuditEntry, Filter, MAX_PER_CALL, Misplaced, Ownership, RelayStatus};
use outbox::{Admin, AdminExt, Route, Store, Timestamp};
use serde_json::{Value, json};

use crate::app::{App, count};
use crate::exit::{Exit, Failed, Outcome};
use crate::findings::Finding;
use crate::message::instant;
use crate::open::{self, Database, Missing};

/// Name under which the audit records a new identity.
const RENEWED: &str = "renew_identity";
/// Maximum number of pages of the audit that are searched for it.
const PAGES: usize = 20;
/// Difference between a time of the database and its clock that is no sign yet.
const TOLERANCE: Duration = Duration::from_secs(5);

pub(crate) async fn run(app: &App) -> Outcome {
    let store = open::store(&app.settings, Missing::Refuse).await?;
    if let Err(error) = Store::check(&*store).await {
        let remedy = "restore the whole database, or create and upgrade the tables with `outbox migrate`";
        return report(app, None, &[Finding::new("schema", format!("store: {error}"), remedy)]);
    }
    let signs = Signs::look(&*store).await?;
    let findings = signs.findings();
    report(app, Some(&signs), &findings)
}

/// Signs of its past that a database shows.
#[derive(Debug)]
pub(crate) struct Signs {
    source: String,
    /// Time of the last new identity that the audit knows.
    renewed: Option<Timestamp>,
    /// Time of the newest entry of the audit.
    audited: Option<Timestamp>,
    /// Time at which the newest waiting message was appended.
    appended: Option<Timestamp>,
    routes: Vec<(Route, Ownership)>,
    misplaced: Vec<Misplaced>,
}

impl Signs {
    pub(crate) async fn look(store: &dyn Database) -> Result<Self, Failed> {
        let newest = Filter { newest: true, limit: Some(1), ..Filter::all_routes() };
        let mut routes = Vec::new();
        for status in store.routes().await? {
            let ownership = store.ownership(&status.route).await?;
            routes.push((status.route, ownership));
        }
        Ok(Self {
            source: Admin::identity(store).await?.source(),
            renewed: renewed(store).await?,
            audited: store.audit(&newest).await?.first().map(|entry| entry.at),
            appended: store.waiting(&newest).await?.first().map(|listed| listed.stored.appended_at),
            routes,
            misplaced: store.misplaced().await?,
        })
    }

    /// Returns what is wrong, whether the database was restored or not.
    pub(crate) fn wrong(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = self.misplaced.iter().map(of_misplaced).collect();
        let now = self.now();
        let ahead = |at: Option<Timestamp>| at.zip(now).is_some_and(|(at, now)| at > now.plus(TOLERANCE));
        let future = [("entry of the audit", self.audited), ("waiting message", self.appended)];
        for (what, at) in future {
            if let Some(at) = at.filter(|at| ahead(Some(*at))) {
                findings.push(of_clock(&format!("the newest {what} is of {at}")));
            }
        }
        for (route, ownership) in &self.routes {
            let far = |relay: &&RelayStatus| relay.expires_at > ownership.now.plus(relay.lasts * 2);
            for relay in ownership.relays.iter().filter(far) {
                let (label, at) = (&relay.label, relay.expires_at);
                findings.push(of_clock(&format!("route {route}: relay {label} has leases until {at}")));
            }
        }
        findings
    }

    /// Returns everything that was found.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (route, relay) in self.left() {
            let RelayStatus { label, relay, expires_at, .. } = relay;
            findings.push(Finding::new(
                "left",
                format!(
                    "route {route}: relay {label} ({relay}) had leases until {expires_at} and never gave them back; the \
                     identity is older: this backup or copy was taken while the relay ran, or the relay was killed"
                ),
                "of a restored backup or a copy, with all relays stopped: give it a new identity with `outbox \
                 identity new`, or another relay.source if you configured one; the book says when not to (Backup \
                 and restore). Of a relay that was killed: start it again",
            ));
        }
        findings.extend(self.wrong());
        findings
    }

    /// Returns the time of the first view of a route, by the database's clock.
    fn now(&self) -> Option<Timestamp> {
        self.routes.first().map(|(_, ownership)| ownership.now)
    }

    /// Returns the relays of all routes.
    fn relays(&self) -> impl Iterator<Item = (&Route, &RelayStatus)> {
        self.routes.iter().flat_map(|(route, ownership)| ownership.relays.iter().map(move |it| (route, it)))
    }

    /// Returns relays that ended without giving back their leases, since the last new identity.
    fn left(&self) -> impl Iterator<Item = (&Route, &RelayStatus)> {
        let (renewed, now) = (self.renewed, self.now());
        // Leases in the future are a sign of their own.
        let has_passed = move |at: Timestamp| now.is_none_or(|now| at <= now);
        let is_later = move |at: Timestamp| renewed.is_none_or(|renewed| at > renewed);
        self.relays().filter(move |(_, relay)| has_passed(relay.expires_at) && is_later(relay.expires_at))
    }

    fn live(&self) -> usize {
        self.relays().filter(|(_, relay)| relay.live).count()
    }
}

/// Returns the time of the last new identity, as far back as the audit is kept and searched.
async fn renewed(store: &dyn Database) -> Result<Option<Timestamp>, Failed> {
    for page in 0..PAGES {
        let offset = page * MAX_PER_CALL;
        let filter = Filter { newest: true, limit: Some(MAX_PER_CALL), offset, ..Filter::all_routes() };
        let entries: Vec<AuditEntry> = store.audit(&filter).await?;
        if let Some(entry) = entries.iter().find(|entry| entry.operation == RENEWED) {
            return Ok(Some(entry.at));
        }
        if entries.len() < MAX_PER_CALL {
            break;
        }
    }
    Ok(None)
}

fn of_misplaced(misplaced: &Misplaced) -> Finding {
    Finding::new(
        "misplaced",
        format!("route {}: {}", misplaced.route, misplaced.text),
        format!("{}; relays deliver these messages within a minute", misplaced.remedy),
    )
}

fn of_clock(what: &str) -> Finding {
    Finding::new(
        "clock",
        format!("{what}, which is in the future of the database's clock"),
        "correct the clock of the database server; relays take over such leases, and ages are wrong until then",
    )
}

fn report(app: &App, signs: Option<&Signs>, findings: &[Finding]) -> Outcome {
    let renewed = signs.and_then(|signs| signs.renewed);
    if app.out.is_json() {
        app.out.object(&json!({
            "source": signs.map(|signs| &signs.source),
            "identity_renewed_at": renewed.map_or(Value::Null, instant),
            "live_relays": signs.map(Signs::live),
            "findings": findings.iter().map(Finding::json).collect::<Vec<_>>(),
        }))?;
        return Ok(Exit::of_findings(!findings.is_empty()));
    }
    if let Some(signs) = signs {
        let since = renewed.map_or_else(String::new, |at| format!(", renewed at {at}"));
        let live = signs.live() as u64;
        app.out.text(&format!("identity: {}{since}; {} alive", signs.source, count(live, "relay")))?;
    }
    for finding in findings {
        app.out.say(&finding.lines(), &Value::Null)?;
    }
    app.out.text(&match findings.len() as u64 {
        0 => "no sign of a restored backup or a copy; one that was taken while no relay ran shows none"
            .to_owned(),
        found => count(found, "finding"),
    })?;
    Ok(Exit::of_findings(!findings.is_empty()))
}
