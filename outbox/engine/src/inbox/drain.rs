//! Stored messages into handlers: the transport of a relay that drains a consumer's route.
//!
//! So retries, dead letters, held keys and the verbs of operators are those of the outbox. What a transport calls delivered is a message
//! whose handler's transaction is committed.

use std::sync::Arc;

use outbox_contract::outcome::Unavailable;
use outbox_contract::{
    Chunk, Deliveries, Failure, Message, Outcome, Outcomes, Rejection, Subscription, Transport,
    TransportError, TransportErrorKind, async_trait,
};

use super::process::{Place, Process, Work};
use super::verdict::{Broken, Verdict};

pub(crate) struct Drain {
    pub(crate) process: Arc<dyn Process>,
}

#[async_trait]
impl Transport for Drain {
    fn name(&self) -> &'static str {
        "handlers"
    }

    async fn check(&self) -> Result<(), TransportError> {
        Ok(())
    }

    fn validate(&self, _message: &Message) -> Result<(), Rejection> {
        Ok(())
    }

    async fn publish(&self, chunk: Chunk, outcomes: &Outcomes) {
        let mut attempts = std::iter::once(chunk.tried.saturating_add(1)).chain(std::iter::repeat(1));
        let works: Vec<Work<'_>> = chunk
            .messages
            .iter()
            .map(|stored| Work { message: &stored.message, attempt: attempts.next().unwrap_or(1) })
            .collect();
        let mut said = |index, verdict| outcomes.report(index, outcome(verdict));
        match self.process.process(Place::Store, &works, &mut said).await {
            Ok(()) => {}
            Err(Broken::Away(error)) => {
                let failure = Failure::new("store-away", error);
                outcomes.report_rest(&Outcome::Unavailable(Unavailable::Route, failure));
            }
            Err(Broken::Unknown(error)) => {
                outcomes.report_rest(&Outcome::Unknown(Failure::new("commit-unknown", error)));
            }
        }
    }

    async fn subscribe(&self, _subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        Err(TransportError::new(
            TransportErrorKind::Unsupported,
            "subscribe",
            "an inbox receives nothing from its own store; subscribe to the transport that it was given",
        ))
    }

    async fn close(&self) {}
}

fn outcome(verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Done(_) => Outcome::Delivered,
        Verdict::Failed(failure) => Outcome::Failed(failure),
        Verdict::Rejected(failure) => Outcome::Rejected(failure),
        // Nothing was done, and nothing of it is the message's fault: it is tried again after a pause, and not counted.
        Verdict::Again(_) | Verdict::NotTried => Outcome::Blocked,
    }
}
