//! `tail`: follows what is committed and what is delivered, as JSON lines.
//!
//! It asks the store again and again. What is committed and delivered between two looks is seen in
//! the history, where the store keeps one; otherwise it is not seen.

use std::collections::{BTreeMap, BTreeSet};

use outbox::admin::{Filter, Listed, MAX_PER_CALL, Position, View};
use outbox::{MessageId, Timestamp};
use serde_json::{Value, json};

use crate::app::App;
use crate::args::TailArgs;
use crate::commands::list;
use crate::commands::signals::Signals;
use crate::exit::{Exit, Failed, Outcome};
use crate::message;
use crate::open::Database;
use crate::out::remark;

/// Number of delivered messages that are remembered, so that none is told twice.
const REMEMBERED: usize = 10_000;

pub(crate) async fn run(app: &App, args: &TailArgs) -> Outcome {
    let mut signals = Signals::listen()?;
    let store = app.store().await?;
    let mut tail = Tail::default();
    let follow = async {
        loop {
            for event in tail.look(&*store, args).await? {
                app.out.object(&event)?;
            }
            if args.once {
                return Ok::<Exit, Failed>(Exit::Done);
            }
            tokio::time::sleep(args.every).await;
        }
    };
    tokio::select! {
        ended = follow => ended,
        // The end that is meant for it.
        () = signals.next() => Ok(Exit::Done),
    }
}

/// State after the last look.
#[derive(Debug, Default)]
struct Tail {
    began: bool,
    waits: Follow,
    /// True once a delivered message was found in the history.
    keeps_history: bool,
    /// Delivered messages at or after this time are not told yet, but for those.
    delivered_at: Option<Timestamp>,
    told: BTreeSet<(Timestamp, Position, MessageId)>,
    warned: bool,
}

impl Tail {
    /// Looks once, and returns the events since the last look.
    async fn look(&mut self, store: &dyn Database, args: &TailArgs) -> Result<Vec<Value>, Failed> {
        let filter = args.filter();
        let mut page = store.browse(View::Waiting, &Filter { newest: true, ..filter.clone() }).await?;
        page.reverse();
        let is_full = page.len() >= MAX_PER_CALL;
        if is_full && !std::mem::replace(&mut self.warned, true) {
            remark("more messages wait than tail can follow; it shows the newest ones");
        }
        let (new, gone) = self.waits.step(&page, is_full);
        let first = !std::mem::replace(&mut self.began, true);
        let skipped = if first { new.len().saturating_sub(args.number) } else { 0 };
        let new: Vec<Value> = new.iter().skip(skipped).map(|listed| committed(listed)).collect();
        let history = self.delivered(store, &filter).await?;
        self.keeps_history |= !history.is_empty();
        let mut events = new;
        events.extend(self.left(store, gone).await?);
        events.extend(history);
        Ok(events)
    }

    /// Returns what the history has since the last look.
    async fn delivered(&mut self, store: &dyn Database, filter: &Filter) -> Result<Vec<Value>, Failed> {
        let mut events = Vec::new();
        let since = match self.delivered_at {
            Some(since) => since,
            // The first look begins now, by the database's clock.
            None => store.ownership(&filter.route.clone().unwrap_or_default()).await?.now,
        };
        self.delivered_at = Some(since);
        let mut page = Filter { since: Some(since), ..filter.clone() };
        loop {
            let found = store.browse(View::History, &page).await?;
            if found.is_empty() {
                break;
            }
            page.offset += found.len();
            for listed in &found {
                let name = (listed.at, listed.stored.position, listed.stored.message.id);
                if self.told.insert(name) {
                    self.delivered_at = self.delivered_at.max(Some(listed.at));
                    events.push(event("delivered", View::History, listed));
                }
            }
        }
        while self.told.len() > REMEMBERED {
            self.told.pop_first();
        }
        Ok(events)
    }

    /// Tells of messages that no longer wait: they are parked, dead, or delivered.
    async fn left(&self, store: &dyn Database, gone: Vec<MessageId>) -> Result<Vec<Value>, Failed> {
        let mut events = Vec::new();
        let mut delivered: BTreeSet<MessageId> = gone.iter().copied().collect();
        for (view, name) in [(View::Parked, "parked"), (View::DeadLetters, "dead")] {
            for listed in list::find(store, view, &gone).await? {
                if delivered.remove(&listed.stored.message.id) {
                    events.push(event(name, view, &listed));
                }
            }
        }
        if !self.keeps_history {
            let told = gone.iter().filter(|id| delivered.contains(id));
            events.extend(told.map(|id| json!({ "event": "delivered", "id": id.to_string() })));
        }
        Ok(events)
    }
}

fn committed(listed: &Listed) -> Value {
    event("committed", View::Waiting, listed)
}

fn event(name: &str, view: View, listed: &Listed) -> Value {
    let mut event = message::row(view, listed).json;
    event["event"] = json!(name);
    event
}

/// Messages that waited at the last look, by position.
#[derive(Debug, Default)]
struct Follow(BTreeMap<(String, Position), MessageId>);

impl Follow {
    /// Compares what waits now, the newest of it where that is all (`is_full`), with the last look.
    /// Returns what is new, and what is gone.
    fn step<'l>(&mut self, page: &'l [Listed], is_full: bool) -> (Vec<&'l Listed>, Vec<MessageId>) {
        let place = |listed: &Listed| (listed.route.as_str().to_owned(), listed.stored.position);
        let now: BTreeMap<_, _> =
            page.iter().map(|listed| (place(listed), listed.stored.message.id)).collect();
        let new = page.iter().filter(|listed| self.0.get(&place(listed)) != Some(&listed.stored.message.id));
        let new = new.collect();
        let before = std::mem::replace(&mut self.0, now);
        // Messages that a full page does not show may still wait before it.
        let gone = before.into_iter().filter(|(place, id)| !is_full && self.0.get(place) != Some(id));
        (new, gone.map(|(_, id)| id).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outbox::admin::Stored;
    use outbox::{Message, Route};

    use super::*;

    fn listed(position: i64) -> Listed {
        let message = Message::new("orders", "order.placed").unwrap();
        let at = Timestamp::from_micros(1);
        Listed::new(Route::default(), Arc::new(Stored::new(Position(position), at, message)), at)
    }

    #[test]
    fn what_comes_and_what_goes_is_told_once() {
        let (one, two, three) = (listed(1), listed(2), listed(3));
        let id = |listed: &Listed| listed.stored.message.id;
        let mut follow = Follow::default();
        let page = [one.clone(), two.clone()];
        let (new, gone) = follow.step(&page, false);
        assert_eq!((new.len(), gone.len()), (2, 0));
        let page = [two.clone(), three.clone()];
        let (new, gone) = follow.step(&page, false);
        assert_eq!((new.len(), id(new[0]), gone), (1, id(&three), vec![id(&one)]));
        let again = listed(2);
        let page = [again.clone()];
        let (new, gone) = follow.step(&page, true);
        assert_eq!((new.len(), gone), (1, vec![]), "what a full page leaves out may still wait");
        let (new, gone) = follow.step(&[], false);
        assert_eq!((new.len(), gone), (0, vec![id(&again)]));
    }
}
