//! Stored messages into handlers: the transport of a relay that drains a consumer's route.
//!
//! So retries, dead letters, held keys and admin operations are those of the outbox. Delivered
//! means that the handler's transaction has committed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_contract::backend::{
    Deliveries, Outcome, Outcomes, PublishBatch, Stored, Subscription, Unavailable,
};
use outbox_contract::{
    Failure, Message, MessageId, Rejection, Transport, TransportError, TransportErrorKind, async_trait,
};
use tokio::time::Instant;

use super::config::{InboxConfig, Mode};
use super::core::conflicts::Conflicts;
use super::core::meetings::Meetings;
use super::foreign::Mapper;
use super::process::{Errand, Origin, Process, Work};
use super::stats::Counters;
use super::undecodable::map_again;
use super::verdict::{StoreFailure, Verdict};
use crate::giving_way::GivingWay;

pub(crate) struct Drain {
    process: Arc<dyn Process>,
    counters: Arc<Counters>,
    /// Maximum time of a call to the store.
    store_timeout: Duration,
    /// Maximum time that a message waits for a newer program.
    wait_for_upgrade: Duration,
    giving_way: Arc<GivingWay>,
    /// Makes messages of records that are none.
    mapper: Option<Mapper>,
    /// True if everything that waits in the store failed, or came behind such.
    all_suspects: bool,
    // Held while one verdict is looked at.
    conflicts: Mutex<Conflicts>,
    // The same.
    meetings: Mutex<Meetings>,
}

impl Drain {
    pub(crate) fn new(process: Arc<dyn Process>, counters: Arc<Counters>, config: &InboxConfig) -> Self {
        Self {
            process,
            counters,
            store_timeout: config.store_timeout,
            wait_for_upgrade: config.wait_for_upgrade,
            giving_way: Arc::default(),
            mapper: None,
            all_suspects: config.mode == Mode::Direct,
            conflicts: Mutex::default(),
            meetings: Mutex::default(),
        }
    }

    /// Sets the mapper, for records that were no messages when they came.
    pub(crate) fn with_mapper(self, mapper: Option<Mapper>) -> Self {
        Self { mapper, ..self }
    }

    /// Sets the decision that is told of messages that this program is too old for.
    pub(crate) fn with_giving_way(self, giving_way: Arc<GivingWay>) -> Self {
        Self { giving_way, ..self }
    }

    fn outcome(&self, id: MessageId, waited: Duration, verdict: Verdict) -> Outcome {
        let outcome = match verdict {
            Verdict::Done(_) => Outcome::Delivered,
            Verdict::Failed(failure) => Outcome::Failed(failure),
            Verdict::Rejected(failure) => Outcome::Rejected(failure),
            Verdict::TooNew(failure) => {
                self.giving_way.met();
                // Its age counts only from when this program met it.
                let known = self.meetings().met(id, Instant::now());
                postponed(waited.min(known), self.wait_for_upgrade, failure)
            }
            Verdict::Again(failure) => {
                let has_failed = self.conflicts().met(id, false, self.counters.handled());
                return self.nothing_done(has_failed, failure);
            }
            Verdict::Outdated(failure) => {
                let has_failed = self.conflicts().met(id, true, self.counters.handled());
                return self.nothing_done(has_failed, failure);
            }
            Verdict::Environment(failure) => {
                let has_failed = self.conflicts().interrupted(id, self.counters.handled(), Instant::now());
                return self.nothing_done(has_failed, failure);
            }
            // It is tried after a pause, and nothing is counted.
            Verdict::NotTried => return Outcome::Blocked,
        };
        self.conflicts().over(id);
        if !matches!(outcome, Outcome::Postponed(..)) {
            self.meetings().over(id);
        }
        outcome
    }

    /// Nothing was done. That is the message's fault only if it lasts.
    fn nothing_done(&self, has_failed: bool, failure: Failure) -> Outcome {
        if !has_failed {
            return Outcome::Blocked;
        }
        let words = format!(
            "failed at every attempt since it was received; those attempts were not counted: {}",
            failure.message
        );
        let failure = Failure::new(failure.class, words);
        self.counters.count(&Verdict::Failed(failure.clone()));
        Outcome::Failed(failure)
    }

    /// The messages that are to be tried now, by their places: neither those that rest nor their
    /// followers.
    fn awake(&self, messages: &[Arc<Stored>]) -> Vec<usize> {
        let (conflicts, now) = (self.conflicts(), Instant::now());
        let mut resting = BTreeSet::new();
        let mut awake = Vec::with_capacity(messages.len());
        for (index, stored) in messages.iter().enumerate() {
            let key = || stored.message.key_id();
            if conflicts.rests(stored.message.id, now) {
                resting.insert(key());
            } else if resting.is_empty() || !resting.contains(&key()) {
                awake.push(index);
            }
        }
        awake
    }

    fn conflicts(&self) -> MutexGuard<'_, Conflicts> {
        self.conflicts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meetings(&self) -> MutexGuard<'_, Meetings> {
        self.meetings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The shortest and the longest pause before a message that this program is too old for is tried
/// again.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Returns the outcome of a message that this program is too old for, after it has waited for so
/// long: it waits on, and the longer, the longer it has waited already; at the end of its time it
/// is rejected.
fn postponed(waited: Duration, max: Duration, failure: Failure) -> Outcome {
    if waited < max {
        return Outcome::Postponed((waited / 2).clamp(PAUSES.0, PAUSES.1), failure);
    }
    let words = format!("no newer version of this program was started within {max:.0?}: {}", failure.message);
    Outcome::Rejected(Failure::new(failure.class, words))
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

    async fn publish(&self, batch: PublishBatch, outcomes: &Outcomes) {
        let mut attempts = std::iter::once(batch.tried.saturating_add(1)).chain(std::iter::repeat(1));
        let awake = self.awake(&batch.messages);
        let map = |stored: &Arc<Stored>| map_again(&stored.message, self.mapper.as_ref()?);
        let mapped: Vec<Option<Message>> = batch.messages.iter().map(map).collect();
        let mut works = Vec::with_capacity(awake.len());
        for (index, stored) in batch.messages.iter().enumerate() {
            let attempt = attempts.next().unwrap_or(1);
            if awake.binary_search(&index).is_ok() {
                let message = mapped.get(index).and_then(Option::as_ref).unwrap_or(&stored.message);
                works.push(Work { message, attempt, stored: Some(&**stored) });
            } else {
                outcomes.report(index, Outcome::Blocked);
            }
        }
        if works.is_empty() {
            return;
        }
        let mut said = |at: usize, verdict| {
            if let (Some(work), Some(index)) = (works.get(at), awake.get(at)) {
                let waited = work.stored.map_or(Duration::ZERO, |stored| batch.now.since(stored.appended_at));
                let id = work.stored.map_or(work.message.id, |stored| stored.message.id);
                outcomes.report(*index, self.outcome(id, waited, verdict));
            }
        };
        // The last transaction to begin must also have time to commit.
        let until = Instant::now() + batch.deadline.saturating_sub(self.store_timeout);
        let errand = Errand {
            origin: Origin::Store { until },
            is_suspect: self.all_suspects || batch.tried > 0,
            is_wanted: &|| true,
        };
        match self.process.process(&errand, &works, &mut said).await {
            Ok(()) => {}
            Err(StoreFailure::Unavailable(error)) => {
                let failure = Failure::new("store-away", error);
                outcomes.report_rest(&Outcome::Unavailable(Unavailable::Route, failure));
            }
            Err(StoreFailure::Unknown(error)) => {
                outcomes.report_rest(&Outcome::Unknown(Failure::new("commit-unknown", error)));
            }
        }
    }

    async fn subscribe(&self, _subscription: Subscription) -> Result<Box<dyn Deliveries>, TransportError> {
        Err(TransportError::new(
            TransportErrorKind::Unsupported,
            "subscribe",
            "the inbox's own transport can't be subscribed to; subscribe to the transport that the inbox was built with",
        ))
    }

    async fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_a_message_has_waited_the_longer_it_rests_until_its_time_is_over() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3_600));
        let failure = || Failure::new("unknown-type", "this program has no handler for it");
        for (waited, rest) in [(0, 1), (1, 1), (20, 10), (60, 30), (3_599, 30)] {
            let outcome = postponed(second * waited, hour, failure());
            assert_eq!(outcome, Outcome::Postponed(second * rest, failure()), "after {waited} s");
        }
        for max in [hour, Duration::ZERO] {
            let Outcome::Rejected(failure) = postponed(max, max, failure()) else {
                panic!("its time is over")
            };
            assert_eq!(failure.class, "unknown-type");
            assert!(failure.message.contains("no newer version of this program was started"), "{failure}");
        }
    }
}
