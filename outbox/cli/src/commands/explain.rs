//! `explain`: why a key waits, and what to do.

use std::time::Duration;

use outbox::admin::{FailingKey, Filter, Listed, MAX_PER_CALL, Ownership, View};
use outbox::relay::Backlog;
use outbox::{KeyId, Route};
use serde_json::{Value, json};

use crate::app::{App, count, quoted};
use crate::args::KeyName;
use crate::commands::{act_on_keys, keys, overview};
use crate::exit::{Exit, Failed, Outcome};
use crate::findings::is_inbox;
use crate::message;
use crate::open::Database;
use crate::time;

/// Number of waiting messages that are shown.
const SHOWN: usize = 5;

/// Age from which a message waits for longer than a relay needs.
const LATE: Duration = Duration::from_secs(60);

pub(crate) async fn run(app: &App, name: &KeyName) -> Outcome {
    let key = KeyId { topic: name.topic.clone(), key: name.key.clone() };
    let store = app.store().await?;
    let failing = act_on_keys::failing(&*store, name.route.as_ref(), &key).await?;
    let routes: Vec<(Route, Option<FailingKey>)> = if failing.is_empty() {
        vec![(name.route.clone().unwrap_or_default(), None)]
    } else {
        failing.into_iter().map(|failing| (failing.route.clone(), Some(failing))).collect()
    };
    let mut waits = false;
    for (number, (route, failing)) in routes.into_iter().enumerate() {
        let story = Story::of(&*store, &key, route, failing).await?;
        waits |= story.waits();
        if app.out.is_json() {
            app.out.object(&story.json())?;
        } else {
            if number > 0 {
                app.out.text("")?;
            }
            story.print(app)?;
        }
    }
    Ok(Exit::of_findings(waits))
}

/// Number of pending messages in which a store looks for those of a key, at least.
const SEARCHED: u64 = 10_000;

/// All that is known of a key on a route.
struct Story {
    key: KeyId,
    route: Route,
    failing: Option<FailingKey>,
    parked: Vec<Listed>,
    dead: Vec<Listed>,
    scheduled: Vec<Listed>,
    backlog: Backlog,
    served: bool,
    /// Number of its messages that wait for a relay, as far as a store looks.
    waiting: usize,
    /// Age of the oldest of these.
    waits_for: Option<Duration>,
    ownership: Ownership,
}

impl Story {
    async fn of(
        store: &dyn Database,
        key: &KeyId,
        route: Route,
        failing: Option<FailingKey>,
    ) -> Result<Self, Failed> {
        let of_key = |limit| Filter {
            route: Some(route.clone()),
            topic: Some(key.topic.clone()),
            key: Some(key.key.clone()),
            limit: Some(limit),
            ..Filter::all_routes()
        };
        let parked = store.browse(View::Parked, &of_key(SHOWN)).await?;
        let dead = store.browse(View::DeadLetters, &of_key(MAX_PER_CALL)).await?;
        let scheduled = store.browse(View::Scheduled, &of_key(MAX_PER_CALL)).await?;
        let backlog = store.backlog(&route).await?;
        let unserved = store.unserved(Duration::ZERO).await?;
        let served = !unserved.iter().any(|unserved| unserved.route == route);
        let pending = store.browse(View::Waiting, &of_key(MAX_PER_CALL)).await?;
        let ownership = store.ownership(&route).await?;
        let (waiting, waits_for) =
            (pending.len(), pending.first().map(|first| ownership.now.since(first.at)));
        let key = key.clone();
        Ok(Self {
            key,
            route,
            failing,
            parked,
            dead,
            scheduled,
            backlog,
            served,
            waiting,
            waits_for,
            ownership,
        })
    }

    /// Returns true if no message of the key was found anywhere.
    fn has_none(&self) -> bool {
        let elsewhere = self.failing.is_some() || !self.dead.is_empty() || !self.scheduled.is_empty();
        self.waiting == 0 && !elsewhere
    }

    /// Returns true if messages of the key are held up.
    fn waits(&self) -> bool {
        if self.has_none() && self.backlog.pending < SEARCHED {
            return false;
        }
        self.failing.is_some() || !self.dead.is_empty() || self.is_held_up()
    }

    /// Returns true if messages of the key would wait, whatever they are.
    fn is_held_up(&self) -> bool {
        !self.served || self.ownership.paused.covers(&self.key.topic) || self.is_late()
    }

    /// Returns true if messages of the key wait for longer than a relay needs.
    fn is_late(&self) -> bool {
        self.waits_for.is_some_and(|age| age > LATE) || (self.waiting > 0 && self.is_cut_off())
    }

    /// Returns true if the relay that owns the key's bucket does not reach its broker.
    fn is_cut_off(&self) -> bool {
        let owner = self.ownership.owner(self.key.bucket()).and_then(|owner| owner.owner);
        let relay = owner.and_then(|owner| self.ownership.relay(owner));
        relay.is_some_and(|relay| relay.unavailable_since.is_some())
    }

    /// Returns the state of the key in a word.
    fn state(&self) -> &'static str {
        match &self.failing {
            Some(key) => keys::state(key),
            None if self.waiting > 0 && self.is_held_up() => "waits",
            None => "flows",
        }
    }

    /// Returns the reason in a sentence or two.
    fn why(&self) -> String {
        let mut why = match &self.failing {
            Some(key) if key.held && key.last_failure.is_some() => {
                "The key is held: its first message exhausted its attempts, or an operator holds it."
                    .to_owned()
            }
            Some(key) if key.held => "The key is held by an operator.".to_owned(),
            Some(key) if key.last_failure.is_none() => {
                "The first message is retried: an operator released the key, or skipped the failed message.".to_owned()
            }
            Some(_) => {
                let who = if is_inbox(&self.route) { "inbox" } else { "relay" };
                format!("The first message of the key fails; the {who} tries it again, and the others wait behind it.")
            }
            None if self.has_none() && self.backlog.pending >= SEARCHED => {
                format!("None of the first {SEARCHED} pending messages of the route is one of this key.")
            }
            None if self.has_none() => {
                "No message of this key waits: it had none, or all were delivered.".to_owned()
            }
            None if !self.served => {
                "No relay serves the route: its messages wait until one starts.".to_owned()
            }
            None if self.ownership.paused.covers(&self.key.topic) => {
                "Publishing is paused by an operator: its messages wait until it is resumed.".to_owned()
            }
            None if self.waiting > 0 && self.is_cut_off() => {
                "The relay that owns its bucket does not reach the broker: its messages wait until it does.".to_owned()
            }
            None if self.is_late() => {
                "The key neither fails nor is held, and its messages wait: the broker or its topic may be unavailable, or \
                 the relay is behind."
                    .to_owned()
            }
            None => "The key neither fails nor is held.".to_owned(),
        };
        if self.failing.is_some() && !self.served {
            why.push_str(" No relay serves the route now.");
        }
        if self.failing.is_none() && !self.dead.is_empty() {
            why.push_str(&format!(" Of its messages, {} and left a gap.", died(self.dead.len())));
        }
        why
    }

    /// Returns commands that help, each with its effect.
    fn remedies(&self) -> Vec<(String, &'static str)> {
        let name = format!("{} {}", quoted(self.key.topic.as_str()), quoted(self.key.key.as_str()));
        let route = format!(" --route {}", quoted(self.route.as_str()));
        let mut remedies = Vec::new();
        if self.failing.is_some() {
            remedies
                .push((format!("outbox release {name}{route}"), "repair the cause first, then retry now"));
            remedies.push((
                format!("outbox skip {name}{route}"),
                "make the first message a dead letter, and continue with the next",
            ));
            remedies
                .push((format!("outbox discard {name}{route}"), "make all waiting messages dead letters"));
        }
        if !self.dead.is_empty() {
            let filter = format!(
                "--topic {} --key {}{route}",
                quoted(self.key.topic.as_str()),
                quoted(self.key.key.as_str())
            );
            remedies
                .push((format!("outbox requeue {filter}"), "send its dead letters again, behind what waits"));
        }
        if self.ownership.paused.route {
            remedies.push((format!("outbox resume{route}"), "publish the route again"));
        } else if self.ownership.paused.covers(&self.key.topic) {
            let topic = quoted(self.key.topic.as_str());
            remedies.push((format!("outbox resume{route} --topic {topic}"), "publish the topic again"));
        }
        if self.failing.is_none() && self.is_late() && self.served {
            remedies.push((
                "outbox doctor".to_owned(),
                "see whether the broker is reachable, and the topic exists",
            ));
        }
        if !self.served && !self.has_none() {
            remedies.push(("outbox relay".to_owned(), "start a relay of the route"));
        }
        remedies
    }

    fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("key", self.key.key.to_string()),
            ("topic", self.key.topic.to_string()),
            ("route", self.route.to_string()),
            ("bucket", self.key.bucket().to_string()),
        ];
        if let Some(owner) = self.ownership.owner(self.key.bucket()) {
            let relay = owner.owner.and_then(|relay| self.ownership.relay(relay));
            let name = relay.map(|relay| format!("{} ({})", relay.label, relay.relay));
            fields.push(("owner", name.unwrap_or_else(|| "none".to_owned())));
            let since = owner.since.map(|since| format!(", since {}", time::at(since))).unwrap_or_default();
            fields.push(("epoch", format!("{}{since}", owner.epoch)));
        }
        if self.ownership.paused.covers(&self.key.topic) {
            fields.push(("paused", overview::paused(&self.ownership.paused)));
        }
        if self.waiting > 0 {
            let more = if self.waiting >= MAX_PER_CALL { " or more" } else { "" };
            let age =
                self.waits_for.map(|age| format!(", the oldest {}", time::age(age))).unwrap_or_default();
            fields.push(("pending", format!("{}{more}{age}", count(self.waiting as u64, "message"))));
        }
        fields.push(("state", self.state().to_owned()));
        fields.extend(self.failing.iter().flat_map(|key| self.failing_fields(key)));
        if !self.dead.is_empty() {
            fields.push(("dead letters", at_least(self.dead.len())));
        }
        if let Some(next) = self.scheduled.first() {
            let number = at_least(self.scheduled.len());
            fields.push(("scheduled", format!("{number}, the next at {}", time::at(next.at))));
        }
        let age =
            self.backlog.oldest_age.map(|age| format!(", the oldest {}", time::age(age))).unwrap_or_default();
        fields.push(("route backlog", format!("{} pending{age}", self.backlog.pending)));
        fields
    }

    fn failing_fields(&self, key: &FailingKey) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("since", format!("{} ({} ago)", time::at(key.since), time::ago(key.since))),
            ("attempts", key.attempts.to_string()),
        ];
        let first = key.first_failure.as_ref().filter(|first| Some(*first) != key.last_failure.as_ref());
        fields.extend(first.map(|failure| ("first error", failure.to_string())));
        fields.extend(key.last_failure.as_ref().map(|failure| ("last error", failure.to_string())));
        fields.extend(key.next_attempt_at.map(|at| ("next try", time::at(at))));
        fields.extend(self.parked.first().map(|first| {
            let (message, at) = (&first.stored.message, first.stored.position);
            ("first message", format!("{} ({}) at position {at}", message.id, message.event_type))
        }));
        fields.push(("waiting", count(key.parked, "message")));
        fields
    }

    fn print(&self, app: &App) -> Result<(), Failed> {
        app.out.fields(&self.fields(), &Value::Null)?;
        app.out.text(&format!("\n{}", self.why()))?;
        for (command, effect) in self.remedies() {
            app.out.text(&format!("  {}\n      {effect}", crate::escape::line(&command)))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            "route": self.route.as_str(),
            "topic": self.key.topic.as_str(),
            "key": self.key.key.as_str(),
            "bucket": self.key.bucket().0,
            "state": self.state(),
            "failing": self.failing.as_ref().map(keys::object),
            "first_parked": self.parked.iter().map(|it| message::row(View::Parked, it).json).collect::<Vec<_>>(),
            "dead_letters": self.dead.len(),
            "scheduled": self.scheduled.len(),
            "waiting": self.waiting,
            "owner": self.ownership.owner(self.key.bucket()).map(|it| overview::owner_object(&self.ownership, it)),
            "paused": self.ownership.paused.covers(&self.key.topic),
            "route_pending": self.backlog.pending,
            "route_served": self.served,
            "why": self.why(),
            "remedies": self.remedies().into_iter().map(|(command, effect)| json!({ "command": command, "effect": effect })).collect::<Vec<_>>(),
        })
    }
}

fn died(number: usize) -> String {
    if number == 1 {
        "1 became a dead letter".to_owned()
    } else {
        format!("{} became dead letters", at_least(number))
    }
}

/// Returns the number of messages of a page, which may be the first of several.
fn at_least(number: usize) -> String {
    if number < MAX_PER_CALL { number.to_string() } else { format!("{number} or more") }
}
