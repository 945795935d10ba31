//! A worker: one job at a time through the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outbox_contract::Message;
use ractor::{ActorProcessingErr, ActorRef};
use tracing::Instrument;

use super::context::Context;
use super::core::{Job, Task};
use super::dispatcher::DispatcherMsg;
use super::process::{Errand, Origin, Work};
use super::verdict::{Done, StoreFailure, Verdict};

pub(crate) struct Worker {
    pub(crate) context: Arc<Context>,
    pub(crate) dispatcher: ActorRef<DispatcherMsg>,
}

/// A job for a worker.
pub(crate) struct Assignment {
    pub(crate) job: Job,
    /// Not to be begun, if it is not begun yet.
    pub(crate) recalled: Arc<AtomicBool>,
}

#[ractor::actor(message = Assignment, state = ())]
impl Worker {
    async fn pre_start(&self, _myself: ActorRef<Assignment>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _myself: ActorRef<Assignment>,
        Assignment { job, recalled }: Assignment,
        _state: &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let span = tracing::debug_span!(
            "handle",
            consumer = %self.context.subscription.consumer,
            messages = job.messages.len(),
            attempt = job.attempt
        );
        let is_wanted = || !recalled.load(Ordering::Acquire);
        let errand = Errand { origin: Origin::Broker, is_suspect: job.is_suspect, is_wanted: &is_wanted };
        let verdicts = self.work(&job, &errand).instrument(span).await;
        Ok(self.dispatcher.cast(DispatcherMsg::Finished { number: job.number, verdicts })?)
    }
}

impl Worker {
    async fn work(&self, job: &Job, errand: &Errand<'_>) -> Result<Vec<Verdict>, StoreFailure> {
        let Context { process, counters, .. } = &*self.context;
        match job.task {
            Task::Handle => {
                let attempts = std::iter::once(job.attempt).chain(std::iter::repeat(1));
                let messages = job.messages.iter().zip(attempts);
                let works: Vec<Work<'_>> =
                    messages.map(|(message, attempt)| Work { message, attempt, stored: None }).collect();
                let mut verdicts = vec![Verdict::NotTried; works.len()];
                let mut said = |index: usize, verdict| verdicts[index] = verdict;
                process.process(errand, &works, &mut said).await?;
                Ok(verdicts)
            }
            Task::Store => {
                let messages: Vec<&Message> = job.messages.iter().map(|message| &**message).collect();
                if !process.store(errand, &messages).await? {
                    return Ok(vec![Verdict::NotTried; messages.len()]);
                }
                counters.stored(messages.len());
                Ok(vec![Verdict::Done(Done::Stored); messages.len()])
            }
        }
    }
}
