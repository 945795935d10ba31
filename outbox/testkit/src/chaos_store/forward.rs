//! The calls of a store, with their faults.

use std::sync::Arc;

use futures_util::stream::BoxStream;
use outbox_contract::backend::{
    Committed, FetchRequest, Fetched, StoreCall, StoreLayer, TransactionalLayer, Wakeup,
};
use outbox_contract::{AppendError, Outgoing, Store, StoreError, Transactional};

use super::{ChaosStore, CommitFault, StoreFault, injected, lock};

impl<S: Store + ?Sized> StoreLayer for ChaosStore<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    async fn around<T: Send, E: From<StoreError> + Send>(
        &self,
        call: StoreCall,
        effect: impl Future<Output = Result<T, E>> + Send,
    ) -> Result<T, E> {
        self.act(call, effect).await
    }

    /// A relay's look below its cursor is a fetch to the tests, so that they count and fail both.
    async fn fetch_below(&self, request: &FetchRequest) -> Result<Fetched, StoreError> {
        self.act(StoreCall::Fetch, self.inner.fetch_below(request)).await
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.some_of(self.inner.wakeups())
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

impl<S: Transactional> TransactionalLayer for ChaosStore<S> {
    async fn commit(&self, tx: S::Tx<'static>) -> Committed {
        match self.fail(tx).await {
            Ok(told) => told,
            Err(tx) => self.inner.commit(tx).await,
        }
    }

    async fn commit_and_begin(&self, tx: S::Tx<'static>) -> (Committed, Option<S::Tx<'static>>) {
        match self.fail(tx).await {
            Ok(told) => (told, None),
            Err(tx) => self.inner.commit_and_begin(tx).await,
        }
    }

    async fn append(&self, tx: &mut S::Tx<'_>, messages: &[Outgoing]) -> Result<(), AppendError> {
        self.refuses(messages)?;
        self.act(StoreCall::Append, self.inner.append(tx, messages)).await
    }
}
