//! Work of an inbox beside its messages: looks at the broker, and notes in the store what it
//! handles.

use std::sync::Arc;
use std::time::Duration;

use outbox_contract::backend::Subscription;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::context::Context;
use super::source::Source;
use crate::transport_check::EVERY;

/// Time for which the store is asked what the consumer has handled, before the start counts as
/// failed.
const ASKED_FOR: Duration = Duration::from_secs(5);
/// Pause before it is asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// Time limit of the last note: whoever stops has a deadline.
const LAST: Duration = Duration::from_secs(1);

impl Context {
    /// Takes what the transport tells of its subscription.
    pub(crate) fn look(&self, source: &Source) {
        let problems = source.problems();
        if let (Some(lags), Some(problems)) = (source.lags(), &problems) {
            self.consumed.look(&lags, problems);
            self.lags.look(&lags);
        }
        if let Some(problems) = problems {
            self.problems.look(&problems);
        }
        if let Some(losses) = source.losses() {
            self.losses.look(losses, Instant::now());
        }
    }

    /// There is no subscription any more.
    pub(crate) fn forget(&self) {
        self.problems.forget();
        self.lags.forget();
        self.consumed.forget_positions();
    }

    /// Asks the store once which topics the consumer has handled.
    pub(crate) async fn know_consumed(&self) -> Result<(), String> {
        let (now, begun) = (self.clock.now(), self.now());
        let mut handled = self.consumed.handled();
        for topic in &self.subscription.topics {
            while !self.consumed.is_known() {
                match self.process.last_handled(topic, now).await {
                    Ok(Some(last)) => {
                        handled.insert(topic.clone(), last);
                        break;
                    }
                    Ok(None) => break,
                    Err(trouble) if self.now() > begun + ASKED_FOR => {
                        return Err(format!("could not read the handled topics from the store: {trouble:?}"));
                    }
                    Err(_) => sleep(AGAIN).await,
                }
            }
        }
        self.consumed.know(handled);
        Ok(())
    }

    /// Returns the subscription, with what is known of its topics.
    pub(crate) fn to_subscribe(&self) -> Subscription {
        self.subscription.clone().with_handled(self.consumed.handled(), self.config.offset_reset)
    }

    async fn note(&self) {
        let (elapsed, now) = (self.now(), self.clock.now());
        let topics = self.consumed.to_note(elapsed, now);
        if topics.is_empty() {
            return;
        }
        match self.process.note_handled(&topics, now).await {
            Ok(()) => self.consumed.noted(&topics, now),
            Err(trouble) => {
                self.consumed.not_noted(elapsed);
                tracing::debug!(?trouble, "could not record which topics are handled; will retry");
            }
        }
    }
}

/// Tasks beside the supervisor, which waits for none of them.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    noting: Option<JoinHandle<()>>,
    checking: Option<JoinHandle<()>>,
    checked_at: Option<Instant>,
}

impl Upkeep {
    /// Does what is due.
    pub(crate) fn look(&mut self, context: &Arc<Context>) {
        let is_due = !context.consumed.to_note(context.now(), context.clock.now()).is_empty();
        if is_due && self.noting.as_ref().is_none_or(JoinHandle::is_finished) {
            let context = Arc::clone(context);
            self.noting = Some(tokio::spawn(async move { context.note().await }));
        }
        let now = Instant::now();
        // The start has just checked it.
        let checked_at = *self.checked_at.get_or_insert(now);
        if now >= checked_at + EVERY && self.checking.as_ref().is_none_or(JoinHandle::is_finished) {
            self.checked_at = Some(now);
            let context = Arc::clone(context);
            let check = async move { context.checked.look(&*context.transport, EVERY / 2).await };
            self.checking = Some(tokio::spawn(check));
        }
    }

    /// Notes what is not noted yet, before the end.
    pub(crate) async fn finish(&mut self, context: &Context) {
        let note = async {
            if let Some(noting) = self.noting.take() {
                // Its result does not matter.
                let _ = noting.await;
            }
            context.note().await;
        };
        let _ = timeout(LAST, note).await;
    }
}
