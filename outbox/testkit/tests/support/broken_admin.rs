//! The verbs of operators of the broken store.

use std::sync::Arc;

use outbox_contract::admin::{DeadLetter, FailingKey, Filter, Past};
use outbox_contract::{
    Admin, KeyId, Message, MessageId, Route, StoreError, Stored, Timestamp, Topic, async_trait,
};

use super::BrokenStore;

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
        self.inner.requeue(filter).await
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.inner.purge(filter).await
    }

    async fn replay(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.inner.replay(filter).await
    }

    async fn pause(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
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
