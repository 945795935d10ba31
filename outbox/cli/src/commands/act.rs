//! `requeue`, `purge`, `replay`, `cancel`: operations on messages. `pause` and `resume`.

use std::collections::BTreeSet;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use outbox::admin::{Filter, Listed, MAX_PER_CALL, Paused, View};
use outbox::{Admin, AdminExt, MessageId, Route};
use serde_json::json;

use crate::app::{App, count};
use crate::args::{PauseArgs, Select};
use crate::commands::list;
use crate::exit::{Exit, Failed, Outcome};
use crate::message;
use crate::open::Database;
use crate::out::{Row, remark};
use crate::time::Between;

/// Number of items that are done before a bar could be read.
const SHORT: u64 = 50;

/// Operation on messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Requeue,
    Purge,
    Replay,
    Cancel,
}

impl Action {
    const fn view(self) -> View {
        match self {
            Self::Requeue | Self::Purge => View::DeadLetters,
            Self::Replay => View::History,
            Self::Cancel => View::Scheduled,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Requeue => "requeue",
            Self::Purge => "purge",
            Self::Replay => "replay",
            Self::Cancel => "cancel",
        }
    }

    const fn done(self) -> &'static str {
        match self {
            Self::Requeue => "requeued",
            Self::Purge => "purged",
            Self::Replay => "replayed",
            Self::Cancel => "canceled",
        }
    }

    const fn noun(self) -> &'static str {
        match self {
            Self::Requeue | Self::Purge => "dead letter",
            Self::Replay => "delivered message",
            Self::Cancel => "scheduled message",
        }
    }

    const fn removes(self) -> bool {
        matches!(self, Self::Purge | Self::Cancel)
    }

    /// Returns true if it takes the oldest messages of a filter out of the view.
    const fn takes_oldest(self) -> bool {
        matches!(self, Self::Requeue | Self::Purge)
    }
}

/// Selects messages, shows or confirms them, and does it.
///
/// The messages are chosen once, at the beginning: a message that fails again meanwhile, or that
/// another operator adds, is not taken a second time.
pub(crate) async fn run(app: &App, action: Action, select: &Select) -> Outcome {
    let store = app.store().await?;
    let time = select.filter.of.between(&*store).await?;
    if action.takes_oldest() && select.is_all() {
        return take_all(app, &*store, action, (select, time)).await;
    }
    let chosen = choose(&*store, action, (select, time)).await?;
    if select.dry_run {
        let rows: Vec<Row> = chosen.into_iter().filter_map(|chosen| chosen.row).collect();
        app.out.list(message::head(action.view()), &rows)?;
        remark(&format!("dry run: {} would be {}", count(rows.len() as u64, action.noun()), action.done()));
        return Ok(Exit::Done);
    }
    if action.removes() && !chosen.is_empty() {
        app.confirm(&format!("permanently {} {}", action.name(), count(chosen.len() as u64, action.noun())))?;
    }
    let done = carry_out(&*app.acting(&*store), action, (select, time), &chosen).await?;
    let missed = chosen.len() as u64 - done.min(chosen.len() as u64);
    let mut text = format!("{} {}", action.done(), count(done, action.noun()));
    if missed > 0 {
        let noun = if missed == 1 { "was" } else { "were" };
        text.push_str(&format!("; {missed} {noun} gone meanwhile, by another operator or a relay"));
    }
    app.out.say(&text, &json!({ "operation": action.name(), "done": done, "gone": missed }))?;
    if action == Action::Replay && chosen.is_empty() {
        remark(
            "the history has no such message: it has what was delivered while relays kept one (--history)",
        );
    }
    Ok(Exit::of_findings(missed > 0))
}

/// Maximum number of messages that are counted for a question to the operator.
const COUNTED: usize = 10_000;

/// Takes out all that a filter selects, in parts from the front. Reading a selection of any size
/// first would take time with the square of that size: each page is found behind those before it.
///
/// What dies from now on is left, so that a message that fails again is not taken a second time.
async fn take_all(
    app: &App,
    store: &dyn Database,
    action: Action,
    (select, time): (&Select, Between),
) -> Outcome {
    select.filter.of.names_route(action.name())?;
    let now = store.ownership(&Route::default()).await?.now;
    let time = Between { before: Some(time.before.map_or(now, |before| before.min(now))), ..time };
    let filter = select.filter.page(time, 0, MAX_PER_CALL);
    if action.removes() && app.asks() {
        let mut found = 0_u64;
        list::each(store, action.view(), filter.clone(), COUNTED, |_| found += 1).await?;
        let or_more = if found < COUNTED as u64 { "" } else { " or more" };
        let noun = count(found, action.noun());
        if found > 0 {
            app.confirm(&format!("permanently {} {noun}{or_more}", action.name()))?;
        }
    }
    let (acting, bar, mut done) = (app.acting(store), spinner(), 0);
    loop {
        let part = match action {
            Action::Requeue => acting.requeue(&filter).await?,
            _ => acting.purge(&filter).await?,
        };
        done += part;
        bar.inc(part);
        if part == 0 {
            break;
        }
    }
    bar.finish_and_clear();
    let text = format!("{} {}", action.done(), count(done, action.noun()));
    app.out.say(&text, &json!({ "operation": action.name(), "done": done, "gone": 0 }))?;
    Ok(Exit::Done)
}

/// A selected message. Its content is not kept: a selection may have any size.
struct Chosen {
    id: MessageId,
    route: Route,
    /// For a dry run alone.
    row: Option<Row>,
}

/// Returns the messages that are selected, by ids or by the filter.
async fn choose(
    store: &dyn Database,
    action: Action,
    (select, time): (&Select, Between),
) -> Result<Vec<Chosen>, Failed> {
    let (view, filter, mut chosen) = (action.view(), &select.filter, Vec::new());
    let mut take = |listed: Listed| {
        let row = select.dry_run.then(|| message::row(view, &listed));
        chosen.push(Chosen { id: listed.stored.message.id, route: listed.route, row });
    };
    if select.ids.is_empty() {
        filter.of.names_route(action.name())?;
        let most = filter.of.limit.unwrap_or(usize::MAX);
        list::each(store, view, filter.page(time, filter.of.offset, most), most, take).await?;
        return Ok(chosen);
    }
    for ids in select.ids.chunks(MAX_PER_CALL) {
        let filter = Filter { ids: Some(ids.to_vec()), ..filter.page(time, 0, MAX_PER_CALL) };
        list::each(store, view, filter, usize::MAX, &mut take).await?;
    }
    let found: BTreeSet<MessageId> = chosen.iter().map(|chosen| chosen.id).collect();
    let absent: Vec<MessageId> = select.ids.iter().copied().filter(|id| !found.contains(id)).collect();
    if !absent.is_empty() {
        return Err(list::absent(view, &absent));
    }
    let routes: BTreeSet<&str> = chosen.iter().map(|chosen| chosen.route.as_str()).collect();
    if !filter.of.all_routes && filter.of.route.is_none() && routes.len() > 1 {
        let routes: Vec<&str> = routes.into_iter().collect();
        return Err(Failed::usage(format!(
            "these messages are on several routes ({}); name one with --route, or give --all-routes",
            routes.join(", ")
        )));
    }
    Ok(chosen)
}

/// Carries it out in parts, and returns the number of messages that it reached.
async fn carry_out(
    store: &dyn Admin,
    action: Action,
    (select, time): (&Select, Between),
    chosen: &[Chosen],
) -> Result<u64, Failed> {
    let bar = bar(chosen.len() as u64);
    let mut done = 0;
    for part in chosen.chunks(MAX_PER_CALL) {
        let ids: Vec<MessageId> = part.iter().map(|chosen| chosen.id).collect();
        let mut filter = Filter { ids: Some(ids.clone()), ..select.filter.page(time, 0, MAX_PER_CALL) };
        if !select.filter.of.all_routes && filter.route.is_none() {
            filter.route = part.first().map(|chosen| chosen.route.clone());
        }
        done += match action {
            Action::Requeue => store.requeue(&filter).await?,
            Action::Purge => store.purge(&filter).await?,
            Action::Replay => store.replay(&filter).await?,
            Action::Cancel => store.cancel_scheduled(&ids).await?,
        };
        bar.inc(part.len() as u64);
    }
    bar.finish_and_clear();
    Ok(done)
}

/// Returns a count of what is done, which a terminal shows and nothing else.
fn spinner() -> ProgressBar {
    let spinner = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {pos}") {
        spinner.set_style(style);
    }
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
}

/// Returns a bar of progress, which a terminal shows and nothing else.
pub(crate) fn bar(length: u64) -> ProgressBar {
    if length <= SHORT {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Begins or ends a pause.
pub(crate) async fn pause(app: &App, args: &PauseArgs, paused: bool) -> Outcome {
    let store = app.store().await?;
    let before = store.ownership(&args.route).await?.paused;
    app.acting(&*store).set_paused(&args.route, args.topic.as_ref(), paused).await?;
    let what = args.topic.as_ref().map_or_else(
        || format!("route {}", args.route),
        |topic| format!("topic {topic} of route {}", args.route),
    );
    let was = args.topic.as_ref().map_or(before.route, |topic| before.topics.contains(topic));
    let text = match (paused, was) {
        (true, false) => format!("paused {what}; relays follow at their next heartbeat"),
        (true, true) => format!("{what} was paused already"),
        (false, true) => format!("resumed {what}; relays follow at their next heartbeat"),
        (false, false) => format!("{what} was not paused"),
    };
    let topic = args.topic.as_ref().map(|topic| topic.as_str());
    app.out.say(
        &text,
        &json!({ "paused": paused, "route": args.route.as_str(), "topic": topic, "was_paused": was }),
    )?;
    if !paused {
        still_paused(args, &before);
    }
    Ok(Exit::Done)
}

/// Tells what of a route another pause stops, after one has ended: each is apart.
fn still_paused(args: &PauseArgs, before: &Paused) {
    let route = args.route.as_str();
    if before.route && args.topic.is_some() {
        remark(&format!("the whole route {route} is still paused; resume it without --topic"));
    }
    let topics: Vec<&str> = before
        .topics
        .iter()
        .filter(|topic| Some(*topic) != args.topic.as_ref())
        .map(|it| it.as_str())
        .collect();
    if !topics.is_empty() && args.topic.is_none() {
        remark(&format!("topics of it are still paused: {}; resume each with --topic", topics.join(", ")));
    }
}
