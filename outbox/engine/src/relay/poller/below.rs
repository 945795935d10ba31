//! Looks below what is read, beside all other work: a saved mark and a cursor are hints, the rows are the truth.
//!
//! A look that finds nothing is one read of the index by which rows are fetched, from its beginning to the cursor: it passes what is in flight, which is at
//! most `credit` entries and left out by position, and what the database has not purged yet. Where there are stripes, the main window reads on from its
//! cursor besides, though no counter has moved: one fetch of no rows.

use outbox_contract::StripeMark;
use outbox_contract::fetch::Fetched;
use tokio::task::JoinHandle;

use super::super::context::Broken;
use super::super::reader::{Below, Cause, Seen};
use super::*;

/// How long after a look that found nothing the next one is made. Where there are stripes, a row that no counter tells of may take two: one until the main
/// window has passed it, and one until it is found. Both together are less than a minute.
const EVERY: Duration = Duration::from_secs(25);
/// How long after one that did, or that is not over yet: more may have come there, as while a sequence that was set back catches up.
const SOON: Duration = Duration::from_secs(1);
/// How many times as long as a look took there is none: where dead rows are kept by an old snapshot, it walks over all of them.
const REST: u32 = 50;
/// How often at the most a warning is given.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The answer of the store to a look.
pub(crate) struct Answer {
    below: Below,
    took: Duration,
    fetched: Result<(Fetched, Vec<StripeMark>), Broken>,
}

/// When to look below, and from where.
#[derive(Debug, Default)]
pub(super) struct LookBelow {
    next: Duration,
    /// Up to here nothing was found by a look that is not at its end.
    after: Position,
    /// Where that look ends, however far the relay has read meanwhile.
    until: Option<Position>,
    /// The pause behind a look that found something; grows while none does.
    pause: Duration,
    /// For how long there is none, at least, behind the last one.
    rest: Duration,
    warned: Option<Duration>,
    /// The look that is under way.
    task: Option<Task>,
}

/// A look that is under way; dropping this ends it.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl LookBelow {
    pub(super) fn look_at(&mut self, at: Duration) {
        (self.next, self.after, self.until) = (at, Position::START, None);
    }

    /// A fetch has shown that something stands where it should not.
    pub(super) fn hurry(&mut self, now: Duration) {
        let soon = now + SOON.max(self.rest);
        if soon < self.next {
            self.look_at(soon);
        }
    }
}

impl PollerState {
    /// Looks below what is read, if it is time. Nobody waits for the answer.
    pub(super) fn look_below(&mut self, myself: &ActorRef<PollerMsg>) {
        let now = self.context.now();
        if self.reader.is_astray() {
            self.below.hurry(now);
        }
        if self.below.task.is_some() || now < self.below.next {
            return;
        }
        let context = Arc::clone(&self.context);
        let (after, until) = (self.below.after, self.below.until);
        let Some(below) = self.reader.below(&context.route, context.relay, after, until) else {
            // Each look of a reader with stripes costs a fetch.
            self.below.look_at(now + if self.reader.has_stripes() { EVERY } else { SOON });
            return;
        };
        let myself = myself.clone();
        self.below.task = Some(Task(tokio::spawn(async move {
            let asked = context.now();
            let fetched = carry_out(&context, &below).await;
            let took = context.now().saturating_sub(asked);
            // A mailbox that is gone belongs to an actor that is over.
            let _ = myself.cast(PollerMsg::Below(Answer { below, took, fetched }));
        })));
    }

    /// Takes the answer; says whether there is something to read.
    pub(super) fn looked_below(&mut self, answer: Answer) -> bool {
        let Answer { below, took, fetched } = answer;
        self.below.task = None;
        let now = self.context.now();
        let rest = took.saturating_mul(REST);
        self.below.rest = rest;
        let seen = match fetched {
            Ok((fetched, marks)) => self.reader.seen_below(&below, &fetched, marks),
            Err(error) => {
                tracing::debug!(route = %self.context.route, %error, "a look below the saved mark failed; trying again later");
                self.below.look_at(now + EVERY.max(rest));
                return false;
            }
        };
        match seen {
            Seen::Rows(at, cause) => {
                self.below.pause = SOON;
                self.below.look_at(now + SOON.max(rest));
                self.context.counters.found_below(now, cause);
                self.warn_of(at, below.request.until, cause, now);
                return true;
            }
            Seen::NothingYet(position) => {
                self.below.look_at(now + SOON.max(rest));
                (self.below.after, self.below.until) = (position, Some(below.request.until));
            }
            Seen::Useless => self.below.look_at(now + SOON.max(rest)),
            Seen::Nothing => {
                self.below.pause = (self.below.pause.max(SOON) * 2).min(EVERY);
                self.below.look_at(now + self.below.pause.max(rest));
            }
        }
        false
    }

    fn warn_of(&mut self, at: Position, mark: Position, cause: Cause, now: Duration) {
        if self.below.warned.is_some_and(|warned| now.saturating_sub(warned) < WARN_EVERY) {
            return;
        }
        self.below.warned = Some(now);
        tracing::warn!(
            route = %self.context.route, position = at.0, mark = mark.0, %cause,
            "messages stand below the position up to which the relay has read; it goes back and delivers them"
        );
    }
}

/// Asks the store what stands there. Where there are stripes, and anything does, then how far they are committed: what was there is within that.
async fn carry_out(context: &Context, below: &Below) -> Result<(Fetched, Vec<StripeMark>), Broken> {
    let limit = context.config.store_timeout;
    let fetched = in_time(limit, "fetch_below", context.store.fetch_below(&below.request)).await?;
    if !below.wants_stripes(&fetched) {
        return Ok((fetched, Vec::new()));
    }
    let marks = context.store.stripes(&context.route, &below.request.buckets);
    Ok((fetched, in_time(limit, "stripes", marks).await?))
}
