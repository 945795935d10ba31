//! The verbs of operators.

use std::collections::BTreeSet;
use std::sync::Arc;

use outbox_contract::admin::{DeadLetter, Edit, FailingKey, Filter, Past};
use outbox_contract::{
    Admin, KeyId, Message, MessageId, Route, StoreError, StoreErrorKind, Stored, Timestamp, Topic,
    async_trait,
};

use crate::locks::LockName;
use crate::store::MemoryStore;

#[async_trait]
impl Admin for MemoryStore {
    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        Ok(self.shared.state().tables.failing_keys(filter))
    }

    async fn parked(&self, filter: &Filter) -> Result<Vec<Arc<Stored>>, StoreError> {
        Ok(self.shared.state().tables.parked(filter))
    }

    async fn dead_letters(&self, filter: &Filter) -> Result<Vec<DeadLetter>, StoreError> {
        Ok(self.shared.state().tables.dead_letters(filter))
    }

    async fn history(&self, filter: &Filter) -> Result<Vec<Past>, StoreError> {
        Ok(self.shared.state().tables.history(filter))
    }

    async fn hold(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.shared.statement(|tables, now| tables.hold(route, key, now));
        Ok(())
    }

    async fn release(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.shared
            .statement(|tables, now| tables.release_key(route, key, now))
            .map_err(|_| not_failing("release", route, key))
    }

    async fn skip(&self, route: &Route, key: &KeyId) -> Result<Option<MessageId>, StoreError> {
        self.shared
            .statement(|tables, now| tables.skip(route, key, now))
            .map_err(|_| not_failing("skip", route, key))
    }

    async fn discard(&self, route: &Route, key: &KeyId) -> Result<u64, StoreError> {
        self.shared
            .statement(|tables, now| tables.discard(route, key, now))
            .map_err(|_| not_failing("discard", route, key))
    }

    async fn requeue(&self, filter: &Filter) -> Result<u64, StoreError> {
        let names = self.shared.state().tables.dead_locks(filter);
        let (_locked, appendable) = self.lock(names, "requeue").await?;
        let requeued = self.shared.statement(|tables, now| tables.requeue(filter, &appendable, now));
        self.ring_if_any(requeued);
        Ok(requeued)
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        const OPERATION: &str = "requeue_edited";
        let Some(letter) = self.shared.state().tables.dead_letters(&filter.first()).pop() else {
            return Ok(None);
        };
        let message = edit
            .of_message(&letter.stored.message)
            .map_err(|wrong| StoreError::new(StoreErrorKind::Invalid, OPERATION, wrong))?;
        let id = message.id;
        let lock = LockName::to_append(self.shared.ordering, &letter.route, &message);
        let (_locked, _) = self.lock(BTreeSet::from([lock]), OPERATION).await?;
        let appended = self.shared.statement(|tables, now| tables.requeue_edited(&letter, message, now));
        self.ring_if_any(u64::from(appended));
        Ok(appended.then_some(id))
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        Ok(self.shared.state().tables.purge(filter))
    }

    async fn replay(&self, filter: &Filter) -> Result<u64, StoreError> {
        let names = self.shared.state().tables.history_locks(filter);
        let (_locked, appendable) = self.lock(names, "replay").await?;
        let replayed = self.shared.statement(|tables, now| tables.replay(filter, &appendable, now));
        self.ring_if_any(replayed);
        Ok(replayed)
    }

    async fn pause(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        self.shared.state().tables.pause(route, topic);
        Ok(())
    }

    async fn resume(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        self.shared.state().tables.resume(route, topic);
        Ok(())
    }

    async fn scheduled(&self, filter: &Filter) -> Result<Vec<(Timestamp, Message)>, StoreError> {
        Ok(self.shared.state().tables.scheduled(filter))
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        Ok(self.shared.state().tables.cancel_scheduled(ids))
    }
}

impl MemoryStore {
    fn ring_if_any(&self, appended: u64) {
        if appended > 0 {
            self.shared.wakeup_signal.committed();
        }
    }
}

fn not_failing(operation: &'static str, route: &Route, key: &KeyId) -> StoreError {
    StoreError::new(
        StoreErrorKind::Invalid,
        operation,
        format!("key {key} on route {route} is neither held nor failing; list those that are"),
    )
}
