//! Looks below what is read, beside all other work: a saved mark and a cursor are hints, the rows are the truth.

use outbox_contract::fetch::Fetched;
use tokio::task::JoinHandle;

use super::super::context::Broken;
use super::super::reader::{Below, Seen};
use super::*;

/// How long after a look that found nothing the next one is made.
const EVERY: Duration = Duration::from_secs(30);
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
    fetched: Result<Fetched, Broken>,
}

/// When to look below, and from where.
#[derive(Debug, Default)]
pub(super) struct LookBelow {
    next: Duration,
    /// Up to here nothing was found by a look that is not at its end.
    after: Position,
    /// The pause behind a look that found something; grows while none does.
    pause: Duration,
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
        (self.next, self.after) = (at, Position::START);
    }
}

impl PollerState {
    /// Looks below what is read, if it is time. Nobody waits for the answer.
    pub(super) fn look_below(&mut self, myself: &ActorRef<PollerMsg>) {
        let now = self.context.now();
        if self.below.task.is_some() || now < self.below.next {
            return;
        }
        let context = Arc::clone(&self.context);
        let Some(below) = self.reader.below(&context.route, context.relay, self.below.after) else {
            self.below.look_at(now + SOON);
            return;
        };
        let myself = myself.clone();
        self.below.task = Some(Task(tokio::spawn(async move {
            let asked = context.now();
            let call = context.store.fetch_below(&below.request);
            let fetched = in_time(context.config.store_timeout, "fetch_below", call).await;
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
        let seen = match &fetched {
            Ok(fetched) => self.reader.seen_below(&below, fetched),
            Err(error) => {
                tracing::debug!(route = %self.context.route, %error, "a look below the saved mark failed; trying again later");
                self.below.look_at(now + EVERY.max(rest));
                return false;
            }
        };
        match seen {
            Seen::Row(at) => {
                self.below.pause = SOON;
                self.below.look_at(now + SOON.max(rest));
                self.warn_of(at, below.request.until, now);
                return true;
            }
            Seen::NothingYet(position) => {
                (self.below.after, self.below.next) = (position, now + SOON.max(rest));
            }
            Seen::Useless => self.below.look_at(now + SOON.max(rest)),
            Seen::Nothing => {
                self.below.pause = (self.below.pause.max(SOON) * 2).min(EVERY);
                self.below.look_at(now + self.below.pause.max(rest));
            }
        }
        false
    }

    fn warn_of(&mut self, at: Position, mark: Position, now: Duration) {
        if self.below.warned.is_some_and(|warned| now.saturating_sub(warned) < WARN_EVERY) {
            return;
        }
        self.below.warned = Some(now);
        tracing::warn!(
            route = %self.context.route, position = at.0, mark = mark.0,
            "messages stand below the position up to which the relay has read; it goes back and delivers them. Positions went back: a sequence was set, \
             or the tables were restored, moved or filled without it. Set the sequence of positions above the highest position that was ever used"
        );
    }
}
