//! The verbs of operators.

use std::collections::BTreeSet;

use outbox_contract::admin::{Edit, FailingKey, Filter, HandledFilter, MAX_PER_CALL, OutboxId};
use outbox_contract::backend::{Archive, KeyOperation, Listed, Steered, View};
use outbox_contract::{Admin, KeyId, MessageId, Route, StoreError, StoreErrorKind, Topic, async_trait};

use crate::locks::LockName;
use crate::store::MemoryStore;

#[async_trait]
impl Admin for MemoryStore {
    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        Ok(self.shared.state().tables.failing_keys(filter))
    }

    async fn browse(&self, view: View, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let state = self.shared.state();
        Ok(match view {
            View::Parked => state.tables.parked(filter),
            View::DeadLetters => state.tables.dead_letters(filter),
            View::History => state.tables.history(filter),
            View::Scheduled => state.tables.scheduled(filter),
        })
    }

    async fn steer(
        &self,
        route: &Route,
        key: &KeyId,
        operation: KeyOperation,
    ) -> Result<Steered, StoreError> {
        let steered = self.shared.statement(|tables, now| match operation {
            KeyOperation::Hold => {
                tables.hold(route, key, now);
                Ok(Steered::NOTHING)
            }
            KeyOperation::Skip => tables.skip(route, key, now).map(Steered::skipped),
            KeyOperation::Discard => tables.discard(route, key, now).map(Steered::discarded),
            KeyOperation::Release => tables.release_key(route, key, now).map(|()| Steered::NOTHING),
        });
        steered.map_err(|_| not_failing(operation.name(), route, key))
    }

    async fn append_again(&self, archive: Archive, filter: &Filter) -> Result<u64, StoreError> {
        let names = match archive {
            Archive::DeadLetters => self.shared.state().tables.dead_locks(filter),
            Archive::History => self.shared.state().tables.history_locks(filter),
        };
        let (_locked, appendable) = self.lock(names, archive.operation()).await?;
        let appended = self.shared.statement(|tables, now| match archive {
            Archive::DeadLetters => tables.requeue(filter, &appendable, now),
            Archive::History => tables.replay(filter, &appendable, now),
        });
        self.ring_if_any(appended);
        Ok(appended)
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        const OPERATION: &str = "requeue_edited";
        let Some(letter) = self.shared.state().tables.first_dead_letter(filter) else {
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

    async fn set_paused(&self, route: &Route, topic: Option<&Topic>, paused: bool) -> Result<(), StoreError> {
        self.shared.state().tables.set_paused(route, topic, paused);
        Ok(())
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        Ok(self.shared.state().tables.cancel_scheduled(ids))
    }

    async fn identity(&self) -> Result<OutboxId, StoreError> {
        Ok(self.shared.state().identity)
    }

    async fn renew_identity(&self) -> Result<OutboxId, StoreError> {
        let identity = OutboxId::new();
        self.shared.state().identity = identity;
        Ok(identity)
    }

    async fn count_handled(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        Ok(self.shared.state().tables.count_handled(filter))
    }

    async fn forget(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        Ok(self.shared.state().tables.forget(filter, MAX_PER_CALL))
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
