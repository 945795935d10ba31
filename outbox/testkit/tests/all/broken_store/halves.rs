//! Bugs of the broken store that do a part of a call, or a part of a question.

use super::*;

impl BrokenStore {
    /// Fails the first message in one transaction, and parks those behind it in another.
    pub(super) async fn step_by_halves(&self, transition: KeyTransition) -> Result<Transitioned, StoreError> {
        let mut first = transition.clone();
        let mut second = transition;
        if let Step::Fail { behind, .. } = &mut first.step {
            (second.step, second.version) = (Step::Park { rows: std::mem::take(behind) }, None);
        }
        let answer = self.one(first).await?;
        tokio::task::yield_now().await;
        if let (Transitioned::Done(_), Step::Park { .. }) = (answer, &second.step) {
            self.one(second).await?;
        }
        Ok(answer)
    }

    /// Parks those behind a message, and then finds that the message is gone.
    pub(super) async fn park_behind_the_gone(&self, mut transition: KeyTransition) -> Result<(), StoreError> {
        if let Step::Fail { row, behind, .. } = &mut transition.step
            && !behind.is_empty()
        {
            *row = behind.remove(0);
            self.one(transition).await?;
        }
        Ok(())
    }

    /// Commits what was handled, and then what was appended.
    pub(super) async fn commit_by_halves(&self, tx: BrokenTx<'static>) -> Committed {
        let committed = self.inner.commit(tx.inner).await;
        tokio::task::yield_now().await;
        let Ok(mut second) = self.inner.begin().await else { return committed };
        match self.inner.append(&mut second, &tx.late).await {
            Ok(()) => self.inner.commit(second).await,
            Err(_) => committed,
        }
    }

    /// The keys that are due, and the time of the next one, whoever asked for it.
    pub(super) async fn due_of_all(&self, request: &DueRequest) -> Result<Due, StoreError> {
        let mut due = self.inner.due(request).await?;
        let (mut all, left_out) = (request.clone(), request.except.len() + request.muted.len());
        (all.except, all.muted) = (Vec::new(), Vec::new());
        if left_out > 0 && self.inner.due(&all).await?.keys.len() > due.keys.len() {
            due.next = Some(Duration::ZERO);
        }
        Ok(due)
    }
}
