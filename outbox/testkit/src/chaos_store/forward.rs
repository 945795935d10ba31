//! Forwarding of every method of a store, with its faults.

#![deny(clippy::missing_trait_methods)]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use outbox_contract::admin::{DeadLetter, Edit, FailingKey, Filter, Past};
use outbox_contract::fetch::{Due, DueRequest, Ordering, RowId, Writers};
use outbox_contract::lease::{LeaseRequest, Leased};
use outbox_contract::maintain::Maintained;
use outbox_contract::transactional::{Blame, Committed, Dedup};
use outbox_contract::wakeup::Wakeup;
use outbox_contract::{
    Admin, AppendError, Backlog, BucketSet, Consumer, FetchRequest, Fetched, KeyId, KeyTransition, Lease,
    LowWater, Message, MessageId, Outgoing, RelayId, Route, Store, StoreError, Stored, StripeMark, Timestamp,
    Topic, Transactional, Transitioned, Unserved, WakeupSignal,
};

use super::{ChaosStore, CommitFault, StoreCall, StoreFault, injected, lock};

#[async_trait]
impl<S: Store + ?Sized> Store for ChaosStore<S> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn ordering(&self) -> Ordering {
        self.inner.ordering()
    }

    async fn migrate(&self) -> Result<(), StoreError> {
        self.act(StoreCall::Migrate, self.inner.migrate()).await
    }

    async fn check(&self) -> Result<(), StoreError> {
        self.act(StoreCall::Check, self.inner.check()).await
    }

    async fn lease(&self, request: &LeaseRequest) -> Result<Leased, StoreError> {
        self.act(StoreCall::Lease, self.inner.lease(request)).await
    }

    async fn give_back(
        &self,
        relay: RelayId,
        route: &Route,
        leases: &[Lease],
        low_water: &LowWater,
        leaving: bool,
    ) -> Result<(), StoreError> {
        let effect = self.inner.give_back(relay, route, leases, low_water, leaving);
        self.act(StoreCall::GiveBack, effect).await
    }

    async fn fetch(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        self.act(StoreCall::Fetch, self.inner.fetch(request)).await
    }

    async fn fetch_below(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        self.act(StoreCall::Fetch, self.inner.fetch_below(request)).await
    }

    async fn writers(&self) -> Result<Writers, StoreError> {
        self.act(StoreCall::Writers, self.inner.writers()).await
    }

    async fn stripes(&self, route: &Route, buckets: &BucketSet) -> Result<Vec<StripeMark>, StoreError> {
        self.act(StoreCall::Stripes, self.inner.stripes(route, buckets)).await
    }

    async fn due(&self, request: &DueRequest) -> Result<Due, StoreError> {
        self.act(StoreCall::Due, self.inner.due(request)).await
    }

    async fn settle(&self, route: &Route, delivered: &[RowId]) -> Result<(), StoreError> {
        self.act(StoreCall::Settle, self.inner.settle(route, delivered)).await
    }

    async fn transition(&self, transitions: &[KeyTransition]) -> Result<Vec<Transitioned>, StoreError> {
        self.act(StoreCall::Transition, self.inner.transition(transitions)).await
    }

    async fn elect(&self, role: &str, relay: RelayId, lasts: Duration) -> Result<bool, StoreError> {
        self.act(StoreCall::Elect, self.inner.elect(role, relay, lasts)).await
    }

    async fn maintain(&self, limit: usize) -> Result<Maintained, StoreError> {
        self.act(StoreCall::Maintain, self.inner.maintain(limit)).await
    }

    async fn backlog(&self, route: &Route) -> Result<Backlog, StoreError> {
        self.act(StoreCall::Backlog, self.inner.backlog(route)).await
    }

    async fn unserved(&self, after: Duration) -> Result<Vec<Unserved>, StoreError> {
        self.act(StoreCall::Unserved, self.inner.unserved(after)).await
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.some_of(self.inner.wakeups())
    }
}

#[async_trait]
impl<S: Store + ?Sized> Admin for ChaosStore<S> {
    async fn failing_keys(&self, filter: &Filter) -> Result<Vec<FailingKey>, StoreError> {
        self.act(StoreCall::FailingKeys, self.inner.failing_keys(filter)).await
    }

    async fn parked(&self, filter: &Filter) -> Result<Vec<Arc<Stored>>, StoreError> {
        self.act(StoreCall::Parked, self.inner.parked(filter)).await
    }

    async fn dead_letters(&self, filter: &Filter) -> Result<Vec<DeadLetter>, StoreError> {
        self.act(StoreCall::DeadLetters, self.inner.dead_letters(filter)).await
    }

    async fn history(&self, filter: &Filter) -> Result<Vec<Past>, StoreError> {
        self.act(StoreCall::History, self.inner.history(filter)).await
    }

    async fn hold(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.act(StoreCall::Hold, self.inner.hold(route, key)).await
    }

    async fn release(&self, route: &Route, key: &KeyId) -> Result<(), StoreError> {
        self.act(StoreCall::Release, self.inner.release(route, key)).await
    }

    async fn skip(&self, route: &Route, key: &KeyId) -> Result<Option<MessageId>, StoreError> {
        self.act(StoreCall::Skip, self.inner.skip(route, key)).await
    }

    async fn discard(&self, route: &Route, key: &KeyId) -> Result<u64, StoreError> {
        self.act(StoreCall::Discard, self.inner.discard(route, key)).await
    }

    async fn requeue(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.act(StoreCall::Requeue, self.inner.requeue(filter)).await
    }

    async fn requeue_edited(&self, filter: &Filter, edit: &Edit) -> Result<Option<MessageId>, StoreError> {
        self.act(StoreCall::Requeue, self.inner.requeue_edited(filter, edit)).await
    }

    async fn purge(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.act(StoreCall::Purge, self.inner.purge(filter)).await
    }

    async fn replay(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.act(StoreCall::Replay, self.inner.replay(filter)).await
    }

    async fn pause(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        self.act(StoreCall::Pause, self.inner.pause(route, topic)).await
    }

    async fn resume(&self, route: &Route, topic: Option<&Topic>) -> Result<(), StoreError> {
        self.act(StoreCall::Resume, self.inner.resume(route, topic)).await
    }

    async fn scheduled(&self, filter: &Filter) -> Result<Vec<(Timestamp, Message)>, StoreError> {
        self.act(StoreCall::Scheduled, self.inner.scheduled(filter)).await
    }

    async fn cancel_scheduled(&self, ids: &[MessageId]) -> Result<u64, StoreError> {
        self.act(StoreCall::CancelScheduled, self.inner.cancel_scheduled(ids)).await
    }
}

impl<S: Transactional> ChaosStore<S> {
    /// Returns the reported result of a commit that fails. Gives the transaction back if the commit
    /// does not fail.
    async fn fail(&self, tx: S::Tx<'static>) -> Result<Committed, S::Tx<'static>> {
        let (plan, exactly) = {
            let mut state = lock(&self.state);
            let plan = state.plan(StoreCall::Commit);
            (plan, plan.fault.is_none().then(|| state.plan_commit()).flatten())
        };
        plan.hold_back().await;
        match (exactly, plan.fault) {
            (Some(fault), _) => Ok(self.fail_exactly(tx, fault).await),
            (None, Some(fault)) => Ok(self.fail_commit(tx, fault, plan.heads).await),
            (None, None) => Err(tx),
        }
    }

    async fn fail_exactly(&self, tx: S::Tx<'static>, fault: CommitFault) -> Committed {
        match fault {
            CommitFault::No => self.fail_commit(tx, StoreFault::Before, true).await,
            CommitFault::Unknown => self.fail_commit(tx, StoreFault::Before, false).await,
            CommitFault::UnknownCommitted => self.fail_commit(tx, StoreFault::After, false).await,
            CommitFault::UnknownCommitsLater(after) => {
                let inner = Arc::clone(&self.inner);
                // The task ends by itself: when it has slept and the store has answered.
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    // The caller is gone, so the result has no reader.
                    let _ = inner.commit(tx).await;
                });
                Committed::Unknown(injected(StoreCall::Commit))
            }
        }
    }

    async fn fail_commit(&self, tx: S::Tx<'static>, fault: StoreFault, surely: bool) -> Committed {
        match fault {
            StoreFault::Before => {
                // The result of the rollback does not matter: the transaction is over.
                let _ = self.inner.rollback(tx).await;
                let error = injected(StoreCall::Commit);
                if surely { Committed::No(error) } else { Committed::Unknown(error) }
            }
            StoreFault::After => match self.inner.commit(tx).await {
                Committed::Yes => Committed::Unknown(injected(StoreCall::Commit)),
                failed => failed,
            },
            StoreFault::HangBefore => {
                let _held = tx;
                self.hang().await
            }
            StoreFault::HangAfter => {
                let _unheard = self.inner.commit(tx).await;
                self.hang().await
            }
        }
    }
}

#[async_trait]
impl<S: Transactional> Transactional for ChaosStore<S> {
    type Tx<'t> = S::Tx<'t>;

    async fn begin(&self) -> Result<Self::Tx<'static>, StoreError> {
        self.act(StoreCall::Begin, self.inner.begin()).await
    }

    async fn commit(&self, tx: Self::Tx<'static>) -> Committed {
        match self.fail(tx).await {
            Ok(told) => told,
            Err(tx) => self.inner.commit(tx).await,
        }
    }

    async fn commit_and_begin(&self, tx: Self::Tx<'static>) -> (Committed, Option<Self::Tx<'static>>) {
        match self.fail(tx).await {
            Ok(told) => (told, None),
            Err(tx) => self.inner.commit_and_begin(tx).await,
        }
    }

    async fn rollback(&self, tx: Self::Tx<'static>) -> Result<(), StoreError> {
        self.act(StoreCall::Rollback, self.inner.rollback(tx)).await
    }

    async fn append(&self, tx: &mut Self::Tx<'_>, messages: &[Outgoing]) -> Result<(), AppendError> {
        self.check(messages)?;
        self.act(StoreCall::Append, self.inner.append(tx, messages)).await
    }

    async fn fence(
        &self,
        tx: &mut Self::Tx<'_>,
        route: &Route,
        stored: &[&Stored],
    ) -> Result<Vec<bool>, StoreError> {
        self.act(StoreCall::Fence, self.inner.fence(tx, route, stored)).await
    }

    async fn deduplicate(
        &self,
        tx: &mut Self::Tx<'_>,
        consumer: &Consumer,
        messages: &[&Message],
    ) -> Result<Vec<Dedup>, StoreError> {
        self.act(StoreCall::Deduplicate, self.inner.deduplicate(tx, consumer, messages)).await
    }

    async fn is_handled(&self, consumer: &Consumer, id: MessageId) -> Result<bool, StoreError> {
        self.act(StoreCall::IsHandled, self.inner.is_handled(consumer, id)).await
    }

    fn blame(&self, error: &(dyn std::error::Error + 'static)) -> Blame {
        self.inner.blame(error)
    }

    fn is_conflict(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        self.inner.is_conflict(error)
    }

    fn max_idle(&self) -> Option<Duration> {
        self.inner.max_idle()
    }

    fn wakeup_signal(&self) -> &WakeupSignal {
        self.inner.wakeup_signal()
    }
}
