//! The verbs of operators of the broken store.

use std::sync::Arc;

use outbox_contract::admin::{DeadLetter, Edit, FailingKey, Filter, Past};
use outbox_contract::{
    Admin, KeyId, Message, MessageId, Outgoing, Route, StoreError, StoreErrorKind, Stored, Timestamp, Topic,
    Transactional, async_trait,
};

use super::{BrokenStore, Bug};

#[async_trait]
impl Admin for BrokenStore {
    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        self.inner.failing_keys(filter).await
    }

    async fn parked(&self, filter: &Filter) -> Result<Vec<Arc<Stored>>, StoreError> {
        self.inner.parked(filter).await
    }

    async fn dead_letters(&self, filter: &Filter) -> Result<Vec<DeadLetter>, StoreError> {
        self.inner.dead_letters(filter).await
    }

    async fn history(&self, filter: &Filter) -> Result<Vec<Past>, StoreError> {
        self.inner.history(filter).await
    }

    async fn hold(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        if self.has(Bug::IgnoresHolds) {
            return Ok(());
        }
        self.inner.hold(route, key).await
    }

    async fn release(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.allowed(self.inner.release(route, key).await)
    }

    async fn skip(&self, route: &Route, key: &KeyId) -> Result<Option<MessageId>, StoreError> {
        self.allowed(self.inner.skip(route, key).await)
    }

    async fn discard(&self, route: &Route, key: &KeyId) -> Result<u64, StoreError> {
        self.allowed(self.inner.discard(route, key).await)
    }

    async fn requeue(&self, filter: &Filter) -> Result<u64, StoreError> {
        if !self.has(Bug::RequeuesBackwards) {
            return self.inner.requeue(filter).await;
        }
        let dead = self.inner.dead_letters(filter).await?;
        for dead in dead.iter().rev() {
            let one = Filter { ids: Some(vec![dead.stored.message.id]), ..filter.clone() };
            self.inner.requeue(&one).await?;
        }
        Ok(dead.len() as u64)
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        if self.has(Bug::EditsNothing) {
            return self.inner.requeue_edited(filter, &Edit::default()).await;
        }
        let done = self.inner.requeue_edited(filter, edit).await;
        if done.is_err() && self.has(Bug::LosesRefusedEdits) {
            self.inner.purge(&filter.first()).await?;
        }
        done
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.inner.purge(filter).await
    }

    async fn replay(&self, filter: &Filter) -> Result<u64, StoreError> {
        if !self.has(Bug::ReplaysUnderNewIds) {
            return self.inner.replay(filter).await;
        }
        let kept = self.inner.history(filter).await?;
        let mut tx = self.inner.begin().await?;
        for past in &kept {
            let message = past.message.message.clone().with_id(MessageId::new());
            let again = Outgoing::from(message).by(past.route.clone());
            self.inner
                .append(&mut tx, &[again])
                .await
                .map_err(|error| StoreError::new(StoreErrorKind::Other, "replay", error.to_string()))?;
        }
        self.inner.commit(tx).await.into_result()?;
        Ok(kept.len() as u64)
    }

    async fn pause(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        if self.has(Bug::IgnoresPauses) {
            return Ok(());
        }
        self.inner.pause(route, topic).await
    }

    async fn resume(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        self.inner.resume(route, topic).await
    }

    async fn scheduled(&self, filter: &Filter) -> Result<Vec<(Timestamp, Message)>, StoreError> {
        self.inner.scheduled(filter).await
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        self.inner.cancel_scheduled(ids).await
    }
}
