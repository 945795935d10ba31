//! The story of one key: why it waits, since when, and what to do.

use std::time::Duration;

use maud::{Markup, html};
use outbox::admin::{FailingKey, Filter, Listed, Ownership, View};
use outbox::{KeyId, Route, Timestamp};

use crate::format::{self, count};
use crate::operation::Operation;
use crate::problem::Problem;
use crate::selection::Selection;
use crate::text;
use crate::view::fields::{self, button, fields as named};
use crate::view::{Page, list};
use crate::visit::Visit;

/// Number of messages of each kind that are read.
const READ: usize = 20;

/// Longest search for delivered messages of a key: a history has any size, and no index by key.
const SEARCH_WITHIN: Duration = Duration::from_millis(500);

/// Shows a key.
pub(crate) async fn page(visit: &Visit) -> Result<Page, Problem> {
    let Filter { route, topic, key, .. } = Selection::of(&visit.params, visit.now)?.filter;
    let (Some(topic), Some(key)) = (topic, key) else {
        return Err(Problem::bad("topic or key is missing", "follow a link of a list"));
    };
    let story = Story::read(visit, route.unwrap_or_default(), KeyId { topic, key }).await?;
    let title = format!("Key {}", text::short(story.key.key.as_str(), 80));
    Ok(Page::live(title, story.shown(visit)))
}

/// All that is known of a key on a route.
struct Story {
    route: Route,
    key: KeyId,
    failing: Option<FailingKey>,
    parked: Vec<Listed>,
    dead: Vec<Listed>,
    scheduled: Vec<Listed>,
    /// Delivered messages. `None`: the history is too large to be searched for each view.
    history: Option<Vec<Listed>>,
    /// Reason for which messages of the key would wait, whatever they are.
    held_up: Option<&'static str>,
}

/// Something that happened to a key, or will.
struct Event {
    at: Timestamp,
    class: &'static str,
    what: Markup,
}

/// Returns why messages of a key would wait, if they would.
fn held_up(ownership: &Ownership, key: &KeyId) -> Option<&'static str> {
    if ownership.paused.covers(&key.topic) {
        return Some("Publishing is paused by an operator: its messages wait until it is resumed.");
    }
    let owner = ownership.owner(key.bucket())?.owner?;
    ownership.relay(owner)?.unavailable_since?;
    Some("The relay that owns its bucket does not reach the broker: its messages wait until it does.")
}

impl Story {
    async fn read(visit: &Visit, route: Route, key: KeyId) -> Result<Self, Problem> {
        let filter = Filter {
            route: Some(route.clone()),
            topic: Some(key.topic.clone()),
            key: Some(key.key.clone()),
            limit: Some(READ),
            ..Filter::all_routes()
        };
        let store = visit.store();
        let failing = visit.ask(store.failing_keys(&filter)).await?.into_iter().next();
        let parked = visit.ask(store.browse(View::Parked, &filter)).await?;
        let dead = visit.ask(store.browse(View::DeadLetters, &filter)).await?;
        let scheduled = visit.ask(store.browse(View::Scheduled, &filter)).await?;
        // All else is shown without it: it is the only part that grows with what was delivered.
        let within = SEARCH_WITHIN.min(visit.app.store_timeout);
        let history = tokio::time::timeout(within, store.browse(View::History, &filter)).await;
        let history = history.ok().transpose()?;
        let held_up = held_up(&visit.ask(store.ownership(&route)).await?, &key);
        Ok(Self { route, key, failing, parked, dead, scheduled, history, held_up })
    }

    fn why(&self) -> String {
        if let (None, Some(why)) = (&self.failing, self.held_up) {
            return why.to_owned();
        }
        match &self.failing {
            Some(key) if key.held && key.last_failure.is_some() => {
                "The key is held: its first message exhausted its attempts, or an operator holds it. \
                 Nothing of it is sent until it is released."
                    .to_owned()
            }
            Some(key) if key.held => {
                "An operator holds the key. Nothing of it is sent until it is released.".to_owned()
            }
            Some(key) if key.last_failure.is_none() => {
                "The relay is retrying the first message: an operator released the key or skipped the failed message."
                    .to_owned()
            }
            Some(_) => "The first message of the key fails. The relay tries it again, and the others wait \
                        behind it. Other keys are not delayed."
                .to_owned(),
            None if !self.dead.is_empty() => {
                "The key flows. Some of its messages became dead letters and left a gap.".to_owned()
            }
            None => "The key flows: it neither fails nor is held.".to_owned(),
        }
    }

    fn shown(&self, visit: &Visit) -> Markup {
        let name = list::key_params(&self.route, &self.key);
        html! {
            p.lead { (self.why()) }
            (self.fields(visit))
            @if let Some(key) = self.failing.as_ref().filter(|key| key.last_failure.is_some()) {
                (fields::compared(key.first_failure.as_ref(), key.last_failure.as_ref()))
            }
            div.buttons {
                @if self.failing.is_some() {
                    (button(visit, Operation::Release, "Release: try again now", &name))
                    (button(visit, Operation::Skip, "Skip the first message", &name))
                    (button(visit, Operation::Discard, "Discard all parked messages", &name))
                }
                @if self.failing.as_ref().is_none_or(|key| !key.held) {
                    (button(visit, Operation::Hold, "Hold", &name))
                }
                @if !self.dead.is_empty() {
                    (button(visit, Operation::Requeue, "Requeue its dead letters", &name))
                }
            }
            h2 { "Timeline" }
            (self.timeline(visit))
            @if self.history.is_none() {
                @let to = visit.link("/messages", &name.with("view", View::History.name()));
                p.quiet { "The history is large, and was not searched: " a href=(to) { "search it" } "." }
            }
            @if !self.parked.is_empty() {
                h2 { "Parked messages, in the order of their delivery" }
                (list::messages(visit, View::Parked, &self.parked, &[]))
                (self.more(visit, View::Parked, self.parked.len()))
            }
            @if !self.dead.is_empty() {
                h2 { "Dead letters" }
                (list::messages(visit, View::DeadLetters, &self.dead, &[]))
                (self.more(visit, View::DeadLetters, self.dead.len()))
            }
        }
    }

    fn more(&self, visit: &Visit, view: View, shown: usize) -> Markup {
        let name = list::key_params(&self.route, &self.key);
        let path = if view == View::DeadLetters { "/dead" } else { "/messages" };
        html! {
            @if shown == READ {
                p { a href=(visit.link(path, &name.with("view", view.name()))) { "All of them" } }
            }
        }
    }

    fn fields(&self, visit: &Visit) -> Markup {
        let mut all = vec![
            ("Topic", html! { bdi { (text::line(self.key.topic.as_str())) } }),
            ("Route", html! { bdi { (text::line(self.route.as_str())) } }),
            ("Bucket", html! { (self.key.bucket()) }),
        ];
        match &self.failing {
            Some(key) => {
                all.insert(0, ("State", list::state(key)));
                all.push(("Since", format::when(key.since, visit.now)));
                all.push(("Attempts", html! { (key.attempts) }));
                let next = key.next_attempt_at.map(|at| format::when(at, visit.now));
                all.push(("Next try", next.unwrap_or_else(|| html! { "when an operator releases it" })));
                all.push(("Parked", html! { (count(key.parked, "message")) }));
            }
            None if self.held_up.is_some() => all.insert(0, ("State", html! { span.state.warn { "waits" } })),
            None => all.insert(0, ("State", html! { span.state.good { "flows" } })),
        }
        named(&all)
    }

    fn timeline(&self, visit: &Visit) -> Markup {
        let mut events = self.events(visit);
        events.sort_by_key(|event| event.at);
        html! {
            @if events.is_empty() {
                p.quiet { "Nothing is recorded of this key." }
            } @else {
                ol.timeline {
                    @for event in &events {
                        li class=(event.class) {
                            time datetime=(event.at) { (format::at(event.at)) }
                            span.quiet { (format::distance(event.at, visit.now)) }
                            p { (event.what) }
                        }
                    }
                }
            }
        }
    }

    fn events(&self, visit: &Visit) -> Vec<Event> {
        let link = |view, listed: &Listed| {
            let id = listed.stored.message.id.to_string();
            html! { a.id href=(list::message_link(visit, view, listed)) title=(id) { "…" (list::tail(&id)) } }
        };
        let mut events = Vec::new();
        let mut add = |at, class, what| events.push(Event { at, class, what });
        if let Some(key) = &self.failing {
            let began = match &key.first_failure {
                Some(_) => {
                    html! { "first attempt failed: " (fields::failure(key.first_failure.as_ref(), 200)) }
                }
                None if key.held => html! { "held by an operator" },
                None => html! { "the key began to fail" },
            };
            add(key.since, "bad", began);
            if let Some(at) = key.next_attempt_at {
                add(at, "next", html! { "next try, number " (key.attempts + 1) });
            }
        }
        for listed in &self.parked {
            add(
                listed.stored.appended_at,
                "",
                html! { (link(View::Parked, listed)) " was appended; it is parked" },
            );
        }
        for listed in &self.dead {
            let death = listed.death.clone().unwrap_or_default();
            add(
                listed.at,
                "bad",
                html! {
                    (link(View::DeadLetters, listed)) " became a dead letter: " (text::short(&death.reason, 40))
                    @if let Some(failure) = &death.last_failure { ", " (fields::failure(Some(failure), 160)) }
                },
            );
        }
        for listed in self.history.iter().flatten() {
            add(listed.at, "good", html! { (link(View::History, listed)) " was delivered" });
        }
        for listed in &self.scheduled {
            add(listed.at, "next", html! { (link(View::Scheduled, listed)) " is due" });
        }
        events
    }
}
