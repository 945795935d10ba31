//! Bugs of the broken store with the ids of handled messages.

use outbox_contract::admin::HandledFilter;
use outbox_contract::backend::{Clock, Dedup};
use outbox_contract::{Admin, Consumer, Message, StoreError, Timestamp};

use super::{BrokenStore, Bug};

impl BrokenStore {
    fn consumers(&self) -> Vec<Consumer> {
        self.seen.lock().unwrap().handled.keys().cloned().collect()
    }

    /// By the age alone, whether a consumer was there or not.
    pub(super) async fn forget_early(&self) -> Result<(), StoreError> {
        const WEEK: i64 = 7 * 24 * 3_600 * 1_000_000;
        let before = Timestamp::from_micros(self.clock.now().as_micros() - WEEK);
        for consumer in self.consumers() {
            self.inner.forget(&HandledFilter::of(consumer).unwrap().with_before(before)).await?;
        }
        Ok(())
    }

    pub(super) async fn forget_wrongly(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        let mut filter = filter.clone();
        match self.bug {
            Some(Bug::CountsAndForgetsNothing) => return Ok(0),
            Some(Bug::ForgetsWholeConsumers) => (filter.topic, filter.key) = (None, None),
            Some(Bug::ForgetsAtAnyTime) => (filter.since, filter.before) = (None, None),
            Some(Bug::ForgetsOfEverybody) => {
                let asked = filter.consumer.clone();
                for consumer in self.consumers().into_iter().filter(|consumer| *consumer != asked) {
                    filter.consumer = consumer;
                    self.inner.forget(&filter).await?;
                }
                filter.consumer = asked;
            }
            _ => {}
        }
        self.inner.forget(&filter).await
    }

    /// Remembers the last message of each key, and takes an earlier one for one out of turn if that
    /// is the bug.
    pub(super) fn see_handled(&self, consumer: &Consumer, messages: &[&Message], answers: &mut [Dedup]) {
        let mut seen = self.seen.lock().unwrap();
        let of = seen.handled.entry(consumer.clone()).or_default();
        for (message, answer) in messages.iter().zip(answers).filter(|(_, answer)| **answer == Dedup::New) {
            let last = of.entry(message.key_id()).or_insert(message.id);
            if *last > message.id && self.has(Bug::RemembersTheOrder) {
                *answer = Dedup::OutOfTurn;
            }
            *last = message.id.max(*last);
        }
    }
}
