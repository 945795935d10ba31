//! The admin operations of the broken store that need more than one of the store inside.

use outbox_contract::admin::Filter;
use outbox_contract::{AdminExt, MessageId, Outgoing, StoreError, StoreErrorKind, Transactional};

use super::BrokenStore;

impl BrokenStore {
    pub(super) async fn requeue_backwards(&self, filter: &Filter) -> Result<u64, StoreError> {
        let dead = self.inner.dead_letters(filter).await?;
        for dead in dead.iter().rev() {
            let one = Filter { ids: Some(vec![dead.stored.message.id]), ..filter.clone() };
            self.inner.requeue(&one).await?;
        }
        Ok(dead.len() as u64)
    }

    pub(super) async fn replay_under_new_ids(&self, filter: &Filter) -> Result<u64, StoreError> {
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
}
