//! The verbs of operators.

use std::collections::BTreeSet;

use outbox_contract::admin::{
    Actor, AuditEntry, Edit, FailingKey, Filter, HandledFilter, MAX_PER_CALL, OutboxId, Ownership,
    RouteStatus, TopicFigures,
};
use outbox_contract::backend::rules::failing_key;
use outbox_contract::backend::{Archive, AuditNote, KeyOperation, Listed, Steered, View};
use outbox_contract::{Admin, KeyId, MessageId, Route, StoreError, StoreErrorKind, Topic, async_trait};

use crate::locks::LockName;
use crate::store::MemoryStore;
use crate::tables::Flowing;

#[async_trait]
impl Admin for MemoryStore {
    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        Ok(self.shared.state().tables.failing_keys(filter))
    }

    async fn browse(&self, view: View, filter: &Filter) -> Result<Vec<Listed>, StoreError> {
        let state = self.shared.state();
        Ok(match view {
            View::Waiting => state.tables.waiting(filter),
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
        let note = AuditNote::on_key(&self.actor, operation, route, key);
        let steered = self.shared.statement(|tables, now| {
            let (steered, ids) = match operation {
                KeyOperation::Hold => {
                    tables.hold(route, key, now);
                    (Steered::NOTHING, Vec::new())
                }
                KeyOperation::Skip => {
                    let skipped = tables.skip(route, key, now)?;
                    (Steered::skipped(skipped), Vec::from_iter(skipped))
                }
                KeyOperation::Discard => {
                    let discarded = tables.discard(route, key, now)?;
                    (Steered::discarded(discarded.len() as u64), discarded)
                }
                KeyOperation::Release => {
                    tables.release_key(route, key, now)?;
                    (Steered::NOTHING, Vec::new())
                }
            };
            // A skip of nothing changes nothing.
            if operation != KeyOperation::Skip || !ids.is_empty() {
                tables.note(&note, &ids, now);
            }
            Ok(steered)
        });
        steered.map_err(|_: Flowing| failing_key::flows(operation, route, key))
    }

    async fn append_again(&self, archive: Archive, filter: &Filter) -> Result<u64, StoreError> {
        let names = match archive {
            Archive::DeadLetters => self.shared.state().tables.dead_locks(filter),
            Archive::History => self.shared.state().tables.history_locks(filter),
        };
        let (_locked, appendable) = self.lock(names, archive.operation()).await?;
        let note = AuditNote::on_messages(&self.actor, archive.operation(), filter);
        let appended = self.shared.statement(|tables, now| {
            let ids = match archive {
                Archive::DeadLetters => tables.requeue(filter, &appendable, now),
                Archive::History => tables.replay(filter, &appendable, now),
            };
            tables.note_some(&note, &ids, now)
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
        let note = AuditNote::edited(&self.actor, filter, edit);
        let appended = self.shared.statement(|tables, now| {
            let appended = tables.requeue_edited(&letter, message, now);
            if appended {
                tables.note(&note, &[id], now);
            }
            appended
        });
        self.ring_if_any(u64::from(appended));
        Ok(appended.then_some(id))
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        let note = AuditNote::on_messages(&self.actor, "purge", filter);
        Ok(self.shared.statement(|tables, now| {
            let ids = tables.purge(filter);
            tables.note_some(&note, &ids, now)
        }))
    }

    async fn set_paused(&self, route: &Route, topic: Option<&Topic>, paused: bool) -> Result<(), StoreError> {
        let note = AuditNote::paused(&self.actor, route, topic, paused);
        self.shared.statement(|tables, now| {
            if tables.set_paused(route, topic, paused) {
                tables.note(&note, &[], now);
            }
        });
        Ok(())
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        let note = AuditNote::canceled(&self.actor);
        Ok(self.shared.statement(|tables, now| {
            let ids = tables.cancel_scheduled(ids);
            tables.note_some(&note, &ids, now)
        }))
    }

    async fn identity(&self) -> Result<OutboxId, StoreError> {
        Ok(self.shared.state().identity)
    }

    async fn renew_identity(&self) -> Result<OutboxId, StoreError> {
        let identity = OutboxId::new();
        let note = AuditNote::identity(&self.actor, identity);
        let mut state = self.shared.state();
        state.identity = identity;
        state.tables.note(&note, &[], self.shared.clock.now());
        Ok(identity)
    }

    fn acting_as(&self, actor: Actor) -> Box<dyn Admin + '_> {
        Box::new(Self { actor, ..self.clone() })
    }

    async fn audit(&self, filter: &Filter) -> Result<Vec<AuditEntry>, StoreError> {
        Ok(self.shared.state().tables.audited(filter))
    }

    async fn ownership(&self, route: &Route) -> Result<Ownership, StoreError> {
        Ok(self.shared.statement(|tables, now| tables.ownership(route, now)))
    }

    async fn routes(&self) -> Result<Vec<RouteStatus>, StoreError> {
        Ok(self.shared.statement(|tables, now| tables.routes(now)))
    }

    async fn topics(&self, route: &Route) -> Result<Vec<TopicFigures>, StoreError> {
        Ok(self.shared.statement(|tables, now| tables.topics(route, now)))
    }

    async fn count_handled(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        Ok(self.shared.state().tables.count_handled(filter))
    }

    async fn forget(&self, filter: &HandledFilter) -> Result<u64, StoreError> {
        let note = AuditNote::forgotten(&self.actor, filter);
        Ok(self.shared.statement(|tables, now| {
            let ids = tables.forget(filter, MAX_PER_CALL);
            tables.note_some(&note, &ids, now)
        }))
    }
}

impl MemoryStore {
    fn ring_if_any(&self, appended: u64) {
        if appended > 0 {
            self.shared.wakeup_signal.committed();
        }
    }
}
