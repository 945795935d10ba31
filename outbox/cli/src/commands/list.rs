//! `dead`, `parked`, `scheduled` and `history`: messages, to look at.

use outbox::admin::{Filter, Listed, MAX_PER_CALL, View};
use outbox::{Admin, MessageId};

use crate::app::App;
use crate::args::{self, Form, MessageFilter};
use crate::exit::{Exit, Failed, Outcome};
use crate::message;
use crate::open::Database;
use crate::out::remark;

/// Number of waiting messages that a store looks at from either end, at least: see [`Filter`].
pub(crate) const SEARCHED: usize = 10_000;

pub(crate) async fn run(app: &App, view: View, what: args::View) -> Outcome {
    match what {
        args::View::List(filter) => list(app, view, &filter).await,
        args::View::Show { id, payload } => show(app, view, id, payload).await,
    }
}

/// `messages`: those that wait for a relay; one is shown wherever it is.
pub(crate) async fn messages(app: &App, what: args::View) -> Outcome {
    let args::View::Show { id, payload } = what else { return run(app, View::Waiting, what).await };
    let store = app.store().await?;
    // A store looks at a limited number of waiting messages from the end where a list begins. The
    // history comes last: no index leads to its messages.
    let views = [
        (View::Parked, false),
        (View::Scheduled, false),
        (View::DeadLetters, false),
        (View::Waiting, false),
        (View::Waiting, true),
        (View::History, false),
    ];
    for (view, newest) in views {
        let filter = Filter { newest, ..Filter::all_routes() };
        let found = find_among(&*store, view, &[id], &filter).await?;
        if !found.is_empty() {
            return shown(app, view, &found, payload);
        }
    }
    let middle = Filter { limit: Some(1), offset: 2 * SEARCHED, ..Filter::all_routes() };
    if !store.browse(View::Waiting, &middle).await?.is_empty() {
        return Err(Failed::error(format!(
            "the message {id} is neither parked, scheduled, dead nor in the history, and not among the {SEARCHED} \
             messages at either end of those that wait; more wait, and it may be one of them"
        )));
    }
    Err(Failed::error(format!(
        "no message has the id {id}: it neither waits nor is dead or in the history; it was \
         delivered, purged or canceled, or never committed"
    )))
}

async fn list(app: &App, view: View, filter: &MessageFilter) -> Outcome {
    let store = app.store().await?;
    let (mut shown, most) = (0, filter.of.shown());
    let time = filter.of.between(&*store).await?;
    let mut rows = Vec::new();
    while shown < most {
        let page = store.browse(view, &filter.page(time, filter.of.offset + shown, most - shown)).await?;
        if page.is_empty() {
            break;
        }
        shown += page.len();
        let page = page.iter().map(|listed| message::row(view, listed));
        if app.out.is_json() {
            app.out.list(&[], &page.collect::<Vec<_>>())?;
        } else {
            rows.extend(page);
        }
    }
    if !app.out.is_json() {
        app.out.list(message::head(view), &rows)?;
    }
    if shown == most && most > 0 {
        let next = filter.of.offset + shown;
        if !store.browse(view, &filter.page(time, next, 1)).await?.is_empty() {
            remark(&format!("there are more: continue with --offset {next}"));
        }
    }
    Ok(Exit::Done)
}

async fn show(app: &App, view: View, id: MessageId, form: Form) -> Outcome {
    let store = app.store().await?;
    let found = find(&*store, view, &[id]).await?;
    if found.is_empty() {
        return Err(absent(view, &[id]));
    }
    shown(app, view, &found, form)
}

fn shown(app: &App, view: View, found: &[Listed], form: Form) -> Outcome {
    for listed in found {
        if app.out.is_json() {
            app.out.object(&message::whole(view, listed, form))?;
        } else {
            app.out.text(&message::text(view, listed, form))?;
        }
    }
    Ok(Exit::Done)
}

/// Finds messages by their ids, on all routes.
pub(crate) async fn find(store: &dyn Database, view: View, ids: &[MessageId]) -> Result<Vec<Listed>, Failed> {
    find_among(store, view, ids, &Filter::all_routes()).await
}

/// Finds messages by their ids, among those that a filter selects.
pub(crate) async fn find_among(
    store: &dyn Database,
    view: View,
    ids: &[MessageId],
    filter: &Filter,
) -> Result<Vec<Listed>, Failed> {
    let mut found = Vec::new();
    for ids in ids.chunks(MAX_PER_CALL) {
        let filter = Filter { ids: Some(ids.to_vec()), offset: 0, ..filter.clone() };
        each(store, view, filter, usize::MAX, |listed| found.push(listed)).await?;
    }
    Ok(found)
}

/// Passes on the messages of a view that a filter selects, at most so many. Only one page of them
/// is in memory at a time.
pub(crate) async fn each(
    store: &dyn Database,
    view: View,
    mut filter: Filter,
    most: usize,
    mut take: impl FnMut(Listed),
) -> Result<(), Failed> {
    let mut left = most;
    while left > 0 {
        filter.limit = Some(left.min(MAX_PER_CALL));
        let page = store.browse(view, &filter).await?;
        if page.is_empty() {
            break;
        }
        filter.offset += page.len();
        left -= page.len().min(left);
        page.into_iter().for_each(&mut take);
    }
    Ok(())
}

/// Returns the error of messages that are not in a view.
pub(crate) fn absent(view: View, ids: &[MessageId]) -> Failed {
    let what = match view {
        View::DeadLetters => "dead letter",
        View::Waiting => "waiting message",
        View::Parked => "parked message",
        View::History => "message of the history",
        View::Scheduled => "scheduled message",
    };
    let ids: Vec<String> = ids.iter().take(10).map(ToString::to_string).collect();
    Failed::error(format!(
        "no {what} has the id {}; it may have been dealt with meanwhile: list what is there",
        ids.join(", ")
    ))
}
