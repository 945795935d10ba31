//! Plans: what an operation would hit, and its execution in steps of limited time.

use std::time::{Duration, Instant};

use outbox::admin::{FailingKey, Filter, KeyOperation, Listed, MAX_PER_CALL, View};
use outbox::{Admin, AdminExt, KeyId, MessageId, Route, StoreErrorKind, Topic};

use crate::format::{count, number};
use crate::operation::Operation;
use crate::params::Params;
use crate::problem::Problem;
use crate::scan::scan;
use crate::selection::Selection;
use crate::visit::Visit;

/// Number of messages that are changed at once.
const STEP: usize = 500;

/// Number of keys that are read at once: each page is found from the beginning.
const KEYS: usize = MAX_PER_CALL;

/// Maximum number of keys of one operation.
const MAX_KEYS: usize = 10_000;

/// Time in which the keys of a confirmation are counted.
const COUNT_WITHIN: Duration = Duration::from_millis(300);

/// Time in which the keys of an operation are chosen.
const CHOOSE_WITHIN: Duration = Duration::from_secs(2);

/// Time after which an operation begins no further step.
const ACT_WITHIN: Duration = Duration::from_secs(15);

/// An operation, and what it is for.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) operation: Operation,
    pub(crate) target: Target,
}

#[derive(Debug)]
pub(crate) enum Target {
    /// Messages of a view.
    Messages(View, Selection),
    /// Failing keys that a filter selects.
    Keys(KeyOperation, Selection),
    /// One key, whatever its state: to hold it.
    Key(Route, KeyId),
    /// A route, or one topic of it.
    Scope(Route, Option<Topic>),
}

/// Number of messages and keys that a plan hits.
#[derive(Debug, Default)]
pub(crate) struct Extent {
    pub(crate) messages: u64,
    pub(crate) keys: u64,
    /// True if counting has stopped at a limit: there may be more.
    pub(crate) is_at_least: bool,
    /// The first of the messages.
    pub(crate) first: Vec<Listed>,
    /// The first of the keys.
    pub(crate) first_keys: Vec<FailingKey>,
}

impl Extent {
    /// Number of messages or keys that are shown.
    const SHOWN: usize = 5;
}

/// Result of an operation.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) done: u64,
    /// Keys or messages that were gone.
    pub(crate) gone: u64,
    /// True if time ran out.
    pub(crate) is_cut_short: bool,
}

impl Plan {
    /// Reads a plan from an address or a form.
    pub(crate) fn of(visit: &Visit, params: &Params) -> Result<Self, Problem> {
        let name = params.get("op").unwrap_or_default();
        let Some(operation) = Operation::of(name) else {
            return Err(Problem::bad(
                format!("{name:?} is not an operation"),
                "use the buttons of the pages",
            ));
        };
        let mut selection = Selection::of(params, visit.now)?;
        if params.get("chosen").is_some() && selection.filter.ids.is_none() {
            return Err(Problem::bad("no message is selected", "go back, and select at least one"));
        }
        if operation == Operation::Replay {
            // Replayed messages are delivered again, and would be found again.
            selection.filter.before.get_or_insert(visit.now);
        }
        let Filter { route, topic, key, event_type, .. } = &selection.filter;
        if operation.on_keys().is_some() && (event_type.is_some() || !selection.is_plain()) {
            return Err(Problem::bad(
                "keys are not selected by a type, a cause or a text",
                "select them by route, topic, key or time",
            ));
        }
        let target = match (operation.view(), operation.on_keys()) {
            (Some(view), _) => Target::Messages(view, selection),
            (None, Some(KeyOperation::Hold)) => {
                let (Some(topic), Some(key)) = (topic.clone(), key.clone()) else {
                    return Err(Problem::bad("topic or key is missing", "name the key to hold"));
                };
                Target::Key(route.clone().unwrap_or_default(), KeyId { topic, key })
            }
            (None, Some(on_keys)) => Target::Keys(on_keys, selection),
            (None, None) => {
                let Some(route) = route.clone() else {
                    return Err(Problem::bad("the route is missing", "name the route"));
                };
                Target::Scope(route, topic.clone())
            }
        };
        Ok(Self { operation, target })
    }

    /// Counts what it would hit.
    pub(crate) async fn extent(&self, visit: &Visit) -> Result<Extent, Problem> {
        match &self.target {
            Target::Messages(view, selection) => messages(visit, *view, selection).await,
            Target::Keys(operation, selection) => {
                if let (Some(route), true) = (&selection.filter.route, selection.is_whole()) {
                    return all_keys(visit, route, selection, *operation).await;
                }
                let (keys, is_at_least) = keys(visit, selection, COUNT_WITHIN).await?;
                let parked = keys.iter().map(|key| match operation {
                    KeyOperation::Skip => key.parked.min(1),
                    KeyOperation::Discard => key.parked,
                    KeyOperation::Hold | KeyOperation::Release => 0,
                });
                let (messages, number) = (parked.sum(), keys.len() as u64);
                let first_keys = keys.into_iter().take(Extent::SHOWN).collect();
                Ok(Extent { messages, keys: number, is_at_least, first_keys, ..Extent::default() })
            }
            Target::Key(..) => Ok(Extent { keys: 1, ..Extent::default() }),
            Target::Scope(route, _) => {
                let backlog = visit.ask(visit.store().backlog(route)).await?;
                let is_at_least = backlog.pending_is_at_least;
                Ok(Extent { messages: backlog.pending, is_at_least, ..Extent::default() })
            }
        }
    }

    /// Says what it would do: `Requeue 12 dead letters of the topic orders`.
    pub(crate) fn question(&self, extent: &Extent) -> String {
        let more = if extent.is_at_least { "at least " } else { "" };
        let label = self.operation.label();
        match &self.target {
            Target::Messages(..) => {
                format!("{label} {more}{}", count(extent.messages, self.operation.noun()))
            }
            Target::Keys(KeyOperation::Skip, _) => {
                format!("Skip the first message of {more}{}", count(extent.keys, "key"))
            }
            Target::Keys(KeyOperation::Discard, _) => {
                let (messages, keys) = (count(extent.messages, "message"), count(extent.keys, "key"));
                format!("Discard {more}{messages} of {keys}")
            }
            Target::Keys(..) => format!("{label} {more}{}", count(extent.keys, "key")),
            Target::Key(route, key) => format!("{label} the key {key} on the route {route}"),
            Target::Scope(route, None) => {
                format!("{label} the route {route}; {more}{} pending now", count(extent.messages, "message"))
            }
            Target::Scope(route, Some(topic)) => format!("{label} the topic {topic} of the route {route}"),
        }
    }

    /// Carries it out, on no more messages than were confirmed.
    pub(crate) async fn carry_out(&self, visit: &Visit, most: Option<u64>) -> Result<Done, Problem> {
        let admin = &*visit.admin();
        match &self.target {
            Target::Messages(view, selection) => {
                let mut run = Run::new(visit, self.operation, *view, selection, most);
                let done = run.go(admin).await;
                // Report the completed steps, also if a later one failed.
                if run.done.done == 0 { done.map(|()| run.done) } else { Ok(run.cut(&done)) }
            }
            Target::Keys(operation, selection) => on_keys(visit, admin, *operation, selection).await,
            Target::Key(route, key) => {
                visit.ask(admin.hold(route, key)).await?;
                Ok(Done { done: 1, ..Done::default() })
            }
            Target::Scope(route, topic) => {
                let paused = self.operation == Operation::Pause;
                visit.ask(admin.set_paused(route, topic.as_ref(), paused)).await?;
                Ok(Done { done: 1, ..Done::default() })
            }
        }
    }

    /// Says what was done.
    pub(crate) fn result(&self, done: &Done) -> String {
        let what = match &self.target {
            Target::Scope(route, topic) => topic
                .as_ref()
                .map_or_else(|| format!("the route {route}"), |topic| format!("the topic {topic}")),
            Target::Key(_, key) => format!("the key {key}"),
            Target::Messages(..) | Target::Keys(..) => count(done.done, self.operation.noun()),
        };
        let mut text = format!("{} {what}.", self.operation.done());
        if matches!(self.target, Target::Scope(..)) {
            text.push_str(" Relays follow at their next heartbeat.");
        }
        if done.gone > 0 {
            text.push_str(&format!(
                " {} no longer there: a relay or another operator was faster.",
                if done.gone == 1 { "1 was".to_owned() } else { format!("{} were", number(done.gone)) }
            ));
        }
        if done.is_cut_short {
            text.push_str(" More remain; do it again to continue.");
        }
        text
    }
}

/// Counts messages: a whole route by its backlog, others one by one up to a limit.
async fn messages(visit: &Visit, view: View, selection: &Selection) -> Result<Extent, Problem> {
    if let (View::DeadLetters, Some(route), true) = (view, &selection.filter.route, selection.is_whole()) {
        let backlog = visit.ask(visit.store().backlog(route)).await?;
        let (messages, is_at_least) = (backlog.dead, backlog.is_at_least(backlog.dead));
        let first = scan(visit, view, selection, 0, Extent::SHOWN).await?.found;
        return Ok(Extent { messages, is_at_least, first, ..Extent::default() });
    }
    let scan = scan(visit, view, selection, 0, usize::MAX).await?;
    let (messages, is_at_least, mut first) = (scan.found.len() as u64, scan.next.is_some(), scan.found);
    first.truncate(Extent::SHOWN);
    Ok(Extent { messages, is_at_least, first, ..Extent::default() })
}

/// Counts the failing keys of a whole route by its backlog.
async fn all_keys(
    visit: &Visit,
    route: &Route,
    selection: &Selection,
    operation: KeyOperation,
) -> Result<Extent, Problem> {
    let backlog = visit.ask(visit.store().backlog(route)).await?;
    let first_keys = visit.ask(visit.store().failing_keys(&selection.page(0, Extent::SHOWN))).await?;
    let messages = if operation == KeyOperation::Discard { backlog.parked } else { 0 };
    let keys = backlog.retrying_keys + backlog.held_keys;
    let figures = [messages, backlog.retrying_keys, backlog.held_keys];
    let is_at_least = figures.into_iter().any(|figure| backlog.is_at_least(figure));
    Ok(Extent { messages, keys, is_at_least, first_keys, ..Extent::default() })
}

/// Returns failing keys, and whether there may be more.
async fn keys(
    visit: &Visit,
    selection: &Selection,
    within: Duration,
) -> Result<(Vec<FailingKey>, bool), Problem> {
    let (mut keys, started) = (Vec::new(), Instant::now());
    loop {
        let page = visit.ask(visit.store().failing_keys(&selection.page(keys.len(), KEYS))).await?;
        let is_end = page.len() < KEYS;
        keys.extend(page);
        if is_end || keys.len() >= MAX_KEYS || started.elapsed() >= within {
            return Ok((keys, !is_end));
        }
    }
}

/// Changes keys one by one. They are chosen once, at the beginning.
async fn on_keys(
    visit: &Visit,
    admin: &dyn Admin,
    operation: KeyOperation,
    selection: &Selection,
) -> Result<Done, Problem> {
    let started = Instant::now();
    let (keys, more) = keys(visit, selection, CHOOSE_WITHIN).await?;
    let mut done = Done { is_cut_short: more, ..Done::default() };
    if keys.is_empty() {
        done.gone = u64::from(selection.filter.key.is_some());
    }
    for key in keys {
        if started.elapsed() >= ACT_WITHIN {
            done.is_cut_short = true;
            break;
        }
        let steered = async {
            match admin.steer(&key.route, &key.key, operation).await {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == StoreErrorKind::Invalid => Ok(false),
                Err(error) => Err(error),
            }
        };
        match visit.ask(steered).await {
            Ok(true) => done.done += 1,
            Ok(false) => done.gone += 1,
            Err(problem) if done.done == 0 => return Err(problem),
            Err(_) => {
                done.is_cut_short = true;
                break;
            }
        }
    }
    Ok(done)
}

/// An operation on messages, step by step.
struct Run<'r> {
    visit: &'r Visit,
    operation: Operation,
    view: View,
    selection: &'r Selection,
    most: u64,
    offset: usize,
    done: Done,
    started: Instant,
}

impl<'r> Run<'r> {
    fn new(
        visit: &'r Visit,
        operation: Operation,
        view: View,
        selection: &'r Selection,
        most: Option<u64>,
    ) -> Self {
        let most = most.unwrap_or(u64::MAX);
        let (offset, done, started) = (0, Done::default(), Instant::now());
        Self { visit, operation, view, selection, most, offset, done, started }
    }

    fn cut(mut self, end: &Result<(), Problem>) -> Done {
        self.done.is_cut_short |= end.is_err();
        self.done
    }

    async fn go(&mut self, admin: &dyn Admin) -> Result<(), Problem> {
        let is_by_filter = self.selection.is_plain() && self.operation != Operation::Cancel;
        while self.done.done < self.most {
            if self.started.elapsed() >= ACT_WITHIN {
                self.done.is_cut_short = true;
                return Ok(());
            }
            let left = usize::try_from(self.most - self.done.done).unwrap_or(usize::MAX).min(STEP);
            let goes_on = if is_by_filter {
                self.filtered(admin, left).await?
            } else {
                self.chosen(admin, left).await?
            };
            if !goes_on {
                break;
            }
        }
        if let Some(ids) = &self.selection.filter.ids {
            self.done.gone = (ids.len() as u64).saturating_sub(self.done.done);
        }
        Ok(())
    }

    /// Lets the store choose the next messages. Returns false at the end.
    async fn filtered(&mut self, admin: &dyn Admin, limit: usize) -> Result<bool, Problem> {
        let filter = self.selection.page(self.offset, limit);
        let number = self.call(admin, &filter).await?;
        self.done.done += number;
        if self.operation == Operation::Replay {
            // Replayed messages stay where they were.
            self.offset += usize::try_from(number).unwrap_or(usize::MAX);
        }
        Ok(number > 0)
    }

    /// Looks for the next messages that fit, and names them to the store. Returns false at the end.
    async fn chosen(&mut self, admin: &dyn Admin, limit: usize) -> Result<bool, Problem> {
        let scan = scan(self.visit, self.view, self.selection, self.offset, limit).await?;
        let ids: Vec<MessageId> = scan.found.iter().map(|listed| listed.stored.message.id).collect();
        let mut number = 0;
        if !ids.is_empty() {
            let filter = Filter { ids: Some(ids), offset: 0, limit: None, ..self.selection.filter.clone() };
            number = self.call(admin, &filter).await?;
        }
        self.done.done += number;
        let removed =
            if self.operation == Operation::Replay { 0 } else { usize::try_from(number).unwrap_or(0) };
        self.offset += scan.looked_at.saturating_sub(removed);
        Ok(scan.next.is_some())
    }

    async fn call(&self, admin: &dyn Admin, filter: &Filter) -> Result<u64, Problem> {
        let ids = filter.ids.as_deref().unwrap_or_default();
        let number = match self.operation {
            Operation::Requeue => self.visit.ask(admin.requeue(filter)).await?,
            Operation::Purge => self.visit.ask(admin.purge(filter)).await?,
            Operation::Replay => self.visit.ask(admin.replay(filter)).await?,
            _ => self.visit.ask(admin.cancel_scheduled(ids)).await?,
        };
        Ok(number)
    }
}
