//! A worker: one job at a time through the store. What is finished goes to the acknowledger, all of it back to the mailboxes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use outbox_contract::Message;
use outbox_contract::backend::Tag;
use ractor::{ActorId, ActorProcessingErr, ActorRef};
use tracing::Instrument;

use super::acknowledger::AcknowledgerMsg;
use super::context::Context;
use super::dispatcher::{Item, Job, What};
use super::mailboxes::MailboxesMsg;
use super::process::{Errand, Place, Work};
use super::verdict::{Broken, Done, Verdict};

pub(crate) struct Worker {
    pub(crate) context: Arc<Context>,
    pub(crate) acknowledger: ActorRef<AcknowledgerMsg>,
    pub(crate) mailboxes: ActorRef<MailboxesMsg>,
    /// How often what is out was called back: units were taken away, or nothing is to begin any more.
    pub(crate) recalls: Arc<AtomicU64>,
}

/// A job that is over.
pub(crate) struct Finished {
    pub(crate) worker: ActorId,
    pub(crate) number: u64,
    pub(crate) results: Vec<(Item, Verdict)>,
}

#[ractor::actor(message = Job, state = ())]
impl Worker {
    async fn pre_start(&self, _myself: ActorRef<Job>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Job>,
        job: Job,
        _state: &mut (),
    ) -> Result<(), ActorProcessingErr> {
        let span = tracing::debug_span!(
            "handle",
            consumer = %self.context.subscription.consumer,
            messages = job.items.len(),
            attempt = job.attempt
        );
        let verdicts = self.work(&job).instrument(span).await.map_err(|broken| broken.to_string())?;
        let tags: Vec<Tag> = job
            .items
            .iter()
            .zip(&verdicts)
            .filter(|(_, verdict)| matches!(verdict, Verdict::Done(_)))
            .map(|(item, _)| item.tag.clone())
            .collect();
        if !tags.is_empty() {
            self.acknowledger.cast(AcknowledgerMsg::Finished(tags))?;
        }
        let results = job.items.into_iter().zip(verdicts).collect();
        let finished = Finished { worker: myself.get_id(), number: job.number, results };
        Ok(self.mailboxes.cast(MailboxesMsg::Finished(finished))?)
    }
}

impl Worker {
    async fn work(&self, job: &Job) -> Result<Vec<Verdict>, Broken> {
        let recalls = self.recalls.load(Ordering::Acquire);
        let is_wanted = || {
            let paused = self.context.paused();
            self.recalls.load(Ordering::Acquire) == recalls
                && !job.items.iter().any(|item| paused.covers(&item.key.topic))
        };
        let errand = Errand { place: Place::Broker, is_suspect: job.is_suspect, is_wanted: &is_wanted };
        match job.what {
            What::Handle => {
                let mut attempts = std::iter::once(job.attempt).chain(std::iter::repeat(1));
                let works: Vec<Work<'_>> = job
                    .items
                    .iter()
                    .map(|item| Work {
                        message: &item.message,
                        attempt: attempts.next().unwrap_or(1),
                        stored: None,
                    })
                    .collect();
                let mut verdicts = vec![Verdict::NotTried; works.len()];
                let mut said = |index: usize, verdict| verdicts[index] = verdict;
                self.context.process.process(&errand, &works, &mut said).await?;
                Ok(verdicts)
            }
            What::Store => {
                let messages: Vec<&Message> = job.items.iter().map(|item| &*item.message).collect();
                if !self.context.process.store(&errand, &messages).await? {
                    return Ok(vec![Verdict::NotTried; messages.len()]);
                }
                self.context.counters.stored(messages.len());
                Ok(vec![Verdict::Done(Done::Stored); messages.len()])
            }
        }
    }
}
