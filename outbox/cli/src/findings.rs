//! Findings: what needs attention, and what to do about it.

use std::time::Duration;

use outbox::Route;
use outbox::admin::{Diagnosis, Ownership, Paused, RelayStatus};
use outbox::relay::{Backlog, Unserved};
use serde_json::{Value, json};

use crate::app::{count, quoted};
use crate::time;

/// Something that needs attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Stable name, for scripts.
    pub(crate) code: &'static str,
    /// The finding.
    pub(crate) text: String,
    /// The remedy.
    pub(crate) remedy: String,
}

impl Finding {
    /// Creates a finding.
    pub(crate) fn new(code: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { code, text: text.into(), remedy: remedy.into() }
    }

    /// Returns a finding of the store about its database.
    pub(crate) fn of_diagnosis(diagnosis: &Diagnosis) -> Self {
        let Diagnosis { kind, text, remedy, .. } = diagnosis;
        Self::new(kind.as_str(), format!("database: {text}"), remedy)
    }

    /// Returns it for programs.
    pub(crate) fn json(&self) -> Value {
        json!({ "code": self.code, "text": self.text, "remedy": self.remedy })
    }

    /// Returns it for people.
    pub(crate) fn lines(&self) -> String {
        format!("! {}\n  remedy: {}", self.text, self.remedy)
    }
}

/// Returns the findings about the backlog of a route.
pub(crate) fn of_backlog(route: &Route, backlog: &Backlog, max_age: Duration) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |code, text: String, remedy: String| findings.push(Finding::new(code, text, remedy));
    let is_old = |age: &Duration| *age > max_age;
    let number = |figure, noun| {
        let more = if backlog.is_at_least(figure) { "at least " } else { "" };
        format!("{more}{}", count(figure, noun))
    };
    if let Some(age) = backlog.oldest_pending_age.filter(is_old) {
        add(
            "old",
            format!("route {route}: the oldest message has been waiting for {}", time::age(age)),
            format!(
                "see which topics wait (`outbox topics --route {route}`) and whether the broker is ready (`outbox doctor`); \
                 the relay's log and /health name the cause"
            ),
        );
    } else if let Some(age) = backlog.oldest_age.filter(is_old) {
        add(
            "old",
            format!(
                "route {route}: the oldest message of failing keys has been waiting for {}",
                time::age(age)
            ),
            format!("no other message waits that long; look with `outbox keys list --route {route}`"),
        );
    }
    if backlog.unowned_buckets > 0 {
        add(
            "unowned",
            format!("route {route}: no relay owns {} with messages", count(backlog.unowned_buckets, "bucket")),
            "start a relay of this route: `outbox relay`; after a kill, another one takes over within a lease"
                .to_owned(),
        );
    }
    if backlog.held_keys > 0 {
        add(
            "held",
            format!("route {route}: waiting for an operator: {}", number(backlog.held_keys, "held key")),
            format!(
                "look with `outbox keys list --route {route}`; then `outbox release`, `outbox skip` or `outbox discard`"
            ),
        );
    }
    if backlog.retrying_keys > 0 {
        add(
            "retrying",
            format!("route {route}: failing, and being retried: {}", number(backlog.retrying_keys, "key")),
            format!("look with `outbox keys list --route {route}`, and repair what their errors name"),
        );
    }
    if backlog.dead > 0 {
        add(
            "dead",
            format!("route {route}: waiting for an operator: {}", number(backlog.dead, "dead letter")),
            format!(
                "look with `outbox dead list --route {route}`; then `outbox requeue` or `outbox purge --route {route}`"
            ),
        );
    }
    findings
}

/// Maximum number of topics or relays that a finding names.
const NAMED: usize = 5;

/// Returns the first names, and the number of the others.
fn named(names: &[String]) -> String {
    let first = names.get(..NAMED).unwrap_or(names).join(", ");
    let more = names.len().saturating_sub(NAMED);
    if more == 0 { first } else { format!("{first} and {more} more") }
}

/// Returns the finding about what operators, or the retry policy, have paused of a route.
pub(crate) fn of_pauses(route: &Route, paused: &Paused) -> Option<Finding> {
    let does = if is_inbox(route) { "handled" } else { "published" };
    let name = quoted(route.as_str());
    let (text, resume) = match paused.topics.as_slice() {
        _ if paused.route => {
            (format!("route {route}: paused; nothing is {does}"), format!("outbox resume --route {name}"))
        }
        [] => return None,
        [topic] => (
            format!("route {route}: paused, and not {does}: topic {topic}"),
            format!("outbox resume --route {name} --topic {}", quoted(topic.as_str())),
        ),
        topics => {
            let topics: Vec<String> = topics.iter().map(ToString::to_string).collect();
            (
                format!("route {route}: paused, and not {does}: topics {}", named(&topics)),
                format!("outbox resume --route {name} --topic TOPIC"),
            )
        }
    };
    let remedy = format!("`{resume}` ends the pause; `outbox audit --route {name}` shows who began it");
    Some(Finding::new("paused", text, remedy))
}

/// Returns true if the transport of a route is the handlers of an inbox.
pub(crate) fn is_inbox(route: &Route) -> bool {
    route.as_str().starts_with("inbox/")
}

/// Returns the finding about relays of a route that do not reach their broker. A member of an inbox
/// has none of its own: it gives way during a deploy.
pub(crate) fn of_unreachable(route: &Route, ownership: &Ownership) -> Option<Finding> {
    let away = |relay: &RelayStatus| {
        let since = relay.unavailable_since.filter(|_| relay.live && !is_inbox(route))?;
        Some(format!("{} (for over {})", relay.label, time::age(ownership.now.since(since))))
    };
    let away: Vec<String> = ownership.relays.iter().filter_map(away).collect();
    let relays = if away.len() == 1 { "the relay" } else { "relays" };
    (!away.is_empty()).then(|| {
        Finding::new(
            "unreachable",
            format!("route {route}: the broker is unavailable to {relays} {}", named(&away)),
            "the log and /health of the relay name the cause: the broker is down, full, or refuses its user; `outbox doctor` checks it from here",
        )
    })
}

/// Returns the finding about relays of a route that would treat one message differently.
pub(crate) fn of_relays(route: &Route, ownership: &Ownership) -> Option<Finding> {
    let live = || ownership.relays.iter().filter(|relay| relay.live);
    let first = live().next()?.fingerprint;
    if live().all(|relay| relay.fingerprint == first) {
        return None;
    }
    let mut labels: Vec<&str> = live().map(|relay| relay.label.as_str()).collect();
    labels.sort_unstable();
    Some(Finding::new(
        "disagreeing",
        format!(
            "route {route}: relays with different retry policies, sources or histories: {}",
            labels.join(", ")
        ),
        "give all of them the same relay.retry and relay.source, and their stores the same history; during a rolling deploy this is normal",
    ))
}

/// Returns the finding about a route without a relay.
pub(crate) fn of_unserved(unserved: &Unserved) -> Finding {
    let Unserved { route, oldest_age, .. } = unserved;
    let remedy = if !unserved.can_be_served {
        "its name is not a valid route: correct it in the rows, and in the program that writes them"
            .to_owned()
    } else if *route == Route::default() {
        "start a relay: `outbox relay`".to_owned()
    } else if is_inbox(route) {
        "start the program with this inbox: it handles what waits".to_owned()
    } else {
        format!(
            "start a relay with this route (--set routes.{route}=URL), or correct the name where it is written"
        )
    };
    let text =
        format!("route {route}: no relay serves it; its oldest message waits for {}", time::age(*oldest_age));
    Finding::new("unserved", text, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_failing_keys_are_old_only_if_no_others_are() {
        let minutes = |minutes: u64| Some(Duration::from_secs(60 * minutes));
        let texts = |pending, oldest| -> Vec<String> {
            let mut backlog = Backlog::default();
            (backlog.oldest_pending_age, backlog.oldest_age) = (pending, oldest);
            let found = of_backlog(&Route::default(), &backlog, Duration::from_secs(60));
            found.into_iter().map(|finding| finding.text).collect()
        };
        assert!(texts(None, minutes(1)).is_empty());
        assert_eq!(
            texts(minutes(1), minutes(5)),
            ["route default: the oldest message of failing keys has been waiting for 5m"]
        );
        assert_eq!(
            texts(minutes(2), minutes(5)),
            ["route default: the oldest message has been waiting for 2m"]
        );
    }
}
